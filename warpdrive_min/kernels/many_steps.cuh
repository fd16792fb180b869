// Definitions for rollout kernels that are generated from a source's `step`.
#pragma once

// Counts the draws of a launch. The block must have synchronised after the last one. WD_TAKE_BACK then needs no barrier:
// the same thread handles an entry.
WD_FN void wd_count_draws(int* const draws, const int n_steps, const int n_envs) {
  WD_EACH_ENV(local, env) draws[env] += n_steps;
}

// During a launch the arrays that steps read and write are in shared memory on a GPU. WD_BRING copies this block's
// environments there, and WD_TAKE_BACK writes them to the array or to its row of a step. The block synchronises in between.
// WD_NEAR is the copy, with the array's indices; on the CPU it is the row itself. An environment has `entries` of `type`;
// `steps` is its stride in units of the pointer's type.
#if defined(__CUDACC__)

template <int ENTRIES, class Entry>
WD_FN void wd_copy(Entry* const to, const Entry* const from, const int n_envs) {
  const int n = WD_OWNED_ENVS * ENTRIES;
#if defined(WD_POLICY)
  constexpr int LOADS = 8;  // which needs more registers itself
#else
  constexpr int LOADS = WD_LOADS;
#endif
  wd_move<ENVS_PER_BLOCK * ENTRIES, WD_STRIDE, LOADS>(
      WD_BEGIN(WD_THREAD), n - 1, [&](const int i) { return from[i]; },
      [&](const int i, const Entry entry) { if (i < n) to[i] = entry; });
}

#define WD_OF_BLOCK(type, array, entries) (reinterpret_cast<type*>(array) + static_cast<long long>(WD_FIRST_ENV) * (entries))
#define WD_BRING(type, array, entries, steps)                                                          \
  alignas(16) WD_SHARED type array##_of_block[ENVS_PER_BLOCK * (entries)];                              \
  const auto array##_near = reinterpret_cast<decltype(array)>(array##_of_block) - WD_FIRST_ENV * (steps); \
  wd_copy<entries>(array##_of_block, WD_OF_BLOCK(type, array, entries), n_envs)
#define WD_TAKE_BACK(type, array, entries, row) \
  wd_copy<entries>(WD_OF_BLOCK(type, row, entries), array##_of_block, n_envs)
#define WD_NEAR(array, row) array##_near

#else

#define WD_BRING(type, array, entries, steps) static_cast<void>(0)
#define WD_TAKE_BACK(type, array, entries, row) static_cast<void>(0)
#define WD_NEAR(array, row) (row)

#endif

// Signature of the function that a source's `step` becomes; the first argument is WD_OBSERVED.
#undef WD_OBSERVED
#define WD_TOLD(...) (const bool WD_OBSERVED, __VA_ARGS__)

// Definitions for rollout kernels that are generated from a source's `step`.
#pragma once

WD_FN void wd_count_draw(int* const draws, const int n_envs) {
  WD_EACH_ENV(local, env) draws[env] += 1;
}

// During a launch the arrays that steps read and write are in shared memory. WD_BRING copies this block's environments to
// `<array>_near`, with the array's indices, and WD_TAKE_BACK writes them back. The block synchronises in between. An
// environment has `entries` of `type`; `steps` is its stride in units of the pointer's type.
#if defined(__CUDACC__)

template <class Entry>
WD_FN void wd_copy(Entry* const to, const Entry* const from, const int entries, const int n_envs) {
  const int n = wd_min(ENVS_PER_BLOCK, n_envs - WD_FIRST_ENV) * entries;
#pragma unroll 1
  for (int i = WD_THREAD; i < n; i += WD_STRIDE) to[i] = from[i];
}

#define WD_OF_BLOCK(type, array, entries) (reinterpret_cast<type*>(array) + static_cast<long long>(WD_FIRST_ENV) * (entries))
#define WD_BRING(type, array, entries, steps)                                                          \
  alignas(16) WD_SHARED type array##_of_block[ENVS_PER_BLOCK * (entries)];                              \
  const auto array##_near = reinterpret_cast<decltype(array)>(array##_of_block) - WD_FIRST_ENV * (steps); \
  wd_copy(array##_of_block, WD_OF_BLOCK(type, array, entries), entries, n_envs)
#define WD_TAKE_BACK(type, array, entries) \
  wd_copy(WD_OF_BLOCK(type, array, entries), array##_of_block, entries, n_envs)

#else

#define WD_BRING(type, array, entries, steps) const auto array##_near = array
#define WD_TAKE_BACK(type, array, entries) static_cast<void>(0)

#endif

// Signature of the function that a source's `step` becomes; the first argument is WD_OBSERVED.
#undef WD_OBSERVED
#define WD_TOLD(...) (const bool WD_OBSERVED, __VA_ARGS__)

// Random actions of a rollout kernel, equal to the sampler's.
//
// Constants that come before this header, besides the sizes of all kernels: KEEP_ALL, RANDOM; with RANDOM also N_TYPES
// and either CATEGORIES, the choices of each type, with WD_DISCRETE defined, or LOW and HIGH, bounds of each agent's types.
#pragma once

#include "many_steps.cuh"

#if defined(WD_DISCRETE)

typedef int wd_action;

WD_FN wd_action wd_chosen(const unsigned word, const int, const int type) { return wd_choice(word, CATEGORIES[type]); }

#else

typedef float wd_action;

WD_FN wd_action wd_chosen(const unsigned word, const int agent, const int type) {
  return wd_between(LOW[agent * N_TYPES + type], HIGH[agent * N_TYPES + type], wd_uniform(word));
}

#endif

// Writes this block's actions (n_envs, N_AGENTS, N_TYPES) of a launch's step, and on a GPU also to `kept`, which may be the
// same. The caller must then synchronise the block. A thread with one agent draws four words at a time from `supply`.
WD_FN void wd_draw_actions(wd_supply& supply, wd_action* const actions, wd_action* const kept, const int step,
                           const int* const draws, const int* const seed, const int stream, const int n_envs) {
#if defined(__CUDACC__)
  constexpr bool IS_ALONE = ENVS_PER_BLOCK * N_AGENTS <= THREADS;
  WD_EACH_AGENT(local, env, agent) {
    const bool is_first = step == 0 || !IS_ALONE;  // several types leave no register for the count
    if (is_first || N_TYPES > 1) supply.next = (static_cast<unsigned>(draws[env]) + step) * N_TYPES;
    const long long row = (static_cast<long long>(env) * N_AGENTS + agent) * N_TYPES;
    for (int type = 0; type < N_TYPES; ++type) {
      const unsigned word = wd_take(supply, type > 0 || !is_first, env, agent, stream, seed);
      actions[row + type] = kept[row + type] = wd_chosen(word, agent, type);
    }
  }
#else
  const auto draw = [&](const long long row, const int agent, const int type, const unsigned word) {
    actions[row * N_TYPES + type] = wd_chosen(word, agent, type);
  };
  wd_each_drawn<N_TYPES>(draws, seed, stream, n_envs, step, draw);
#endif
}

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
  const int end_row = wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs) * N_AGENTS;
  for (int first_row = WD_FIRST_ENV * N_AGENTS; first_row < end_row; first_row += WD_TILE) {
    const int n_rows = wd_min(WD_TILE, end_row - first_row);
    wd_drawn_words<N_TYPES> words;
    words.draw(first_row / WD_TILE, first_row, n_rows, draws, stream, seed, step);
    WD_INDEPENDENT for (int row = 0; row < n_rows; ++row) {
      for (int type = 0; type < N_TYPES; ++type)
        actions[static_cast<long long>(first_row + row) * N_TYPES + type] =
            wd_chosen(words.of[type][row], (first_row + row) % N_AGENTS, type);
    }
  }
#endif
}

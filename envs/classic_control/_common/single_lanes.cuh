// Rollouts of single-agent environments on the CPU: environments are lanes of SIMD. From the first step to the last the
// rows of their states are columns, which need no shuffles. `single_kernels.cuh` includes this if it builds `rollout`.
#pragma once

// Environments of this block: a column has one value per environment.
struct alignas(64) Lanes {
  float state[N_STATE][ENVS_PER_BLOCK];
  float seen[N_FEATURES][ENVS_PER_BLOCK];  // after a recorded step
  int first_step[ENVS_PER_BLOCK];          // first step of the episode; negative if it precedes this rollout
  short done[ENVS_PER_BLOCK];              // half as wide as the rest: one iteration of a loop handles two vectors
  wd_blocks<ENVS_PER_BLOCK> words;
};

// Returns a lane's row from columns.
template <class Row>
WD_FN Row row_of(const float (*const columns)[ENVS_PER_BLOCK], const int lane) {
  Row row;
  for (unsigned i = 0; i < sizeof(Row) / sizeof(float); ++i) reinterpret_cast<float*>(&row)[i] = columns[i][lane];
  return row;
}

template <class Row>
WD_FN void set_row(float (*const columns)[ENVS_PER_BLOCK], const int lane, const Row& row) {
  for (unsigned i = 0; i < sizeof(Row) / sizeof(float); ++i) columns[i][lane] = reinterpret_cast<const float*>(&row)[i];
}

// Returns each lane's random word after `more` draws. A block of Philox serves four draws; environments with
// different numbers of draws compute words individually.
WD_FN const unsigned* words_of(Lanes& at, const int* const draws, const int more, const bool are_alike,
                               const int* const seed, const int stream, const int n_envs) {
  if (are_alike) {
    const unsigned word = static_cast<unsigned>(draws[WD_FIRST_ENV]) + more;
    if (more == 0 || word % 4u == 0u)
      at.words.draw(WD_FIRST_ENV, wd_min(ENVS_PER_BLOCK, n_envs - WD_FIRST_ENV), word / 4u, stream, seed);
    return at.words.of[word % 4u];
  }
  WD_EACH_ENV(lane, env) {
    const unsigned word = static_cast<unsigned>(draws[env]) + more;
    at.words.of[0][lane] = wd_word(wd_philox(word / 4u, env, 0, stream, seed[0], seed[1]), static_cast<int>(word % 4u));
  }
  return at.words.of[0];
}

// Takes step k as `take_step` does, with an action from each lane's word, or a given one. A step that is not recorded
// writes only states and final observations.
template <bool IS_KEPT>
WD_FN void step_lanes(Lanes& at, const int k, const unsigned* const words, Action (*const sampled_actions)[N_AGENTS][1],
                      float (*const observations)[N_AGENTS][N_FEATURES],
                      float (*const final_observations)[N_AGENTS][N_FEATURES], float (*const rewards)[N_AGENTS],
                      int* const _done_, int* const terminated, int* const truncated, int* const _episode_,
                      const int* const _reset_seed_, const float (*const state_reset_pool)[N_AGENTS][N_STATE],
                      const int n_envs) {
  const int youngest = k + 1 - EPISODE_LENGTH;  // first step of the youngest episodes that time out
  WD_EACH_ENV(lane, env) {
    const Action action = RANDOM ? wd_chosen(words[lane], 0, 0) : sampled_actions[env][0][0];
    auto after = outcome(row_of<State>(at.state, lane), action);  // g++ 12 cannot destructure a const one
    const bool out_of_time = (at.first_step[lane] <= youngest) & !after.is_terminal;
    const bool done = after.is_terminal | out_of_time;
    at.done[lane] = done;
    set_row(at.state, lane, after.state);
    if constexpr (IS_KEPT) {
      if constexpr (RANDOM) sampled_actions[env][0][0] = action;
      rewards[env][0] = after.reward;
      _done_[env] = done;
      terminated[env] = after.is_terminal;
      truncated[env] = out_of_time;
      set_row(at.seen, lane, after.seen);
    }
  }
  const auto go_on = [&](const int env, const State& s) {
    const int lane = env - WD_FIRST_ENV;
    wd_store(final_observations[env][0], observe(row_of<State>(at.state, lane)));
    set_row(at.state, lane, s);
    at.first_step[lane] = k + 1;
    if constexpr (IS_KEPT) set_row(at.seen, lane, observe(s));
  };
  start_next_episodes(at.done - WD_FIRST_ENV, _episode_, _reset_seed_, state_reset_pool, n_envs, go_on);
  if constexpr (IS_KEPT) WD_EACH_ENV(lane, env) wd_store(observations[env][0], row_of<Seen>(at.seen, lane));
}

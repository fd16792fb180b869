// Rollouts of environments of one agent on the CPU: environments are lanes of SIMD, and from the first step to the last the
// rows of their states are columns, which need no shuffles. `single_kernels.cuh` includes this where it builds `rollout`.
#pragma once

// The environments of this block: a column has a number of each.
struct Lanes {
  float state[N_STATE][ENVS_PER_BLOCK];
  float seen[N_FEATURES][ENVS_PER_BLOCK];  // with KEEP_ALL none: each step's goes to its row at once
};

// The row whose numbers are those of a lane in so many columns.
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

WD_FN void set_seen(Lanes& at, float* const observation, const int lane, const Seen& seen) {
  if constexpr (KEEP_ALL)
    wd_store(observation, seen);
  else
    set_row(at.seen, lane, seen);
}

WD_FN Seen seen_of(const Lanes& at, const float* const observation, const int lane) {
  if constexpr (KEEP_ALL)
    return wd_load<Seen>(observation);
  else
    return row_of<Seen>(at.seen, lane);
}

// Takes a step, as `take_step` does.
WD_FN void step_lanes(Lanes& at, const Action (*const sampled_actions)[N_AGENTS][1],
                      float (*const observations)[N_AGENTS][N_FEATURES],
                      float (*const final_observations)[N_AGENTS][N_FEATURES], float (*const rewards)[N_AGENTS],
                      int* const _timestep_, int* const _done_, int* const terminated, int* const truncated,
                      int* const _episode_, const int* const _reset_seed_,
                      const float (*const state_reset_pool)[N_AGENTS][N_STATE], const int n_envs) {
  WD_EACH_ENV(lane, env) {
    auto after = outcome(row_of<State>(at.state, lane), sampled_actions[env][0][0]);  // g++ 12 takes no const one apart
    const int timestep = _timestep_[env] + 1;
    const bool out_of_time = (timestep >= EPISODE_LENGTH) & !after.is_terminal;
    const bool done = after.is_terminal | out_of_time;
    rewards[env][0] = after.reward;
    terminated[env] = after.is_terminal;
    truncated[env] = out_of_time;
    _done_[env] = done;
    _timestep_[env] = done ? 0 : timestep;
    set_row(at.state, lane, after.state);
    set_seen(at, observations[env][0], lane, after.seen);
  }
  start_next_episodes(_done_, _episode_, _reset_seed_, state_reset_pool, n_envs, [&](int env, const State& s) {
    const int lane = env - WD_FIRST_ENV;
    wd_store(final_observations[env][0], seen_of(at, observations[env][0], lane));
    set_row(at.state, lane, s);
    set_seen(at, observations[env][0], lane, observe(s));
  });
}

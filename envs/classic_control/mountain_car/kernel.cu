// MountainCar in CUDA C. Phases: move, judge, start. One agent, so a thread has an environment.

#include "../_common/valley.cuh"

WD_KERNEL(step)(float (*state)[N_AGENTS][2], const int (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][2], float (*final_observations)[N_AGENTS][2],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int n_envs) {
  WD_EACH_ENV(local, env) {
    State s = roll(load(state[env][0]), static_cast<float>(sampled_actions[env][0][0] - 1) * FORCE);
    const int timestep = _timestep_[env] + 1;
    const int arrived = is_at_goal(s);
    const int out_of_time = timestep >= EPISODE_LENGTH && !arrived;
    const int done = arrived | out_of_time;
    rewards[env][0] = -1.f;
    terminated[env] = arrived;
    truncated[env] = out_of_time;
    _done_[env] = done;
    _timestep_[env] = AUTO_RESET && done ? 0 : timestep;
    if (AUTO_RESET && done) {
      store(final_observations[env][0], s);
      s = start(env, _episode_[env]++, _reset_seed_, state_reset_pool);
    }
    store(state[env][0], s);
    store(observations[env][0], s);
  }
}

WD_KERNEL(reset)(float (*state)[N_AGENTS][2], float (*observations)[N_AGENTS][2], int* _timestep_, int* _done_,
                 int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int force,
                 int n_envs) {
  WD_EACH_ENV(local, env) {
    if (_done_[env] || force) {
      const State s = start(env, _episode_[env]++, _reset_seed_, state_reset_pool);
      store(state[env][0], s);
      store(observations[env][0], s);
      _timestep_[env] = 0;
      _done_[env] = 0;
    }
  }
}

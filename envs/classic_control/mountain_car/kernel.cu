// MountainCar in CUDA C. Phases: move, judge, finish. One agent, so a thread has an environment.

#include "../_common/valley.cuh"

WD_KERNEL(step)(float (*state)[N_AGENTS][2], const int (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][2], float (*final_observations)[N_AGENTS][2],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int n_envs) {
  WD_EACH_ENV(local, env) {
    const float push = static_cast<float>(sampled_actions[env][0][0] - 1) * FORCE;
    const State s = roll(wd_load<State>(state[env][0]), push);
    finish(env, s, observe(s), -1.f, is_at_goal(s), state, observations, final_observations, rewards, _timestep_,
           _done_, terminated, truncated, _episode_, _reset_seed_, state_reset_pool);
  }
  restart_finished<State>(state, observations, final_observations, _done_, _episode_, _reset_seed_, state_reset_pool,
                          n_envs);
}

WD_KERNEL(reset)(float (*state)[N_AGENTS][2], float (*observations)[N_AGENTS][2], int* _timestep_, int* _done_,
                 int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int force,
                 int n_envs) {
  restart<State>(state, observations, _timestep_, _done_, _episode_, _reset_seed_, state_reset_pool, force, n_envs);
}

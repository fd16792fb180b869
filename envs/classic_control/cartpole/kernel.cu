// CartPole in CUDA C. Phases: move, judge, finish. One agent, so a thread has an environment.

#include "../_common/single.cuh"

struct WD_ALIGN(16) State {
  float x, x_dot, theta, theta_dot;
};

// One explicit Euler step.
WD_FN State move(const State& s, int action) {
  float sin_theta, cos_theta;
  wd_sincos(s.theta, &sin_theta, &cos_theta);
  const float force = action == 1 ? FORCE : -FORCE;
  const float push = (force + POLE_MASS_LENGTH * s.theta_dot * s.theta_dot * sin_theta) / TOTAL_MASS;
  const float inertia = HALF_LENGTH * (4.f / 3.f - POLE_MASS * cos_theta * cos_theta / TOTAL_MASS);
  const float theta_acc = (GRAVITY * sin_theta - cos_theta * push) / inertia;
  const float x_acc = push - POLE_MASS_LENGTH * theta_acc * cos_theta / TOTAL_MASS;
  return {s.x + TIME_STEP * s.x_dot, s.x_dot + TIME_STEP * x_acc, s.theta + TIME_STEP * s.theta_dot,
          s.theta_dot + TIME_STEP * theta_acc};
}

// All of the state is seen.
WD_FN State observe(const State& s) { return s; }

// Uniform in every component.
WD_FN void draw_start(State& s, const wd_words& words) {
  s = {symmetric(words.x, START_RANGE), symmetric(words.y, START_RANGE), symmetric(words.z, START_RANGE),
       symmetric(words.w, START_RANGE)};
}

WD_KERNEL(step)(float (*state)[N_AGENTS][4], const int (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][4], float (*final_observations)[N_AGENTS][4],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][4], int n_envs) {
  WD_EACH_ENV(local, env) {
    const State s = move(wd_load<State>(state[env][0]), sampled_actions[env][0][0]);
    const bool failed = (fabsf(s.x) > MAX_POSITION) | (fabsf(s.theta) > MAX_ANGLE);
    finish(env, s, observe(s), 1.f, failed, state, observations, final_observations, rewards, _timestep_,
           _done_, terminated, truncated, _episode_, _reset_seed_, state_reset_pool);
  }
  restart_finished<State>(state, observations, final_observations, _done_, _episode_, _reset_seed_, state_reset_pool,
                          n_envs);
}

WD_KERNEL(reset)(float (*state)[N_AGENTS][4], float (*observations)[N_AGENTS][4], int* _timestep_, int* _done_,
                 int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][4], int force,
                 int n_envs) {
  restart<State>(state, observations, _timestep_, _done_, _episode_, _reset_seed_, state_reset_pool, force, n_envs);
}

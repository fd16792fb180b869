// Pendulum in CUDA C. Phases: score, move, finish. One agent, so a thread has an environment.

#include "../_common/single.cuh"

struct WD_ALIGN(8) State {
  float angle, velocity;
};

struct Seen {
  float cosine, sine, velocity;
};

// One semi-implicit Euler step.
WD_FN State move(const State& s, float torque) {
  const float pushed = s.velocity + (GRAVITY_GAIN * wd_sin(s.angle) + TORQUE_GAIN * torque) * TIME_STEP;
  const float velocity = wd_clip(pushed, -MAX_VELOCITY, MAX_VELOCITY);
  return {s.angle + TIME_STEP * velocity, velocity};
}

// The reward of a step from the state before it.
WD_FN float score(const State& s, float torque) {
  return -(s.angle * s.angle + VELOCITY_COST * s.velocity * s.velocity + TORQUE_COST * torque * torque);
}

WD_FN Seen observe(const State& s) {
  float sine, cosine;
  wd_sincos(s.angle, &sine, &cosine);
  return {cosine, sine, s.velocity};
}

// Uniform in both components.
WD_FN void draw_start(State& s, const wd_words& words) {
  s = {symmetric(words.x, START_ANGLE), symmetric(words.y, START_VELOCITY)};
}

WD_KERNEL(step)(float (*state)[N_AGENTS][2], const float (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][3], float (*final_observations)[N_AGENTS][3],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int n_envs) {
  WD_EACH_ENV(local, env) {
    State s = wd_load<State>(state[env][0]);
    s.angle = wd_principal(s.angle);
    const float torque = wd_clip(sampled_actions[env][0][0], -MAX_TORQUE, MAX_TORQUE);
    const float reward = score(s, torque);
    s = move(s, torque);
    finish(env, s, observe(s), reward, false, state, observations, final_observations, rewards, _timestep_,
           _done_, terminated, truncated, _episode_, _reset_seed_, state_reset_pool);
  }
  restart_finished<State>(state, observations, final_observations, _done_, _episode_, _reset_seed_, state_reset_pool,
                          n_envs);
}

WD_KERNEL(reset)(float (*state)[N_AGENTS][2], float (*observations)[N_AGENTS][3], int* _timestep_, int* _done_,
                 int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int force,
                 int n_envs) {
  restart<State>(state, observations, _timestep_, _done_, _episode_, _reset_seed_, state_reset_pool, force, n_envs);
}

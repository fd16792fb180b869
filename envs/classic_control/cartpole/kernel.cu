// CartPole in CUDA C. Phases: move, judge, start. One agent, so a thread has an environment.

struct State {
  float x, x_dot, theta, theta_dot;
};

WD_FN State load(const float* from) {
  float s[4];
  wd_load4(from, s);
  return {s[0], s[1], s[2], s[3]};
}

WD_FN void store(float* to, const State& s) { wd_store4(to, s.x, s.x_dot, s.theta, s.theta_dot); }

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

WD_FN float symmetric(unsigned word) { return (wd_uniform(word) * 2.f - 1.f) * START_RANGE; }

// The start of an environment's next episode.
WD_FN State start(int env, int episode, const int* seed, const float (*pool)[N_AGENTS][4]) {
  if (RESET_POOL_SIZE >= 2) return load(pool[wd_pool_row(episode, env, seed[0], seed[1], RESET_POOL_SIZE)][0]);
  if (RESET_POOL_SIZE == 1) return load(pool[0][0]);
  const auto words = wd_philox(episode, env, 0, STREAM_START, seed[0], seed[1]);
  return {symmetric(words.x), symmetric(words.y), symmetric(words.z), symmetric(words.w)};
}

WD_KERNEL(step)(float (*state)[N_AGENTS][4], const int (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][4], float (*final_observations)[N_AGENTS][4],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][4], int n_envs) {
  WD_EACH_ENV(local, env) {
    State s = move(load(state[env][0]), sampled_actions[env][0][0]);
    const int timestep = _timestep_[env] + 1;
    const int failed = fabsf(s.x) > MAX_POSITION || fabsf(s.theta) > MAX_ANGLE;
    const int out_of_time = timestep >= EPISODE_LENGTH && !failed;
    const int done = failed | out_of_time;
    rewards[env][0] = 1.f;
    terminated[env] = failed;
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

WD_KERNEL(reset)(float (*state)[N_AGENTS][4], float (*observations)[N_AGENTS][4], int* _timestep_, int* _done_,
                 int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][4], int force,
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

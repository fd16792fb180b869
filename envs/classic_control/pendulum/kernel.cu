// Pendulum in CUDA C. Phases: move, score, observe, start. One agent, so a thread has an environment.

struct State {
  float angle, velocity;
};

WD_FN State load(const float* from) { return {from[0], from[1]}; }

WD_FN void store(float* to, const State& s) { to[0] = s.angle, to[1] = s.velocity; }

// The same angle within +-pi; one that is there already keeps its bits.
WD_FN float principal(float angle) { return fabsf(angle) <= PI ? angle : wd_wrap(angle + PI, TWO_PI) - PI; }

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

WD_FN void observe(float* to, const State& s) {
  float sine, cosine;
  wd_sincos(s.angle, &sine, &cosine);
  to[0] = cosine, to[1] = sine, to[2] = s.velocity;
}

WD_FN float symmetric(unsigned word, float limit) { return (wd_uniform(word) * 2.f - 1.f) * limit; }

// The start of an environment's next episode.
WD_FN State start(int env, int episode, const int* seed, const float (*pool)[N_AGENTS][2]) {
  if (RESET_POOL_SIZE >= 2) return load(pool[wd_pool_row(episode, env, seed[0], seed[1], RESET_POOL_SIZE)][0]);
  if (RESET_POOL_SIZE == 1) return load(pool[0][0]);
  const auto words = wd_philox(episode, env, 0, STREAM_START, seed[0], seed[1]);
  return {symmetric(words.x, START_ANGLE), symmetric(words.y, START_VELOCITY)};
}

WD_KERNEL(step)(float (*state)[N_AGENTS][2], const float (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][3], float (*final_observations)[N_AGENTS][3],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int n_envs) {
  WD_EACH_ENV(local, env) {
    State s = load(state[env][0]);
    s.angle = principal(s.angle);
    const float torque = wd_clip(sampled_actions[env][0][0], -MAX_TORQUE, MAX_TORQUE);
    rewards[env][0] = score(s, torque);
    s = move(s, torque);
    const int timestep = _timestep_[env] + 1;
    const int done = timestep >= EPISODE_LENGTH;
    terminated[env] = 0;
    truncated[env] = done;
    _done_[env] = done;
    _timestep_[env] = AUTO_RESET && done ? 0 : timestep;
    if (AUTO_RESET && done) {
      observe(final_observations[env][0], s);
      s = start(env, _episode_[env]++, _reset_seed_, state_reset_pool);
    }
    store(state[env][0], s);
    observe(observations[env][0], s);
  }
}

WD_KERNEL(reset)(float (*state)[N_AGENTS][2], float (*observations)[N_AGENTS][3], int* _timestep_, int* _done_,
                 int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][2], int force,
                 int n_envs) {
  WD_EACH_ENV(local, env) {
    if (_done_[env] || force) {
      const State s = start(env, _episode_[env]++, _reset_seed_, state_reset_pool);
      store(state[env][0], s);
      observe(observations[env][0], s);
      _timestep_[env] = 0;
      _done_[env] = 0;
    }
  }
}

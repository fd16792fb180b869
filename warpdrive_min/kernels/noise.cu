// Noise: continuous actions, an Ornstein-Uhlenbeck process around the mean (`noise`) or uniform (`uniform_actions`).
//
// Both read draws and seed, write actions, and add 1 to the draws of each environment; `noise` also updates ou_state.
// Compiled without contraction always, so that the actions are the same in all languages.

constexpr float TWO_PI = 6.28318531f;

// Standard normal from two random words, by Box and Muller: cosine branch. 1 - uniform is exact and in (0, 1], so the
// result is finite, at most sqrt(48 ln 2) = 5.77 in magnitude.
WD_FN float normal(const unsigned first, const unsigned second) {
  return sqrtf(-2.f * wd_log(1.f - wd_uniform(first))) * wd_cos(TWO_PI * wd_uniform(second));
}

// ou_state = (1 - damping) ou_state + stddev normal; action = mean + scale ou_state. Not clipped.
WD_KERNEL(noise)(const float (*mean)[N_AGENTS][N_TYPES], float (*ou_state)[N_AGENTS][N_TYPES],
                 float (*actions)[N_AGENTS][N_TYPES], int* draws, const int* seed, float damping, float stddev,
                 float scale, int stream, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const unsigned first_word = static_cast<unsigned>(draws[env]) * (2u * N_TYPES);
    wd_words words = {0u, 0u, 0u, 0u};
    for (int type = 0; type < N_TYPES; ++type) {
      const unsigned word = first_word + 2u * type;
      const bool is_upper = word & 2u;  // the pair is the upper half of its block
      if (type == 0 || !is_upper) words = wd_philox(word / 4u, env, agent, stream, seed[0], seed[1]);
      const float drawn = is_upper ? normal(words.z, words.w) : normal(words.x, words.y);
      const float state = (1.f - damping) * ou_state[env][agent][type] + stddev * drawn;
      ou_state[env][agent][type] = state;
      actions[env][agent][type] = mean[env][agent][type] + scale * state;
    }
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) draws[env] += 1;
}

// Uniform in [low, high]: a weighted mean, which cannot overflow, clipped, since its rounding may pass a bound.
WD_KERNEL(uniform_actions)(const float (*low)[N_TYPES], const float (*high)[N_TYPES],
                           float (*actions)[N_AGENTS][N_TYPES], int* draws, const int* seed, int stream, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const unsigned first_word = static_cast<unsigned>(draws[env]) * N_TYPES;
    wd_words words = {0u, 0u, 0u, 0u};
    for (int type = 0; type < N_TYPES; ++type) {
      const unsigned word = first_word + type;
      if (type == 0 || word % 4u == 0u) words = wd_philox(word / 4u, env, agent, stream, seed[0], seed[1]);
      const float weight = wd_uniform(wd_word(words, static_cast<int>(word % 4u)));
      const float least = low[agent][type], most = high[agent][type];
      actions[env][agent][type] = wd_clip((1.f - weight) * least + weight * most, least, most);
    }
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) draws[env] += 1;
}

// Noise: continuous actions, an Ornstein-Uhlenbeck process around the mean (`noise`), independent Gaussians
// (`gaussian`), or uniform (`uniform_actions`).
//
// All read draws and seed, write actions, and add 1 to the draws of each environment; `noise` also updates ou_state.
// Flags are for `gaussian` alone: it writes log_prob if LOG_PROB and entropy if ENTROPY, and touches neither else; with
// ARGMAX it takes the mean and consumes no draw.
//
// Compiled without contraction always, so that the actions are the same in all languages.

constexpr float TWO_PI = 6.28318531f;
constexpr float HALF_LOG_TWO_PI = 0.918938533f;
constexpr float HALF_LOG_TWO_PI_E = 1.41893853f;

// Standard normal from two random words, by Box and Muller: cosine branch. 1 - uniform is exact and in (0, 1], so the
// result is finite, at most sqrt(48 ln 2) = 5.77 in magnitude.
WD_FN float normal(const unsigned first, const unsigned second) {
  return sqrtf(-2.f * wd_log(1.f - wd_uniform(first))) * wd_cos(TWO_PI * wd_uniform(second));
}

// EACH_AGENT begins a loop over the agents of this block's environments; in it NORMAL(type) is the normal of an action type,
// and types come in order.
#if defined(__CUDACC__)

#define EACH_AGENT(env, agent)     \
  WD_EACH_AGENT(local, env, agent) \
  if (wd_words words = {0u, 0u, 0u, 0u}; true)
#define NORMAL(type) next_normal(&words, draws[env], type, env, agent, stream, seed)

// Two types share a block of words, which `words` keeps.
WD_FN float next_normal(wd_words* const words, const int n_draws, const int type, const int env, const int agent,
                        const int stream, const int* const seed) {
  const unsigned word = static_cast<unsigned>(n_draws) * (2u * N_TYPES) + 2u * type;
  const bool is_upper = word & 2u;  // the pair is the upper half of its block
  if (type == 0 || !is_upper) *words = wd_philox(word / 4u, env, agent, stream, seed[0], seed[1]);
  return is_upper ? normal(words->z, words->w) : normal(words->x, words->y);
}

#else

#define EACH_AGENT(env, agent)                                                                    \
  for (int first_row = WD_FIRST_ENV * N_AGENTS, end_row = first_row + WD_OWNED_ENVS * N_AGENTS;   \
       first_row < end_row; first_row += WD_TILE)                                                 \
    if (const Normals normals(first_row, end_row, draws, seed, stream); true)                     \
      WD_INDEPENDENT for (int row = 0; row < normals.n_rows; ++row)                               \
        if (const int env = (first_row + row) / N_AGENTS, agent = (first_row + row) % N_AGENTS; true)
#define NORMAL(type) normals.of[type][row]

// The normals of a tile of rows, which are the lanes of SIMD.
struct Normals {
  int n_rows;
  float of[N_TYPES][WD_TILE];

  Normals(const int first_row, const int end_row, const int* const draws, const int* const seed, const int stream)
      : n_rows(wd_min(WD_TILE, end_row - first_row)) {
    if (ARGMAX) return;
    wd_drawn_words<2 * N_TYPES> words;
    words.draw(first_row / WD_TILE, first_row, n_rows, draws, stream, seed);
    for (int type = 0; type < N_TYPES; ++type)
      WD_INDEPENDENT for (int row = 0; row < n_rows; ++row)
        of[type][row] = normal(words.of[2 * type][row], words.of[2 * type + 1][row]);
  }
};

#endif

// ou_state = (1 - damping) ou_state + stddev normal; action = mean + scale ou_state. Not clipped.
// Each of the three numbers is a value times a factor in memory, and one of these two is 1: a captured graph keeps the
// values and reads the factors.
WD_KERNEL(noise)(const float (*mean)[N_AGENTS][N_TYPES], float (*ou_state)[N_AGENTS][N_TYPES],
                 float (*actions)[N_AGENTS][N_TYPES], int* draws, const int* seed, float damping, float stddev,
                 float scale, const float* damping_factor, const float* stddev_factor, const float* scale_factor,
                 int stream, int n_envs) {
  const float decay = 1.f - damping * damping_factor[0];
  const float deviation = stddev * stddev_factor[0], amplitude = scale * scale_factor[0];
  EACH_AGENT(env, agent) {
    for (int type = 0; type < N_TYPES; ++type) {
      const float drawn = NORMAL(type);
      const float state = decay * ou_state[env][agent][type] + deviation * drawn;
      ou_state[env][agent][type] = state;
      actions[env][agent][type] = mean[env][agent][type] + amplitude * state;
    }
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) draws[env] += 1;
}

// action = mean + exp(log_std) normal; not clipped. log_prob and entropy are sums over the action types, in nats.
WD_KERNEL(gaussian)(const float (*mean)[N_AGENTS][N_TYPES], const float (*log_std)[N_TYPES],
                    float (*actions)[N_AGENTS][N_TYPES], int* draws, const int* seed, float* log_prob, float* entropy,
                    int stream, int n_envs) {
  EACH_AGENT(env, agent) {
    float row_log_prob = 0.f, row_entropy = 0.f;
    for (int type = 0; type < N_TYPES; ++type) {
      const float drawn = ARGMAX ? 0.f : NORMAL(type);
      const float centre = mean[env][agent][type], log_deviation = log_std[agent][type];
      actions[env][agent][type] = ARGMAX ? centre : centre + wd_exp(log_deviation) * drawn;
      row_log_prob += (-0.5f * drawn * drawn - log_deviation) - HALF_LOG_TWO_PI;
      row_entropy += log_deviation + HALF_LOG_TWO_PI_E;
    }
    if (LOG_PROB) log_prob[env * N_AGENTS + agent] = row_log_prob;
    if (ENTROPY) entropy[env * N_AGENTS + agent] = row_entropy;
  }
  WD_SYNC();
  if (!ARGMAX) WD_EACH_ENV(local, env) draws[env] += 1;
}

// Uniform in [low, high].
WD_KERNEL(uniform_actions)(const float (*low)[N_TYPES], const float (*high)[N_TYPES],
                           float (*actions)[N_AGENTS][N_TYPES], int* draws, const int* seed, int stream, int n_envs) {
  float* const of_rows = &actions[0][0][0];
  const auto draw = [&](const long long row, const int agent, const int type, const unsigned word) {
    of_rows[row * N_TYPES + type] = wd_between(low[agent][type], high[agent][type], wd_uniform(word));
  };
  wd_each_drawn<N_TYPES>(draws, seed, stream, n_envs, 0u, draw);
  WD_SYNC();
  WD_EACH_ENV(local, env) draws[env] += 1;
}

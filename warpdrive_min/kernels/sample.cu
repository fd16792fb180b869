// Sampler: draws one action per action type for every agent, from probabilities or logits.
//
// Reads distribution, draws, seed, and mask if MASKED; writes actions, log_prob if LOG_PROB, entropy if ENTROPY, and
// adds 1 to the draws of each environment unless ARGMAX. Arrays whose flag is false are never touched.
//
// Rule: weight = p or wd_exp(logit - maximum); 0 where the mask is 0, for NaN, and for p that is negative or subnormal.
// Action: the first whose running sum exceeds uniform * total, never one of weight 0; the first allowed one if every
// weight is 0, then with log_prob and entropy 0. ARGMAX: the first allowed maximum. log_prob and entropy are sums over
// the action types, in nats.
//
// Compiled without contraction always, so that the drawn actions are the same in all languages.
//
// A block takes the rows (categories of one agent) of its environments tile by tile through shared memory: the
// distribution is read once, coalesced, and each row is then worked on in place by one thread.

constexpr float SMALLEST = 1.17549435e-38f;  // the least normal float: smaller weights count as 0
constexpr bool WEIGHED = !ARGMAX || LOG_PROB || ENTROPY;
// Threads on neighbouring rows share a bank two at a time at most; with no padding the copy needs no division.
constexpr int ROW_STRIDE = N_CATEGORIES % 4 ? N_CATEGORIES : N_CATEGORIES + 1;
constexpr bool IN_REGISTERS = N_TYPES == 1 && N_CATEGORIES <= 32;  // else weights take the place of the row
#if defined(__CUDACC__)
#define WD_UNROLL _Pragma("unroll")
constexpr int TILE_FLOATS = 8192;  // 32 KB leave room for seven blocks on one multiprocessor of an H200
static_assert(ROW_STRIDE <= TILE_FLOATS, "sample: N_CATEGORIES must be below 8192; split the action space");
constexpr int TILE_ROWS = THREADS * ROW_STRIDE <= TILE_FLOATS ? THREADS : TILE_FLOATS / ROW_STRIDE;
#else
#define WD_UNROLL _Pragma("GCC unroll 32")
constexpr int TILE_ROWS = ROW_STRIDE >= 8192 ? 1 : wd_min(WD_TILE, 8192 / ROW_STRIDE);
constexpr int TILES = (WD_ITEMS_OF_A_PART + TILE_ROWS - 1) / TILE_ROWS;  // of a block
#endif

struct wd_drawn {
  int action;
  float log_prob, entropy;
};

WD_FN float forbidden() { return wd_float(0xFF800000u); }  // -infinity: never a maximum, weight 0

WD_FN int first_allowed(const int* const mask, const int n) {
  for (int k = 0; MASKED && k < n; ++k)
    if (mask[k]) return k;
  return 0;
}

// Draws from the n entries at `row` and may leave their weights there; `mask` is that of the same entries.
WD_FN wd_drawn draw(float* const row, const int* const mask, const int n, const float uniform) {
  wd_drawn drawn = {-1, 0.f, 0.f};
  float best = forbidden();
  if constexpr (LOGITS || ARGMAX)
    WD_UNROLL
    for (int k = 0; k < n; ++k)
      if (row[k] > best) {
        best = row[k];
        drawn.action = k;
      }
  if constexpr (WEIGHED) {
    float registers[IN_REGISTERS ? N_CATEGORIES : 1];
    float* const weights = IN_REGISTERS ? registers : row;
    float total = 0.f, moment = 0.f;  // moment: sum of weight * log weight
    WD_UNROLL
    for (int k = 0; k < n; ++k) {
      const float entry = LOGITS ? row[k] - best : row[k];
      const float weight = LOGITS ? wd_exp(entry) : entry >= SMALLEST ? entry : 0.f;
      if (ENTROPY && weight > 0.f) moment += weight * (LOGITS ? entry : wd_log(weight));
      total += weight;
      weights[k] = weight;
    }
    if constexpr (!ARGMAX) {
      const float threshold = uniform * total;
      float sum = 0.f;
      bool is_found = false;
      drawn.action = -1;
      WD_UNROLL
      for (int k = 0; k < n; ++k) {
        sum += weights[k];
        const bool is_taken = !is_found & (weights[k] > 0.f);
        drawn.action = is_taken ? k : drawn.action;  // if rounding keeps all sums at the threshold: the last positive
        is_found = is_found | (is_taken & (sum > threshold));
      }
    }
    if (total > 0.f) {
      const float log_total = wd_log(total);
      if (LOG_PROB) {
        float chosen = 0.f;
        WD_UNROLL
        for (int k = 0; k < n; ++k) chosen = k == drawn.action ? weights[k] : chosen;
        drawn.log_prob = wd_log(chosen) - log_total;
      }
      if (ENTROPY) drawn.entropy = log_total - moment / total;
    }
  }
  if (drawn.action < 0) drawn.action = first_allowed(mask, n);
  return drawn;
}

WD_KERNEL(sample)(const float* distribution, const int* mask, int (*actions)[N_AGENTS][N_TYPES], int* draws,
                  const int* seed, float* log_prob, float* entropy, int stream, int n_envs) {
  WD_SHARED float tile[TILE_ROWS * ROW_STRIDE];
  const int first_row = WD_FIRST_ENV * N_AGENTS + WD_FIRST_ITEM;
  const int n_block_rows = wd_min(WD_END_ITEM, (n_envs - WD_FIRST_ENV) * N_AGENTS) - WD_FIRST_ITEM;
  for (int tile_start = 0; tile_start < n_block_rows; tile_start += TILE_ROWS) {
    const int n_rows = wd_min(TILE_ROWS, n_block_rows - tile_start);
    const long long start = static_cast<long long>(first_row + tile_start) * N_CATEGORIES;
    for (int i = WD_THREAD; i < n_rows * N_CATEGORIES; i += WD_STRIDE)
      tile[ROW_STRIDE == N_CATEGORIES ? i : i / N_CATEGORIES * ROW_STRIDE + i % N_CATEGORIES] =
          !MASKED || mask[start + i] ? distribution[start + i] : forbidden();
    WD_SYNC();
#if !defined(__CUDACC__)
    wd_drawn_words<N_TYPES> words;
    if (!ARGMAX) words.draw(WD_BLOCK * TILES + tile_start / TILE_ROWS, first_row + tile_start, n_rows, draws, stream, seed);
#endif
    WD_INDEPENDENT for (int r = WD_THREAD; r < n_rows; r += WD_STRIDE) {
      const int row = first_row + tile_start + r;
      const int env = row / N_AGENTS, agent = row % N_AGENTS;
#if defined(__CUDACC__)
      const unsigned first_word = static_cast<unsigned>(ARGMAX ? 0 : draws[env]) * N_TYPES;
      wd_words words = {0u, 0u, 0u, 0u};
#endif
      float row_log_prob = 0.f, row_entropy = 0.f;
      for (int type = 0, offset = 0; type < N_TYPES; offset += CATEGORIES[type++]) {
#if defined(__CUDACC__)
        const unsigned word = first_word + type;
        if (!ARGMAX && (type == 0 || word % 4u == 0u))
          words = wd_philox(word / 4u, env, agent, stream, seed[0], seed[1]);
        const float uniform = wd_uniform(wd_word(words, static_cast<int>(word % 4u)));
#else
        const float uniform = wd_uniform(words.of[type][r]);
#endif
        const wd_drawn drawn = draw(tile + r * ROW_STRIDE + offset, mask + start + r * N_CATEGORIES + offset,
                                    N_TYPES == 1 ? N_CATEGORIES : CATEGORIES[type], uniform);
        actions[env][agent][type] = drawn.action;
        row_log_prob += drawn.log_prob;
        row_entropy += drawn.entropy;
      }
      if (LOG_PROB) log_prob[row] = row_log_prob;
      if (ENTROPY) entropy[row] = row_entropy;
    }
    WD_SYNC();
  }
  if (!ARGMAX && BLOCKS_PER_ENV == 1) WD_EACH_ENV(local, env) draws[env] += 1;
}

// Counts a draw whose blocks shared an environment, after all have read the count.
WD_KERNEL(count)(int* draws, int n_envs) {
  WD_EACH_ENV(local, env) draws[env] += 1;
}

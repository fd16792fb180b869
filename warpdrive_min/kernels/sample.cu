// Sampler: draws one action per action type for every agent, from probabilities or logits.
//
// Reads distribution, draws, seed, and mask if MASKED; writes actions, log_prob if LOG_PROB, entropy if ENTROPY, and
// adds 1 to the draws of each environment unless ARGMAX. Arrays whose flag is false are never touched.
//
// `choice.cuh` has the rule.
//
// Compiled without contraction always, so that the drawn actions are the same in all languages.
//
// A block takes the rows (categories of one agent) of its environments tile by tile through shared memory: the
// distribution is read once, coalesced, and each row is then worked on in place by one thread.

#include "choice.cuh"

// Threads on neighbouring rows share a bank two at a time at most; with no padding the copy needs no division.
constexpr int ROW_STRIDE = N_CATEGORIES % 4 ? N_CATEGORIES : N_CATEGORIES + 1;
#if defined(__CUDACC__)
constexpr int TILE_FLOATS = 8192;  // 32 KB leave room for seven blocks on one multiprocessor of an H200
static_assert(ROW_STRIDE <= TILE_FLOATS, "sample: N_CATEGORIES must be below 8192; split the action space");
constexpr int TILE_ROWS = THREADS * ROW_STRIDE <= TILE_FLOATS ? THREADS : TILE_FLOATS / ROW_STRIDE;
#else
constexpr int TILE_ROWS = ROW_STRIDE >= 8192 ? 1 : wd_min(WD_TILE, 8192 / ROW_STRIDE);
constexpr int TILES = (WD_ITEMS_OF_A_PART + TILE_ROWS - 1) / TILE_ROWS;  // of a block
#endif

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
          !MASKED || mask[start + i] ? distribution[start + i] : wd_forbidden();
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
        const wd_drawn drawn = wd_draw(tile + r * ROW_STRIDE + offset, mask + start + r * N_CATEGORIES + offset,
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

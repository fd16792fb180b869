// Sampler: draws one action per action type for every agent, from probabilities or logits.
//
// Reads distribution, draws, seed, and mask if MASKED; writes actions, log_prob if LOG_PROB, entropy if ENTROPY, and
// adds 1 to the draws of each environment unless ARGMAX, and to the count of a row for each type of it that is
// impossible. Arrays whose flag is false are never touched.
//
// `choice.cuh` has the rule.
//
// Compiled without contraction always, so that the drawn actions are the same in all languages.
//
// A block takes the rows (categories of one agent) of its environments tile by tile through shared memory: the
// distribution is read once, coalesced, and each row is then worked on in place by one thread. On the CPU a tile is
// transposed: its rows are the lanes of SIMD.

#include "choice.cuh"

#if defined(__CUDACC__)
// Threads on neighbouring rows share a bank two at a time at most; with no padding the copy needs no division.
constexpr int ROW_STRIDE = N_CATEGORIES % 4 ? N_CATEGORIES : N_CATEGORIES + 1;
constexpr int TILE_FLOATS = 8192;  // 32 KB leave room for seven blocks on one multiprocessor of an H200
static_assert(ROW_STRIDE <= TILE_FLOATS, "sample: N_CATEGORIES must be below 8192; split the action space");
constexpr int TILE_ROWS = THREADS * ROW_STRIDE <= TILE_FLOATS ? THREADS : TILE_FLOATS / ROW_STRIDE;
#else
constexpr int LANES = 16;  // rows of a group; those beyond the last row hold zeros
constexpr int TILE_ROWS = N_CATEGORIES <= 64 ? WD_TILE : N_CATEGORIES <= 8192 ? LANES : 1;
constexpr int TILES = (WD_ITEMS_OF_A_PART + TILE_ROWS - 1) / TILE_ROWS;  // of a block
#endif

WD_KERNEL(sample)(const float* distribution, const int* mask, int (*actions)[N_AGENTS][N_TYPES], int* draws,
                  const int* seed, float* log_prob, float* entropy, int* impossible, int stream, int n_envs) {
  const int first_row = WD_FIRST_ENV * N_AGENTS + WD_FIRST_ITEM;
  const int n_block_rows = wd_min(WD_END_ITEM, (n_envs - WD_FIRST_ENV) * N_AGENTS) - WD_FIRST_ITEM;
#if defined(__CUDACC__)
  WD_SHARED float tile[TILE_ROWS * ROW_STRIDE];
  for (int tile_start = 0; tile_start < n_block_rows; tile_start += TILE_ROWS) {
    const int n_rows = wd_min(TILE_ROWS, n_block_rows - tile_start);
    const long long start = static_cast<long long>(first_row + tile_start) * N_CATEGORIES;
    for (int i = WD_THREAD; i < n_rows * N_CATEGORIES; i += WD_STRIDE)
      tile[ROW_STRIDE == N_CATEGORIES ? i : i / N_CATEGORIES * ROW_STRIDE + i % N_CATEGORIES] =
          !MASKED || mask[start + i] ? distribution[start + i] : wd_forbidden();
    WD_SYNC();
    for (int r = WD_THREAD; r < n_rows; r += WD_STRIDE) {
      const int row = first_row + tile_start + r;
      const int env = row / N_AGENTS, agent = row % N_AGENTS;
      const unsigned first_word = static_cast<unsigned>(ARGMAX ? 0 : draws[env]) * N_TYPES;
      wd_words words = {0u, 0u, 0u, 0u};
      float row_log_prob = 0.f, row_entropy = 0.f;
      for (int type = 0, offset = 0; type < N_TYPES; offset += CATEGORIES[type++]) {
        const unsigned word = first_word + type;
        if (!ARGMAX && (type == 0 || word % 4u == 0u))
          words = wd_philox(word / 4u, env, agent, stream, seed[0], seed[1]);
        const float uniform = wd_uniform(wd_word(words, static_cast<int>(word % 4u)));
        const wd_drawn drawn = wd_draw(tile + r * ROW_STRIDE + offset, mask + start + r * N_CATEGORIES + offset,
                                       N_TYPES == 1 ? N_CATEGORIES : CATEGORIES[type], uniform);
        actions[env][agent][type] = drawn.action;
        if (drawn.is_impossible) impossible[row] += 1;
        row_log_prob += drawn.log_prob;
        row_entropy += drawn.entropy;
      }
      if (LOG_PROB) log_prob[row] = row_log_prob;
      if (ENTROPY) entropy[row] = row_entropy;
    }
    WD_SYNC();
  }
#else
  for (int tile_start = 0; tile_start < n_block_rows; tile_start += TILE_ROWS) {
    const int n_rows = wd_min(TILE_ROWS, n_block_rows - tile_start), row = first_row + tile_start;
    const int n_filled = wd_min(TILE_ROWS, (n_rows + LANES - 1) / LANES * LANES);
    const long long start = static_cast<long long>(row) * N_CATEGORIES;
    float tile[N_CATEGORIES][TILE_ROWS] = {};
    for (int k = 0; k < N_CATEGORIES; ++k)
      WD_EACH_ROW(r, n_rows) {
        const float entry = distribution[start + r * N_CATEGORIES + k];
        tile[k][r] = !MASKED || mask[start + r * N_CATEGORIES + k] ? entry : wd_forbidden();
      }
    wd_drawn_words<N_TYPES> words;
    if (!ARGMAX) words.draw(WD_BLOCK * TILES + tile_start / TILE_ROWS, row, n_rows, draws, stream, seed);
    int* const row_actions = &actions[0][0][0] + static_cast<long long>(row) * N_TYPES;
    for (int type = 0, offset = 0; type < N_TYPES; offset += CATEGORIES[type++]) {
      wd_drawn<TILE_ROWS> drawn;
      wd_draw(drawn, tile + offset, CATEGORIES[type], n_filled, words.of[type]);
      int n_impossible = 0;
      WD_EACH_ROW(r, n_rows) {
        row_actions[r * N_TYPES + type] = drawn.action[r];
        n_impossible += drawn.is_impossible[r];
        if (LOG_PROB) log_prob[row + r] = (type == 0 ? 0.f : log_prob[row + r]) + drawn.log_prob[r];
        if (ENTROPY) entropy[row + r] = (type == 0 ? 0.f : entropy[row + r]) + drawn.entropy[r];
      }
      for (int r = 0; n_impossible > 0 && r < n_rows; ++r)
        if (drawn.is_impossible[r]) {
          const int* const row_mask = mask + start + r * N_CATEGORIES + offset;
          row_actions[r * N_TYPES + type] = wd_first_allowed(row_mask, CATEGORIES[type]);
          impossible[row + r] += 1;
        }
    }
  }
#endif
  if (!ARGMAX && BLOCKS_PER_ENV == 1) WD_EACH_ENV(local, env) draws[env] += 1;
}

// Uniform choices, as `sample` draws them from equal weights; it reads none.
WD_KERNEL(uniform_choices)(int (*actions)[N_AGENTS][N_TYPES], int* draws, const int* seed, int stream, int n_envs) {
  int* const of_rows = &actions[0][0][0];
  wd_each_drawn<N_TYPES>(draws, seed, stream, n_envs, 0u, [&](const long long row, int, const int type, const unsigned word) {
    of_rows[row * N_TYPES + type] = wd_choice(word, CATEGORIES[type]);
  });
  WD_SYNC();
  if (BLOCKS_PER_ENV == 1) WD_EACH_ENV(local, env) draws[env] += 1;
}

// Counts a draw whose blocks shared an environment, after all have read the count.
WD_KERNEL(count)(int* draws, int n_envs) {
  WD_EACH_ENV(local, env) draws[env] += 1;
}

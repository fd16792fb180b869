// Step and observation of one agent, for every layout: shared by kernel.cu and spread.cu.
#pragma once

constexpr int RUNNER = N_AGENTS - 1;
constexpr int FAR = 0x7fffffff;  // larger than any squared distance

// Threads per row of the observations.
constexpr int LANES = WD_STRIDE < 32 ? 1 : N_FEATURES > 16 ? 32 : N_FEATURES > 8 ? 16 : 8;
static_assert(WD_STRIDE % LANES == 0, "tag_gridworld: THREADS must be a multiple of 32");

// Moves an agent by a cell; returns the wall's cost as its reward so far.
WD_FN float moved(int& x, int& y, int action) {
  const int new_x = x + (action == 1) - (action == 2);
  const int new_y = y + (action == 3) - (action == 4);
  const bool hits_wall = new_x < 0 || new_x > GRID_LENGTH || new_y < 0 || new_y > GRID_LENGTH;
  x = new_x < 0 ? 0 : wd_min(new_x, GRID_LENGTH);
  y = new_y < 0 ? 0 : wd_min(new_y, GRID_LENGTH);
  return hits_wall ? -WALL_HIT_PENALTY : 0.f;
}

// A minimum in the block's memory. On the CPU no other thread shares it; atomics would make a step of 1,000 agents 1.9
// times as long.
WD_FN void lower(int& least, int value) {
#if defined(__CUDACC__)
  atomicMin(&least, value);
#else
  least = wd_min(least, value);
#endif
}

WD_FN int squared_distance(const int* x, const int* y, int tagger) {
  const int dx = x[tagger] - x[RUNNER], dy = y[tagger] - y[RUNNER];
  return dx * dx + dy * dy;
}

WD_FN float reward(int agent, bool is_tagged) {
  const float for_tagger = is_tagged ? TAG_REWARD : -STEP_COST, for_runner = is_tagged ? -TAG_PENALTY : STEP_COST;
  return agent == RUNNER ? for_runner : for_tagger;
}

// Returns n / LENGTH. The GPU's division has a slow path, which 0 takes; the corrected product is the same number.
template <int LENGTH>
WD_FN float share(int n) {
#if defined(__CUDACC__)
  constexpr float length = LENGTH, inverse = 1.f / length;
  const float whole = static_cast<float>(n), product = whole * inverse;
  return fmaf(fmaf(-product, length, whole), inverse, product);
#else
  return static_cast<float>(n) / static_cast<float>(LENGTH);
#endif
}

// Returns one entry of an observation of `self`; `nearest` is the tagger nearest to the runner, with partial observations.
WD_FN float seen(float progress, int nearest, const int* x, const int* y, int self, int column) {
  if (column == N_FEATURES - 1) return progress;
  if (USE_FULL_OBSERVATION) {
    if (column < 2 * N_AGENTS) return share<GRID_LENGTH>(column < N_AGENTS ? x[column] : y[column - N_AGENTS]);
    return column == 2 * N_AGENTS + RUNNER || column == 3 * N_AGENTS + self ? 1.f : 0.f;
  }
  if (column == 4) return self == RUNNER ? 1.f : 0.f;
  const int agent = column < 2 ? self : self == RUNNER ? nearest : RUNNER;
  return share<GRID_LENGTH>((column % 2 == 0 ? x : y)[agent]);
}

// The forward pass of a network over rows in order. Constants are those of `perceptron_tiles.cuh`, without LEARNS.
#pragma once

#include "perceptron_tiles.cuh"

constexpr int SHARED_FLOATS = AT_WARPS + WARPS * WARP_FLOATS;

// Writes the outputs of rows (n_rows, N_SEEN) to `out` (n_rows, N_OUTPUTS); blocks share the rows.
WD_FN void evaluate_rows(float* const shared, const Layers& layers, const float* const rows, float* const out,
                         const int n_rows) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  load_weights({true, false}, shared, layers);
  float* const mine = shared + AT_WARPS + warp * WARP_FLOATS;
#pragma unroll 1
  for (int n = lane; n < 2 * ROWS * SX; n += LANES) mine[OF_X + n] = n % SX == N_SEEN ? 1.f : 0.f;  // 1: biases
  __syncthreads();
  const int n_tiles = (n_rows + ROWS - 1) / ROWS, by = gridDim.x * WARPS;
  const auto begin = [&](const int stage, const int tile) {
    const long long first = static_cast<long long>(tile) * ROWS * N_SEEN, end = static_cast<long long>(n_rows) * N_SEEN;
    float* const x = mine + OF_X + stage * ROWS * SX;
    if (N_SEEN > LANES) {  // a row after the other: no divisions
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (const long long from = first + r * N_SEEN; from < end)
          copy_row<N_SEEN, LANES, 1>(x + r * SX + lane, rows + from + lane, lane, lane);
      return;
    }
#pragma unroll
    for (int n = lane; n < ROWS * N_SEEN; n += LANES)
      if (first + n < end) wd_copy4(x + n / N_SEEN * SX + n % N_SEEN, rows + first + n);
  };
  int tile = warp * gridDim.x + blockIdx.x, stage = 0;
  if (tile < n_tiles) begin(0, tile);
  wd_end_copies();
#pragma unroll 1
  for (; tile < n_tiles; tile += by, stage ^= 1) {
    if (tile + by < n_tiles) begin(stage ^ 1, tile + by);
    wd_end_copies();
    wd_await_all_but_last();
    __syncwarp();
    float z[T2][4];
    float* const outputs = mine + OF_OUT;
    forward(shared, mine + OF_X + stage * ROWS * SX, outputs, nullptr, lane, z);
    __syncwarp();
    const long long first = static_cast<long long>(tile) * ROWS * N_OUTPUTS, end = static_cast<long long>(n_rows) * N_OUTPUTS;
#pragma unroll 1
    for (int n = lane; n < ROWS * N_OUTPUTS; n += LANES) {
      const int row = n / N_OUTPUTS, column = n % N_OUTPUTS;
      if (first + n < end) out[first + n] = outputs[row * SO + column] + shared[AT_B3 + column];
    }
    __syncwarp();
  }
}

// States and outputs of gated units for sequences. Constants are those of `gated.cuh`, without LEARNS.
#pragma once

#include "gated.cuh"

constexpr int SHARED_FLOATS = FORWARD_FLOATS;

// Writes a tile's states, (sequence, step, agent), unless null, and outputs with biases, by rows of the rollout.
struct Results {
  const Sequences& of;
  const float* shared;
  float *states, *outputs;
  int tile, n_columns;

  WD_METHOD void keep(const Place at, const int step, const float (&)[4][PAIR][4], const float (&h)[PAIR][4]) const {
    if (!states) return;
#pragma unroll
    for (int k = 0; k < 4 * PAIR; ++k) {
      const int q = tile * SEQUENCES + at.row(k / 4, k / 2 % 2), unit = at.unit() + k % 2;
      const long long row = static_cast<long long>(q / N_AGENTS * of.length + step) * N_AGENTS + q % N_AGENTS;
      if (q < of.n && unit < UNITS) states[row * of.state_size + unit] = h[k / 4][k % 4];
    }
  }
  WD_METHOD void output(const int step, const int row, const int column, const float sum) const {
    const int q = tile * SEQUENCES + row;
    if (!outputs || q >= of.n || column >= n_columns) return;
    outputs[of.row(firsts(shared)[row], q, step) * n_columns + column] = sum + shared[AT_B3 + column];
  }
};

WD_FN void evaluate_sequences(float* const shared, const Layers& layers, const Sequences& of, float* const states,
                              float* const outputs) {
  const Part part = {true, false};
  Weights weights;
  load(weights, part, layers, place_of(0));
  for (int n = threadIdx.x; n < N_OUTPUTS; n += WARPS * LANES) shared[AT_B3 + n] = layers.b3[n];
#pragma unroll 1
  for (int tile = blockIdx.x; tile * SEQUENCES < of.n; tile += gridDim.x)
    pass_forward(shared, weights, of, tile, Results{of, shared, states, outputs, tile, N_OUTPUTS});
}

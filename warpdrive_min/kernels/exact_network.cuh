// A network of one or two hidden layers, and its gradients, for a part of the rows; bit-identical to exact.cu's kernels
// layer by layer.
//
// Constants that come before this header: those of exact_layers.cuh, and OF_INPUTS, if the gradient by the inputs is
// computed. A part has N_COLUMNS sums: weights (outputs, inputs) and biases, layer by layer.
#pragma once

#include "exact_layers.cuh"

constexpr int BIASES1 = N_SEEN * HIDDEN1, WEIGHTS2 = BIASES1 + HIDDEN1, BIASES2 = WEIGHTS2 + HIDDEN1 * HIDDEN2;
constexpr int WEIGHTS3 = BIASES2 + HIDDEN2, BIASES3 = WEIGHTS3 + WD_LAST_HIDDEN * N_LAST, N_COLUMNS = BIASES3 + N_LAST;

WD_FN long long entry(const int row, const int width) { return static_cast<long long>(row) * width; }

WD_FN void evaluate_part(const float* const x, const float* const given, float* const out, const int begin, const int end) {
  OF_BLOCK Weights room;
  OF_BLOCK Tile tile;
  const Weights& weights = near(room, given);
#pragma unroll 1
  for (int start = begin; start < end; start += TILE) {
    const int n = wd_min(TILE, end - start);
    bring(tile.seen, n, [&](const int r) { return x + entry(start + r, N_SEEN); });
    MEET();
    pass_forward(weights, tile);
    take(tile.out, n, [&](const int r) { return out + entry(start + r, N_LAST); });
  }
}

WD_FN void pass_part_back(const float* const x, const float* const given, const float* const d_out, float* const part,
                          float* const d_x, const int begin, const int end) {
  OF_BLOCK Weights room;
  OF_BLOCK Tile tile;
  const Weights& weights = near(room, given);
  Gradients gradients;
#pragma unroll 1
  for (int start = begin; start < end; start += TILE) {
    const int n = wd_min(TILE, end - start);
    bring(tile.seen, n, [&](const int r) { return x + entry(start + r, N_SEEN); });
    bring(tile.out, n, [&](const int r) { return d_out + entry(start + r, N_LAST); });
    MEET();
    pass_hidden(weights, tile);
    gradients.template pass_back<OF_INPUTS>(weights, tile);
    if constexpr (OF_INPUTS) {
      take(tile.seen, n, [&](const int r) { return d_x + entry(start + r, N_SEEN); });
      MEET();
    }
  }
  gradients.first.store(part, [](int o, int i) { return o * N_SEEN + i; }, [](int o) { return BIASES1 + o; });
  if constexpr (HIDDEN2 > 0)
    gradients.second.store(part, [](int o, int i) { return WEIGHTS2 + o * HIDDEN1 + i; },
                           [](int o) { return BIASES2 + o; });
  gradients.last.store(part, [](int o, int i) { return WEIGHTS3 + o * WD_LAST_HIDDEN + i; },
                       [](int o) { return BIASES3 + o; });
}

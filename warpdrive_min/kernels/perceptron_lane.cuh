// A perceptron with one thread per row; bit-identical to `linear` in exact.cu, with the same order of operations.
//
// Hidden units of the first layer stay in registers. The weights of the first and the last layer are (inputs, outputs),
// those between (outputs, inputs), and the biases of each layer lie behind its weights: neighbours in memory are used
// together, by all threads of a warp at once.
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2, units of the hidden layers, the latter 0 if there is
// one; IS_TANH.
#pragma once

#include "units.cuh"

constexpr int WD_UNITS_AT_ONCE = HIDDEN2 % 4 ? 1 : 4;  // of the second layer, whose sums do not wait for each other

WD_FN constexpr int wd_network_floats(const int n_outputs) {
  return (N_SEEN + 1) * HIDDEN1 + (HIDDEN2 ? (HIDDEN1 + 1) * HIDDEN2 : 0) + (WD_LAST_HIDDEN + 1) * n_outputs;
}

// Adds a unit of the last hidden layer to all outputs.
template <int N_OUTPUTS>
WD_FN void wd_add_unit(float (&sums)[N_OUTPUTS], const float unit, const float* const weights) {
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) sums[o] = fmaf(unit, weights[o], sums[o]);
}

template <int N_OUTPUTS>
WD_FN void wd_evaluate_row(const float* const weights, const float* const seen, float* const out) {
  const float* const biases = weights + N_SEEN * HIDDEN1;
  const float* const second = biases + HIDDEN1;
  const float* const second_biases = second + HIDDEN2 * HIDDEN1;
  const float* const last = second_biases + HIDDEN2;
  float hidden[HIDDEN1], sums[N_OUTPUTS];
#pragma unroll
  for (int n = 0; n < HIDDEN1; ++n) hidden[n] = biases[n];
#pragma unroll 1
  for (int i = 0; i < N_SEEN; ++i) {
    const float number = seen[i];
#pragma unroll
    for (int n = 0; n < HIDDEN1; ++n) hidden[n] = fmaf(number, weights[i * HIDDEN1 + n], hidden[n]);
  }
#pragma unroll
  for (int n = 0; n < HIDDEN1; ++n) hidden[n] = wd_unit(hidden[n]);
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) sums[o] = last[WD_LAST_HIDDEN * N_OUTPUTS + o];
  if constexpr (HIDDEN2 == 0) {
#pragma unroll
    for (int n = 0; n < HIDDEN1; ++n) wd_add_unit(sums, hidden[n], last + n * N_OUTPUTS);
  } else {
#pragma unroll 1
    for (int first = 0; first < HIDDEN2; first += WD_UNITS_AT_ONCE) {
      float units[WD_UNITS_AT_ONCE];
#pragma unroll
      for (int n = 0; n < WD_UNITS_AT_ONCE; ++n) units[n] = second_biases[first + n];
#pragma unroll
      for (int i = 0; i < HIDDEN1; ++i)
#pragma unroll
        for (int n = 0; n < WD_UNITS_AT_ONCE; ++n)
          units[n] = fmaf(hidden[i], second[(first + n) * HIDDEN1 + i], units[n]);
#pragma unroll
      for (int n = 0; n < WD_UNITS_AT_ONCE; ++n)
        wd_add_unit(sums, wd_unit(units[n]), last + (first + n) * N_OUTPUTS);
    }
  }
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) out[o] = sums[o];
}

// Warps of fibres that evaluate gated units as a GPU's matrix units do.
#include "matrix_units_by_fibres.cuh"

#include "gated_evaluate.cuh"

__global__ void evaluate(float* room, const float* w1, const float* b1, const float* wi, const float* bi, const float* wh,
                         const float* bh, const float* w3, const float* b3, const float* observations,
                         const float* states, const int* begins, const int* indices, float* next_states, float* outputs,
                         int n, int length, int n_envs, int state_size, int offset, int has_rows) {
  const Sequences of = {observations, states + offset, has_rows ? begins : nullptr, has_rows ? indices : nullptr,
                        n, length, n_envs, state_size};
  evaluate_sequences(room + blockIdx.x * SHARED_FLOATS, {w1, b1, wi, bi, wh, bh, w3, b3, nullptr, nullptr}, of,
                     next_states + offset, outputs);
}

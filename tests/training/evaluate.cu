// Warps of fibres that evaluate a network as a GPU's matrix units do.
#include "matrix_units_by_fibres.cuh"

#include "evaluate.cuh"

__global__ void evaluate(float* room, const float* w1, const float* b1, const float* w2, const float* b2, const float* w3,
                         const float* b3, const float* x, float* out, int n_rows) {
  evaluate_rows(room + blockIdx.x * SHARED_FLOATS, {w1, b1, w2, b2, w3, b3, nullptr, nullptr}, x, out, n_rows);
}

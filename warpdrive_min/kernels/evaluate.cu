// Outputs of a network for rows in order, on a GPU; see `perceptron_tiles.cuh`.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 2) name

#include "evaluate.cuh"

static_assert(SHARED_BYTES == 4 * SHARED_FLOATS, "as computed in Python");

extern __shared__ float4 room[];

WD_KERNEL(evaluate)(const float* w1, const float* b1, const float* w2, const float* b2, const float* w3, const float* b3,
                    const float* x, float* out, int n_rows) {
  evaluate_rows(reinterpret_cast<float*>(room), {w1, b1, w2, b2, w3, b3, nullptr, nullptr}, x, out, n_rows);
}

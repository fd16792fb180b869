// States and outputs of gated units on a GPU; see `gated.cuh`.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "gated_evaluate.cuh"

static_assert(SHARED_BYTES == 4 * SHARED_FLOATS, "as computed in Python");

extern __shared__ float4 room[];

// `begins`, `indices`, `next_states` and `outputs` may be null.
WD_KERNEL(evaluate)(const float* w1, const float* b1, const float* wi, const float* bi, const float* wh, const float* bh,
                    const float* w3, const float* b3, const float* observations, const float* states, const int* begins,
                    const int* indices, float* next_states, float* outputs, int n, int length, int n_envs, int state_size,
                    int offset) {
  const Sequences of = {observations, states + offset, begins, indices, n, length, n_envs, state_size};
  evaluate_sequences(reinterpret_cast<float*>(room), {w1, b1, wi, bi, wh, bh, w3, b3, nullptr, nullptr}, of,
                     next_states ? next_states + offset : nullptr, outputs);
}

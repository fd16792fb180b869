// Loss and gradients of a minibatch of sequences on a GPU; see `gated_learn.cuh`.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "gated_learn.cuh"

static_assert(SHARED_BYTES == 4 * SHARED_FLOATS, "as computed in Python");

extern __shared__ float4 room[];

// Arrays may be null: `values`, `weights` and `masks`. `kept` has `STEP_FLOATS` for each step and block.
WD_KERNEL(learn)(const float* parameters, const int* places, const float* observations, const float* states,
                 const int* begins, const int* actions, const float* log_probs, const float* returns,
                 const float* advantages, const float* old_values, const int* masks, const float* weights,
                 const int* indices, const float* vf_loss_coeff, const float* entropy_coeff, const float* clip_param,
                 float* values, float* kept, float* partial, int n, int length, int n_envs, int state_size,
                 int n_parameters, int is_taken) {
  const Sequences of = {observations, states, begins, indices, n, length, n_envs, state_size};
  const Rollout rollout = {observations, log_probs, returns, advantages, old_values, weights, actions, masks, indices,
                           values, n * length, is_taken != 0};
  const int block = blockIdx.z * gridDim.x + blockIdx.x;
  learn_part(reinterpret_cast<float*>(room), IS_SHARED ? 1 : blockIdx.z, parameters, places, of, rollout,
             {*vf_loss_coeff, *entropy_coeff, *clip_param},
             kept + static_cast<long long>(block) * length * STEP_FLOATS,
             partial + static_cast<long long>(blockIdx.x) * (n_parameters + N_TERMS), n_parameters);
}

WD_KERNEL(add_up)(const float* partial, const float* total, float* gradient, float* terms, int n_partial, int n_parameters) {
  __shared__ float shared[GROUPS][COLUMNS];
  add_rows(shared, partial, n_partial, n_parameters, *total, gradient, terms);
}

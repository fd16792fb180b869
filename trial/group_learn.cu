// Loss and gradients of a minibatch by groups of four warps; see `group_learn.cuh`. Members of a population are the grid's
// second axis, and the first axis of parameters, minibatches, coefficients and gradients.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "group_learn.cuh"

static_assert(SHARED_BYTES == SHARED_NEEDED, "as computed in Python");

extern __shared__ __align__(1024) Byte room[];

// Arrays may be null: `values` and `weights` always, `indices` and `advantages` for rows in order and returns - values.
WD_KERNEL(learn)(const float* parameters, const int* places, const float* observations, const int* actions,
                 const float* log_probs, const float* returns, const float* advantages, const float* old_values,
                 const int* masks, const float* weights, const int* indices, const float* vf_loss_coeff,
                 const float* entropy_coeff, const float* clip_param, float* values, float* partial, int n_rows,
                 int n_parameters, int is_taken) {
  const Rollout rows = {observations, log_probs, returns, advantages, old_values, weights, actions, masks,
                        indices,      values,    n_rows,  is_taken != 0};
  learn_part(room, {parameters, places, rows, vf_loss_coeff, entropy_coeff, clip_param, partial, n_parameters});
}

WD_KERNEL(add_up)(const float* partial, const float* total, float* gradient, float* terms, int n_partial, int n_parameters) {
  __shared__ float shared[GROUPS][COLUMNS];
  const long long member = blockIdx.y;
  add_rows(shared, partial + member * n_partial * (n_parameters + N_TERMS), n_partial, n_parameters, *total,
           gradient + member * n_parameters, terms);
}

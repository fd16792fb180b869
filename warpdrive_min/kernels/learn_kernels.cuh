// Kernels `learn` and `add_up` around a header's `learn_part`. Members of a population are the grid's second axis, and the
// first axis of parameters, minibatches, coefficients and gradients.
#pragma once

static_assert(SHARED_BYTES == 4 * SHARED_FLOATS, "as computed in Python");

extern __shared__ float4 room[];

// Arrays may be null: `values` and `weights` always, `indices` and `advantages` for rows in order and returns - values.
WD_KERNEL(learn)(const float* parameters, const int* places, const float* observations, const int* actions,
                 const float* log_probs, const float* returns, const float* advantages, const float* old_values,
                 const int* masks, const float* weights, const int* indices, const float* vf_loss_coeff,
                 const float* entropy_coeff, const float* clip_param, float* values, float* partial, int n_rows,
                 int n_parameters, int is_taken) {
  const long long member = blockIdx.y;
  const Rule rule = {vf_loss_coeff[member], entropy_coeff[member], clip_param[member]};
  const Rollout rollout = {observations, log_probs, returns,
                           is_taken ? advantages + member * n_rows : advantages,
                           old_values, weights, actions, masks,
                           indices ? indices + member * (n_rows / N_AGENTS) : nullptr,
                           values, n_rows, is_taken != 0};
  float* const to = partial + (member * gridDim.x + blockIdx.x) * (n_parameters + N_TERMS);
  learn_part(reinterpret_cast<float*>(room), parameters + member * n_parameters, places, rollout, rule, to, n_parameters);
}

WD_KERNEL(add_up)(const float* partial, const float* total, float* gradient, float* terms, int n_partial, int n_parameters) {
  __shared__ float shared[GROUPS][COLUMNS];
  const long long member = blockIdx.y;
  add_rows(shared, partial + member * n_partial * (n_parameters + N_TERMS), n_partial, n_parameters, *total,
           gradient + member * n_parameters, terms);
}

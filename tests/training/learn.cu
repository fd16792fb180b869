// Warps of fibres that learn as a GPU's matrix units do.
#include "matrix_units_by_fibres.cuh"

#include "learn.cuh"

__global__ void learn(float* room, const float* parameters, const int* places, const float* observations,
                      const int* actions, const float* log_probs, const float* returns, const float* advantages,
                      const float* old_values, const int* masks, const float* weights, const int* indices,
                      const float* coefficients, float* values, float* partial, int n_rows, int n_parameters, int has) {
  const auto given = [&](const int bit, const auto* const array) { return has & bit ? array : nullptr; };
  const Rollout rollout = {observations, log_probs, returns, given(1, advantages), old_values, given(2, weights),
                           actions, masks, given(4, indices), has & 8 ? values : nullptr, n_rows, (has & 16) != 0};
  const Rule rule = {coefficients[0], coefficients[1], coefficients[2]};
  float* const to = partial + blockIdx.x * (n_parameters + N_TERMS);
  learn_part(room + blockIdx.x * SHARED_FLOATS, parameters, places, rollout, rule, to, n_parameters);
}

__global__ void add_up(float (*room)[GROUPS][COLUMNS], const float* partial, const float* total, float* gradient,
                       float* terms, int n_partial, int n_parameters) {
  add_rows(room[blockIdx.x], partial, n_partial, n_parameters, *total, gradient, terms);
}

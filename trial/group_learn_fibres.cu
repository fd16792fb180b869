// Groups of warps of fibres.
#include "warp_groups_by_fibres.cuh"

#include "group_learn.cuh"

__global__ void learn(float* room, const float* parameters, const int* places, const float* observations,
                      const int* actions, const float* log_probs, const float* returns, const float* advantages,
                      const float* old_values, const int* masks, const float* weights, const int* indices,
                      const float* coefficients, float* values, float* partial, int n_rows, int n_parameters, int has) {
  const auto given = [&](const int bit, const auto* const array) { return has & bit ? array : nullptr; };
  const Rollout rollout = {observations, log_probs, returns, given(1, advantages), old_values, given(2, weights),
                           actions, masks, given(4, indices), has & 8 ? values : nullptr, n_rows, (has & 16) != 0};
  Byte* const own = reinterpret_cast<Byte*>(room) + blockIdx.x * SHARED_NEEDED;
  wd_room = own;
  learn_part(own, {parameters, places, rollout, coefficients, coefficients + 1, coefficients + 2, partial, n_parameters});
}

__global__ void add_up(float (*room)[GROUPS][COLUMNS], const float* partial, const float* total, float* gradient,
                       float* terms, int n_partial, int n_parameters) {
  add_rows(room[blockIdx.x], partial, n_partial, n_parameters, *total, gradient, terms);
}

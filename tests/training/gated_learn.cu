// Warps of fibres that learn from sequences as a GPU's matrix units do.
#include "matrix_units_by_fibres.cuh"

#include "gated_learn.cuh"

__global__ void learn(float* room, const float* parameters, const int* places, const float* observations,
                      const float* states, const int* begins, const int* actions, const float* log_probs,
                      const float* returns, const float* advantages, const float* old_values, const int* masks,
                      const float* weights, const int* indices, const float* coefficients, float* values, float* kept,
                      float* partial, int n, int length, int n_envs, int state_size, int n_parameters, int has, int network) {
  const Sequences of = {observations, states, begins, indices, n, length, n_envs, state_size};
  const Rollout rollout = {observations, log_probs, returns, advantages, old_values, has & 1 ? weights : nullptr,
                           actions, masks, indices, values, n * length, (has & 2) != 0};
  const int block = blockIdx.x;
  learn_part(room + block * SHARED_FLOATS, network, parameters, places, of, rollout,
             {coefficients[0], coefficients[1], coefficients[2]}, kept + block * length * STEP_FLOATS,
             partial + blockIdx.x * (n_parameters + N_TERMS), n_parameters);
}

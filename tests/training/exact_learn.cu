// The kernel `learn` of exact_learn.cu as a GPU runs it: blocks of threads, which are fibres.
#include "exact_learn.cuh"

__global__ void learn(const float* observations, const int* indices, const int* choices, const int* mask, const float* drawn,
                      const float* log_std, const float* log_probs, const float* old_values, const float* returns, const float* advantages,
                      float* values, const float* weights, const float* total, const float* value_weight,
                      const float* entropy_weight, float* parts, int first, int n_rows, int rows_of_a_part, int n_envs) {
  const Rollout rollout = {observations, indices,    choices, mask,       drawn, log_std,
                           log_probs,    old_values, returns, advantages, values};
  const int block = static_cast<int>(blockIdx.x), begin = block * rows_of_a_part;
  learn_part(rollout, {total[0], value_weight[0], entropy_weight[0]}, weights, first + begin,
             first + wd_min(begin + rows_of_a_part, n_rows), parts + static_cast<long long>(block) * N_COLUMNS);
}

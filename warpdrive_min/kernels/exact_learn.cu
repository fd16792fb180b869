// Loss and gradients of a minibatch by parts of its rows, a block each; see `exact_learn.cuh`.
//
// Item q of the minibatch, from `first` on, is an agent's row. `weights` are in the order of the struct of that name.
#include "exact_learn.cuh"

WD_KERNEL(learn)(const float* observations, const int* indices, const int* choices, const int* mask, const float* drawn,
                 const float* log_std, const float* log_probs, const float* old_values, const float* returns,
                 const float* advantages, float* values, const float* weights, const float* total, const float* value_weight,
                 const float* entropy_weight, float* parts, int first, int n_rows, int rows_of_a_part, int n_envs) {
  const Rollout rollout = {observations, indices,    choices, mask,       drawn, log_std,
                           log_probs,    old_values, returns, advantages, values};
  const Scale scale = {total[0], value_weight[0], entropy_weight[0]};
  const int begin = WD_BLOCK * rows_of_a_part, end = wd_min(begin + rows_of_a_part, n_rows);
  learn_part(rollout, scale, weights, first + begin, first + end, parts + static_cast<long long>(WD_BLOCK) * N_COLUMNS);
}

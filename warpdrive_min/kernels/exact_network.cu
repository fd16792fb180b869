// A network and its gradients by parts of the rows, a block each; see `exact_network.cuh`.
#include "exact_network.cuh"

WD_KERNEL(evaluate)(const float* x, const float* weights, float* out, int n_rows, int rows_of_a_part, int n_envs) {
  const int begin = WD_BLOCK * rows_of_a_part;
  evaluate_part(x, weights, out, begin, wd_min(begin + rows_of_a_part, n_rows));
}

WD_KERNEL(pass_back)(const float* x, const float* weights, const float* d_out, float* parts, float* d_x, int n_rows,
                     int rows_of_a_part, int n_envs) {
  const int begin = WD_BLOCK * rows_of_a_part, end = wd_min(begin + rows_of_a_part, n_rows);
  pass_part_back(x, weights, d_out, parts + entry(WD_BLOCK, N_COLUMNS), d_x, begin, end);
}

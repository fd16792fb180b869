// The kernels of exact_network.cu as a GPU runs them: blocks of threads, which are fibres.
#include "exact_network.cuh"

__global__ void evaluate(const float* x, const float* weights, float* out, int n_rows, int rows_of_a_part, int n_envs) {
  const int begin = static_cast<int>(blockIdx.x) * rows_of_a_part;
  evaluate_part(x, weights, out, begin, wd_min(begin + rows_of_a_part, n_rows));
}

__global__ void pass_back(const float* x, const float* weights, const float* d_out, float* parts, float* d_x, int n_rows,
                          int rows_of_a_part, int n_envs) {
  const int begin = static_cast<int>(blockIdx.x) * rows_of_a_part, end = wd_min(begin + rows_of_a_part, n_rows);
  pass_part_back(x, weights, d_out, parts + entry(static_cast<int>(blockIdx.x), N_COLUMNS), d_x, begin, end);
}

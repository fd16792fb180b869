// Threads that evaluate a perceptron for a row each.

#include "perceptron_lane.cuh"

__global__ void evaluate(const float* weights, float (*in)[N_SEEN], float (*out)[N_OUTPUTS]) {
  wd_evaluate_row<N_OUTPUTS>(weights, in[threadIdx.x], out[threadIdx.x]);
}

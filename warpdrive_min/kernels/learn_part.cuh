// Both networks' gradients, around a header's `learn_network`.
#pragma once

// A block's row of `partial`: gradients at their places, then the terms. Blocks (x, member, z): with separate networks and
// a grid of two along z, a block has one network, else both.
WD_FN void learn_part(float* const shared, const float* const parameters, const int* const places, const Rollout& rollout,
                      const Rule& rule, float* const to, const int n_parameters) {
#pragma unroll 1
  for (int network = IS_SHARED ? 1 : blockIdx.z; network < 2; network += gridDim.z) {  // the value's network is first
    const int* const of = places + 8 * network;
    const Places at = {of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]};
    const Part part = {IS_SHARED || network == 1, IS_SHARED || network == 0};
    learn_network(part, shared, parameters, at, rollout, rule, to, n_parameters);
  }
}

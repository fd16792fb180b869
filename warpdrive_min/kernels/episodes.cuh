// A network that plays one whole episode in each environment of a block, greedily.
//
// Outputs and choices are those of `evaluate.cu` and `sample.cu`, to the bit. Weights, rows and sums stay in shared memory.
//
// Constants that come before this header: those of `choice.cuh`, of one type; N_SEEN; HIDDEN1, HIDDEN2; N_OUTPUTS; IS_TANH;
// TF32.
#pragma once

#include "choice.cuh"

namespace wd_network {

constexpr bool LEARNS = false, IN_PARTS = false, IS_SHARED = false;
constexpr int SHARING = 1;
constexpr int WARPS = wd_min(THREADS / 32, 4);  // that act; weights and their rows fit into a block's static shared memory

#include "perceptron_tiles.cuh"

}  // namespace wd_network

struct WD_ALIGN(16) wd_player {
  float room[wd_network::AT_WARPS + wd_network::WARPS * wd_network::WARP_FLOATS];
  float sums[ENVS_PER_BLOCK][N_AGENTS];  // of rewards
  int steps[ENVS_PER_BLOCK], is_over[ENVS_PER_BLOCK];

  // All threads of a block must call each method.
  WD_METHOD void begin(const wd_network::Layers& layers) {
    using namespace wd_network;
    if (WD_THREAD < WARPS * LANES) {
      load_weights({true, false}, room, layers);
      for (int n = WD_THREAD % LANES; n < 2 * ROWS * SX; n += LANES)
        own()[OF_X + n] = n % SX == N_SEEN ? 1.f : 0.f;  // 1: biases
    }
    for (int n = WD_THREAD; n < ENVS_PER_BLOCK * N_AGENTS; n += WD_STRIDE) sums[n / N_AGENTS][n % N_AGENTS] = 0.f;
    for (int n = WD_THREAD; n < ENVS_PER_BLOCK; n += WD_STRIDE) steps[n] = is_over[n] = 0;
  }

  // Writes the likeliest actions for observations (n_envs, N_AGENTS, N_SEEN); 0 where outputs are impossible.
  WD_METHOD void act(const float* const seen, int* const actions, const int n_envs) {
    using namespace wd_network;
    const int lane = WD_THREAD % LANES, warp = WD_THREAD / LANES;
    const int n_rows = wd_min(ENVS_PER_BLOCK, n_envs - WD_FIRST_ENV) * N_AGENTS;
    const long long first_row = static_cast<long long>(WD_FIRST_ENV) * N_AGENTS;
    if (warp >= WARPS) return;
#pragma unroll 1
    for (int first = warp * ROWS; first < n_rows; first += WARPS * ROWS) {
      const float* const from = seen + (first_row + first) * N_SEEN;
      float* const x = own() + OF_X;
      float* const outputs = own() + OF_OUT;
      for (int n = lane; n < wd_min(ROWS, n_rows - first) * N_SEEN; n += LANES) x[n / N_SEEN * SX + n % N_SEEN] = from[n];
      __syncwarp();
      float z[T2][4];
      forward(room, x, outputs, nullptr, lane, z);
      __syncwarp();
      if (lane < ROWS && first + lane < n_rows) {
        float row[N_OUTPUTS];
#pragma unroll
        for (int k = 0; k < N_OUTPUTS; ++k) row[k] = outputs[lane * SO + k] + room[AT_B3 + k];
        actions[first_row + first + lane] = wd_draw(row, nullptr, N_OUTPUTS, 0.f).action;
      }
      __syncwarp();
    }
  }

  // Adds the rewards of a step, up to the end of each episode; true if all of the block are over.
  WD_METHOD bool note(const float (*const rewards)[N_AGENTS], const int* const done, const int n_envs) {
    WD_EACH_AGENT(local, env, agent) if (!is_over[local]) sums[local][agent] += rewards[env][agent];
    WD_SYNC();
    bool goes_on = false;
    WD_EACH_ENV(local, env) {
      steps[local] += !is_over[local];
      is_over[local] |= done[env] != 0;
      goes_on |= !is_over[local];
    }
    return !__syncthreads_or(goes_on);
  }

  WD_METHOD void end(float (*const returns)[N_AGENTS], float* const lengths, const int n_envs) const {
    WD_EACH_AGENT(local, env, agent) returns[env][agent] = sums[local][agent];
    WD_EACH_ENV(local, env) lengths[env] = static_cast<float>(steps[local]);
  }

 private:
  WD_METHOD float* own() { return room + wd_network::AT_WARPS + WD_THREAD / 32 * wd_network::WARP_FLOATS; }
};

// A2C's and PPO's loss of a minibatch and its gradients, in one pass over the rows; bit-identical to the kernels of exact.cu
// and exact_loss.cu called one after the other.
//
// A block has a part of the rows. It passes a tile of them forward, through the loss and back. It adds the gradients of the
// weights to its own sums, in the order of the rows; no row is written to memory. `add_parts` adds the blocks' sums.
//
// Constants that come before this header: those of exact_loss.cuh, and of exact_layers.cuh but for N_LAST; HAS_POLICY and
// HAS_VALUE, which outputs the network has, the value last; AGENTS of each environment; IS_DEALT, if `indices` says which
// rows (step, environment) are taken; ADVANTAGES, how these are given; STORES, if `values` gets the network's; N_COLUMNS,
// numbers of a part: the gradient of all parameters and the terms behind it; PLACE_..., where weights lie in it: of the
// layers, W3 and B3 of the policy's outputs, V3 and C3 of the value. Unless DISCRETE also FACTOR and CENTRE of the bounds of
// means, and PLACE_LOG_STD.
#pragma once

#include "exact_loss.cuh"

constexpr int FROM_VALUES = 0, OF_ROWS = 1, OF_ITEMS = 2;  // ADVANTAGES: returns - values; by row; by place in the minibatch
constexpr int N_SUMS = N_TERMS + (DISCRETE ? 0 : N_TYPES);  // of a row: terms, and the gradient by log_std
constexpr int N_HEAD = HAS_POLICY ? N_OUTPUTS : 0, N_LAST = N_HEAD + (HAS_VALUE ? 1 : 0);

#include "exact_layers.cuh"

struct Rollout {
  const float* observations;
  const int *indices, *choices, *mask;
  const float *drawn, *log_std, *log_probs, *old_values, *returns, *advantages;
  float* values;

  WD_METHOD long long row(const int item) const {
    return IS_DEALT ? static_cast<long long>(indices[item / AGENTS]) * AGENTS + item % AGENTS : item;
  }

  // Loss of an item from the network's outputs: gradients by the outputs, and terms to sum.
  WD_METHOD void learn(const int item, const Scale& scale, const float* const out, float* const d_out,
                       float* const sums) const {
    const long long at = row(item);
    const float value = HAS_VALUE ? out[N_HEAD] : ADVANTAGES == FROM_VALUES ? values[at] : 0.f;
    const float advantage =
        ADVANTAGES == OF_ITEMS ? advantages[item] : ADVANTAGES == OF_ROWS ? advantages[at] : returns[at] - value;
    const Row of = {choices + (DISCRETE ? at * N_TYPES : 0), drawn + (DISCRETE ? 0 : at * N_TYPES),
                    mask + (MASKED ? at * N_OUTPUTS : 0),    log_std,
                    log_probs[at],                           advantage,
                    returns[at],                             VALUE_CLIPPED ? old_values[at] : 0.f};
    if constexpr (HAS_POLICY && DISCRETE) loss_of_policy(of, scale, out, d_out, nullptr, sums);
    if constexpr (HAS_POLICY && !DISCRETE) {
      float y[N_OUTPUTS], means[N_OUTPUTS];
      for (int j = 0; j < N_OUTPUTS; ++j) {
        y[j] = wd_tanh(out[j]);
        means[j] = FACTOR * y[j] + CENTRE;
      }
      loss_of_policy(of, scale, means, d_out, sums + N_TERMS, sums);
      for (int j = 0; j < N_OUTPUTS; ++j) d_out[j] = (d_out[j] * FACTOR) * (1.f - y[j] * y[j]);
    }
    if constexpr (HAS_VALUE) {
      d_out[N_HEAD] = loss_of_value(of, scale, value, sums);
      if (STORES) values[at] = value;
    }
  }
};

// Indices in the gradient: of a weight of the last layer, of its biases, and of the sums over rows.
WD_FN int place_of_last(const int o, const int i) {
  return HAS_VALUE && o == N_HEAD ? PLACE_V3 + i : PLACE_W3 + o * WD_LAST_HIDDEN + i;
}
WD_FN int place_of_last_bias(const int o) { return HAS_VALUE && o == N_HEAD ? PLACE_C3 : PLACE_B3 + o; }
WD_FN int place_of_sum(const int i) { return i < N_TERMS ? N_COLUMNS - N_TERMS + i : PLACE_LOG_STD + i - N_TERMS; }
WD_FN bool is_own_sum(const int i) { return i == 1 ? HAS_VALUE : HAS_POLICY; }

WD_FN void learn_part(const Rollout& rollout, const Scale& scale, const float* const given, const int begin,
                      const int end, float* const part) {
  OF_BLOCK Weights room;
  OF_BLOCK Tile tile;
  OF_BLOCK Numbers<N_SUMS> of_rows;
  const Weights& weights = near(room, given);
  Gradients gradients;
  float sums[(N_SUMS + N_THREADS - 1) / N_THREADS] = {};
#pragma unroll 1
  for (int start = begin; start < end; start += TILE) {
    const int n = wd_min(TILE, end - start);
    bring(tile.seen, n, [&](const int r) { return rollout.observations + rollout.row(start + r) * N_SEEN; });
    MEET();
    pass_forward(weights, tile);
    EACH_ROW(r) {
      float out[N_LAST], d_out[N_LAST] = {}, own[N_SUMS] = {};
#pragma unroll
      for (int o = 0; o < N_LAST; ++o) out[o] = tile.out.at(r, o);
      if (r < n) rollout.learn(start + r, scale, out, d_out, own);
#pragma unroll
      for (int o = 0; o < N_LAST; ++o) tile.out.at(r, o) = d_out[o];
#pragma unroll
      for (int i = 0; i < N_SUMS; ++i) of_rows.at(r, i) = own[i];
    }
    MEET();
    for (int i = THREAD, k = 0; i < N_SUMS; i += N_THREADS, ++k)
      for (int r = 0; r < TILE; ++r) sums[k] += of_rows.at(r, i);
    gradients.pass_back<false>(weights, tile);
  }
  gradients.first.store(part, [](int o, int i) { return PLACE_W1 + o * N_SEEN + i; }, [](int o) { return PLACE_B1 + o; });
  if constexpr (HIDDEN2 > 0)
    gradients.second.store(part, [](int o, int i) { return PLACE_W2 + o * HIDDEN1 + i; },
                           [](int o) { return PLACE_B2 + o; });
  gradients.last.store(part, [](int o, int i) { return place_of_last(o, i); }, [](int o) { return place_of_last_bias(o); });
  for (int i = THREAD, k = 0; i < N_SUMS; i += N_THREADS, ++k)
    if (is_own_sum(i)) part[place_of_sum(i)] = sums[k];
}

// A2C's and PPO's loss of a minibatch and its gradients, in one pass over the rows: to the bits of `linear`, `loss`,
// `linear_weights`, `linear_inputs` and `part_sums` one after the other, whose rows and sums are the same (exact.cu).
//
// A block has a part of the rows. It passes a tile of them forward, through the loss and back, and adds what each weight
// gets of them to a sum of its own, in the order of the rows; nothing of a row leaves the chip. `add_parts` adds up the
// parts.
//
// Constants that come before this header: those of exact_loss.cuh, of choices; N_SEEN; HIDDEN1, HIDDEN2, units of the hidden
// layers, the latter 0 if there is one; IS_TANH, else relu; HAS_POLICY and HAS_VALUE, which outputs the network has, the
// value last; AGENTS of each environment; IS_DEALT, if `indices` says which rows (step, environment) are taken;
// ADVANTAGES, how these are given; STORES, if `values` gets the network's; N_COLUMNS, numbers of a part: the gradient of
// all parameters and the terms behind it; PLACE_..., where weights lie in it: of the layers, W3 and B3 of the policy's
// outputs, V3 and C3 of the value.
#pragma once

#include "exact_loss.cuh"

constexpr int FROM_VALUES = 0, OF_ROWS = 1, OF_ITEMS = 2;  // ADVANTAGES: returns - values; by row; by place in the minibatch
constexpr int N_HEAD = HAS_POLICY ? N_OUTPUTS : 0, N_LAST = N_HEAD + (HAS_VALUE ? 1 : 0);
constexpr int LAST_UNITS = HIDDEN2 ? HIDDEN2 : HIDDEN1;

#if defined(__CUDACC__)
#define WD_METHOD __device__ __forceinline__
#else
#define WD_METHOD __attribute__((always_inline)) inline
#endif

WD_FN float unit(const float sum) { return IS_TANH ? wd_tanh(sum) : sum < 0.f ? 0.f : sum; }  // NaN stays NaN
WD_FN float unit_slope(const float y) { return IS_TANH ? 1.f - y * y : y <= 0.f ? 0.f : 1.f; }

struct Rollout {
  const float* observations;
  const int *indices, *choices, *mask;
  const float *log_probs, *old_values, *returns, *advantages;
  float* values;

  WD_METHOD long long row(const int item) const {
    return IS_DEALT ? static_cast<long long>(indices[item / AGENTS]) * AGENTS + item % AGENTS : item;
  }

  // Loss of an item by what the network puts out of it: gradients by that, and terms.
  WD_METHOD void learn(const int item, const Scale& scale, const float* const out, float* const d_out,
                       float* const terms) const {
    const long long at = row(item);
    const float value = HAS_VALUE ? out[N_HEAD] : ADVANTAGES == FROM_VALUES ? values[at] : 0.f;
    const float advantage =
        ADVANTAGES == OF_ITEMS ? advantages[item] : ADVANTAGES == OF_ROWS ? advantages[at] : returns[at] - value;
    const Row of = {choices + at * N_TYPES, nullptr,      mask + (MASKED ? at * N_OUTPUTS : 0),   nullptr,
                    log_probs[at],          advantage,    returns[at],  VALUE_CLIPPED ? old_values[at] : 0.f};
    for (int term = 0; term < N_TERMS; ++term) terms[term] = 0.f;
    if constexpr (HAS_POLICY) loss_of_policy(of, scale, out, d_out, nullptr, terms);
    if constexpr (HAS_VALUE) {
      d_out[N_HEAD] = loss_of_value(of, scale, value, terms);
      if (STORES) values[at] = value;
    }
  }
};

// Place of a weight of the last layer, or of a bias, in the gradient.
WD_FN int place_of_last(const int o, const int i) {
  return HAS_VALUE && o == N_HEAD ? PLACE_V3 + i : PLACE_W3 + o * LAST_UNITS + i;
}
WD_FN int place_of_last_bias(const int o) { return HAS_VALUE && o == N_HEAD ? PLACE_C3 : PLACE_B3 + o; }
WD_FN bool is_own_term(const int term) { return term == 1 ? HAS_VALUE : HAS_POLICY; }

#if defined(__CUDACC__) || defined(WD_FIBRES)
#include "exact_learn_block.cuh"
#else
#include "exact_learn_rows.cuh"
#endif

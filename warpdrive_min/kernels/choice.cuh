// A choice that is drawn from weights or logits, with its log-probability and the entropy.
//
// Rule: weight = p or wd_exp(logit - maximum); 0 where the mask is 0, for NaN, and for p that is negative or subnormal.
// Action: the first whose running sum exceeds uniform * total, never one of weight 0; the first allowed one if every
// weight is 0, then with log_prob and entropy 0. ARGMAX: the first allowed maximum. log_prob and entropy are sums over
// the action types, in nats.
//
// Constants that come before this header: N_TYPES, N_CATEGORIES (of all types together), LOGITS, MASKED, ARGMAX, LOG_PROB
// and ENTROPY.
#pragma once

constexpr float WD_SMALLEST = 1.17549435e-38f;  // the least normal float: smaller weights count as 0
constexpr bool WD_WEIGHED = !ARGMAX || LOG_PROB || ENTROPY;
constexpr bool WD_IN_REGISTERS = N_TYPES == 1 && N_CATEGORIES <= 32;  // else weights take the place of the row

#if defined(__CUDACC__)
#define WD_UNROLL _Pragma("unroll")
#else
#define WD_UNROLL _Pragma("GCC unroll 32")
#endif

struct wd_drawn {
  int action;
  float log_prob, entropy;
};

WD_FN float wd_forbidden() { return wd_float(0xFF800000u); }  // -infinity: never a maximum, weight 0

WD_FN int wd_first_allowed(const int* const mask, const int n) {
  for (int k = 0; MASKED && k < n; ++k)
    if (mask[k]) return k;
  return 0;
}

// Draws from the n entries at `row` and may leave their weights there; `mask` is that of the same entries.
WD_FN wd_drawn wd_draw(float* const row, const int* const mask, const int n, const float uniform) {
  wd_drawn drawn = {-1, 0.f, 0.f};
  float best = wd_forbidden();
  if constexpr (LOGITS || ARGMAX)
    WD_UNROLL
    for (int k = 0; k < n; ++k)
      if (row[k] > best) {
        best = row[k];
        drawn.action = k;
      }
  if constexpr (WD_WEIGHED) {
    float registers[WD_IN_REGISTERS ? N_CATEGORIES : 1];
    float* const weights = WD_IN_REGISTERS ? registers : row;
    float total = 0.f, moment = 0.f;  // moment: sum of weight * log weight
    WD_UNROLL
    for (int k = 0; k < n; ++k) {
      const float entry = LOGITS ? row[k] - best : row[k];
      const float weight = LOGITS ? wd_exp(entry) : entry >= WD_SMALLEST ? entry : 0.f;
      if (ENTROPY && weight > 0.f) moment += weight * (LOGITS ? entry : wd_log(weight));
      total += weight;
      weights[k] = weight;
    }
    if constexpr (!ARGMAX) {
      const float threshold = uniform * total;
      float sum = 0.f;
      bool is_found = false;
      drawn.action = -1;
      WD_UNROLL
      for (int k = 0; k < n; ++k) {
        sum += weights[k];
        const bool is_taken = !is_found & (weights[k] > 0.f);
        drawn.action = is_taken ? k : drawn.action;  // if rounding keeps all sums at the threshold: the last positive
        is_found = is_found | (is_taken & (sum > threshold));
      }
    }
    if (total > 0.f) {
      const float log_total = wd_log(total);
      if (LOG_PROB) {
        float chosen = 0.f;
        WD_UNROLL
        for (int k = 0; k < n; ++k) chosen = k == drawn.action ? weights[k] : chosen;
        drawn.log_prob = wd_log(chosen) - log_total;
      }
      if (ENTROPY) drawn.entropy = log_total - moment / total;
    }
  }
  if (drawn.action < 0) drawn.action = wd_first_allowed(mask, n);
  return drawn;
}

// A choice that is drawn from weights or logits, with its log-probability and the entropy.
//
// Rule: weight = p or wd_exp(logit - maximum); 0 where the mask is 0, and for subnormal p. Action: the first whose running
// sum exceeds uniform * total, never one of weight 0. ARGMAX: the first allowed maximum. log_prob and entropy are sums
// over the action types, in nats.
//
// Entries are impossible if none is allowed, every weight is 0, an allowed p is negative, or an allowed p or logit is NaN
// or infinite (logits may be -infinity), or the total overflows. The action is then the first allowed one, 0 if none is,
// with log_prob and entropy 0.
//
// Constants that come before this header: N_TYPES, N_CATEGORIES (of all types together), LOGITS, MASKED, ARGMAX, LOG_PROB
// and ENTROPY.
#pragma once

constexpr float WD_SMALLEST = 1.17549435e-38f;  // the least normal float: smaller weights count as 0
constexpr float WD_LARGEST = 3.40282347e38f;    // the largest finite float
constexpr bool WD_WEIGHED = !(ARGMAX && LOGITS) || LOG_PROB || ENTROPY;  // else only the maximum is needed

WD_FN float wd_minus_infinity() { return wd_float(0xFF800000u); }
WD_FN float wd_forbidden() { return LOGITS ? wd_minus_infinity() : 0.f; }  // of weight 0

WD_FN int wd_first_allowed(const int* const mask, const int n) {
  for (int k = 0; MASKED && k < n; ++k)
    if (mask[k]) return k;
  return 0;
}

#if defined(__CUDACC__)

#define WD_UNROLL _Pragma("unroll")
constexpr bool WD_IN_REGISTERS = N_TYPES == 1 && N_CATEGORIES <= 32;  // else weights take the place of the row

struct wd_drawn {
  int action;
  float log_prob, entropy;
  bool is_impossible;
};

// Draws from the n entries at `row` and may leave their weights there; `mask` is that of the same entries.
WD_FN wd_drawn wd_draw(float* const row, const int* const mask, const int n, const float uniform) {
  wd_drawn drawn = {0, 0.f, 0.f, false};
  float best = wd_minus_infinity();
  if constexpr (LOGITS || ARGMAX)
    WD_UNROLL
    for (int k = 0; k < n; ++k) {
      if (!WD_WEIGHED && row[k] != row[k]) drawn.is_impossible = true;
      if (row[k] > best) {
        best = row[k];
        drawn.action = k;
      }
    }
  if (!WD_WEIGHED && !(fabsf(best) <= WD_LARGEST)) drawn.is_impossible = true;
  if constexpr (WD_WEIGHED) {
    float registers[WD_IN_REGISTERS ? N_CATEGORIES : 1];
    float* const weights = WD_IN_REGISTERS ? registers : row;
    float total = 0.f, moment = 0.f;  // moment: sum of weight * log weight
    float doubt = 0.f;  // NaN if a logit is impossible
    unsigned signs = 0u;  // of the weights; its highest bit is set if one is negative
    WD_UNROLL
    for (int k = 0; k < n; ++k) {
      const float entry = LOGITS ? row[k] - best : row[k];
      const float weight = LOGITS ? wd_exp(entry) : fabsf(entry) < WD_SMALLEST ? 0.f : entry;  // NaN stays NaN
      if (LOGITS)
        doubt += entry;
      else
        signs |= wd_bits(weight);
      if (ENTROPY && weight > 0.f) moment += weight * (LOGITS ? entry : wd_log(weight));
      total += weight;
      weights[k] = weight;
    }
    drawn.is_impossible = LOGITS ? doubt != doubt : signs >> 31 || !(total > 0.f && total <= WD_LARGEST);
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
    if (!drawn.is_impossible) {
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
  if (drawn.is_impossible) drawn.action = wd_first_allowed(mask, n);
  return drawn;
}

#else

#define WD_EACH_ROW(r, n) WD_INDEPENDENT for (int r = 0; r < n; ++r)

template <int ROWS>
struct wd_drawn {
  int action[ROWS];  // nothing where the entries are impossible
  int is_impossible[ROWS];
  float log_prob[ROWS], entropy[ROWS];
};

// Draws for each of n_rows rows, the lanes of SIMD, from n entries and a random word. Entry k of row r is `entries[k][r]`;
// weights may take their places.
template <int ROWS>
WD_FN void wd_draw(wd_drawn<ROWS>& drawn, float (*const entries)[ROWS], const int n, const int n_rows,
                   const unsigned* const words) {
  float best[ROWS];
  WD_EACH_ROW(r, n_rows) {
    best[r] = wd_minus_infinity();
    drawn.action[r] = drawn.is_impossible[r] = 0;
  }
  if constexpr (LOGITS || ARGMAX)
    for (int k = 0; k < n; ++k)
      WD_EACH_ROW(r, n_rows) {
        const bool is_better = entries[k][r] > best[r];
        best[r] = is_better ? entries[k][r] : best[r];
        drawn.action[r] = is_better ? k : drawn.action[r];
        if (!WD_WEIGHED) drawn.is_impossible[r] |= entries[k][r] != entries[k][r];
      }
  if constexpr (!WD_WEIGHED) WD_EACH_ROW(r, n_rows) drawn.is_impossible[r] |= !(fabsf(best[r]) <= WD_LARGEST);
  if constexpr (WD_WEIGHED) {
    float total[ROWS], moment[ROWS], doubt[ROWS];  // as above
    unsigned signs[ROWS];
    WD_EACH_ROW(r, n_rows) {
      total[r] = moment[r] = doubt[r] = 0.f;
      signs[r] = 0u;
    }
    for (int k = 0; k < n; ++k)
      WD_EACH_ROW(r, n_rows) {
        const float entry = LOGITS ? entries[k][r] - best[r] : entries[k][r];
        const float weight = LOGITS ? wd_exp(entry) : fabsf(entry) < WD_SMALLEST ? 0.f : entry;
        if (LOGITS)
          doubt[r] += entry;
        else
          signs[r] |= wd_bits(weight);
        if (ENTROPY) moment[r] += weight > 0.f ? weight * (LOGITS ? entry : wd_log(weight)) : 0.f;
        total[r] += weight;
        entries[k][r] = weight;
      }
    WD_EACH_ROW(r, n_rows) {
      const bool is_fine = (total[r] > 0.f) & (total[r] <= WD_LARGEST) & (signs[r] >> 31 == 0);
      drawn.is_impossible[r] = LOGITS ? doubt[r] != doubt[r] : !is_fine;
    }
    if constexpr (!ARGMAX) {
      float threshold[ROWS], sum[ROWS];
      int is_found[ROWS];
      WD_EACH_ROW(r, n_rows) {
        threshold[r] = wd_uniform(words[r]) * total[r];
        sum[r] = 0.f;
        is_found[r] = 0;
        drawn.action[r] = -1;
      }
      for (int k = 0; k < n; ++k)
        WD_EACH_ROW(r, n_rows) {
          sum[r] += entries[k][r];
          const int is_taken = (is_found[r] == 0) & (entries[k][r] > 0.f);
          drawn.action[r] = is_taken ? k : drawn.action[r];  // in the end the last positive, if no sum passes
          is_found[r] |= is_taken & (sum[r] > threshold[r]);
        }
    }
    if constexpr (LOG_PROB || ENTROPY) {
      float chosen[ROWS];
      WD_EACH_ROW(r, n_rows) chosen[r] = 0.f;
      for (int k = 0; LOG_PROB && k < n; ++k)
        WD_EACH_ROW(r, n_rows) chosen[r] = k == drawn.action[r] ? entries[k][r] : chosen[r];
      WD_EACH_ROW(r, n_rows) {
        const float log_total = wd_log(total[r]);
        drawn.log_prob[r] = drawn.is_impossible[r] ? 0.f : wd_log(chosen[r]) - log_total;
        drawn.entropy[r] = drawn.is_impossible[r] ? 0.f : log_total - moment[r] / total[r];
      }
    }
  }
}

#endif

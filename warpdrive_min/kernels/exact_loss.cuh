// The loss of A2C and PPO of one row (step, environment, agent), term by term and with its gradients.
//
// As `warpdrive_min/training/algorithms/losses.py` has it; the KL's term is r - 1 - log r. A type whose every choice is
// forbidden has log-probability and entropy 0.
//
// Constants that come before this header: DISCRETE, N_TYPES, N_OUTPUTS, SIZES, MASKED, IS_CLIPPED, CLIP_PARAM,
// VALUE_CLIPPED and VALUE_CLIP.
#pragma once

constexpr float HALF_LOG_TWO_PI = 0.918938533f;

struct Policy {  // of a row: log-probability of the action, and entropy
  float log_prob, entropy;
};

WD_FN bool is_allowed(const int* const mask, const int k) { return !MASKED || mask[k]; }

WD_FN Policy choice(const float* const logits, const int* const mask, const int n, const int action,
                    float* const probability, float* const log_probability) {
  float best = wd_float(0xFF800000u);  // -infinity
  bool is_free = false;
  for (int k = 0; k < n; ++k) {
    const bool allowed = is_allowed(mask, k);
    best = allowed && logits[k] > best ? logits[k] : best;
    is_free = is_free | allowed;
  }
  float total = 0.f;
  for (int k = 0; k < n; ++k) {
    probability[k] = is_free && is_allowed(mask, k) ? wd_exp(logits[k] - best) : 0.f;
    total += probability[k];
  }
  const float log_total = is_free ? wd_log(total) : 0.f;
  Policy policy = {0.f, 0.f};
  for (int k = 0; k < n; ++k) {
    const bool allowed = is_free && is_allowed(mask, k);
    probability[k] = allowed ? probability[k] / total : 0.f;
    log_probability[k] = allowed ? (logits[k] - best) - log_total : 0.f;
    policy.entropy -= probability[k] * log_probability[k];
    policy.log_prob = k == action ? log_probability[k] : policy.log_prob;
  }
  return policy;
}

// Inputs of a row's loss apart from the outputs. Pointers whose flag is false are never dereferenced.
struct Row {
  const int* choices;   // of each type, if DISCRETE
  const float* drawn;   // else
  const int* mask;      // of each choice, if MASKED
  const float* log_std;  // unless DISCRETE
  float log_prob, advantage, returned, old_value;  // log_prob: when the action was drawn
};

struct Scale {
  float total, value_weight, entropy_weight;  // total: what sums over rows are divided by
};

constexpr int N_TERMS = 5;  // policy, value, entropy, KL and whether the ratio is clipped

// Fills all terms but the value's, and the gradients.
WD_FN void loss_of_policy(const Row& row, const Scale& scale, const float* const head, float* const d_head,
                          float* const d_log_std, float* const terms) {
  float probability[N_OUTPUTS], log_probability[N_OUTPUTS], entropies[N_TYPES];
  float log_prob = 0.f, entropy = 0.f;
  if constexpr (DISCRETE) {
    for (int type = 0, at = 0; type < N_TYPES; at += SIZES[type++]) {
      const Policy policy =
          choice(head + at, row.mask + at, SIZES[type], row.choices[type], probability + at, log_probability + at);
      log_prob += policy.log_prob;
      entropy += policy.entropy;
      entropies[type] = policy.entropy;
    }
  } else {
    for (int j = 0; j < N_TYPES; ++j) {
      const float z = (row.drawn[j] - head[j]) * wd_exp(-row.log_std[j]);
      log_prob += (-0.5f * (z * z) - row.log_std[j]) - HALF_LOG_TWO_PI;
      entropy += (0.5f + HALF_LOG_TWO_PI) + row.log_std[j];
    }
  }
  const float log_ratio = log_prob - row.log_prob;
  const float ratio = wd_exp(log_ratio);
  float d_log_prob;
  if constexpr (IS_CLIPPED) {
    const float gain = ratio * row.advantage;
    const float clipped_gain = wd_clip(ratio, 1.f - CLIP_PARAM, 1.f + CLIP_PARAM) * row.advantage;
    terms[0] = -(clipped_gain < gain ? clipped_gain : gain);
    d_log_prob = clipped_gain < gain ? 0.f : -gain;
  } else {
    terms[0] = -(log_prob * row.advantage);
    d_log_prob = -row.advantage;
  }
  terms[2] = entropy;
  terms[3] = (ratio - 1.f) - log_ratio;
  terms[4] = fabsf(ratio - 1.f) > CLIP_PARAM ? 1.f : 0.f;
  const float of_policy = d_log_prob / scale.total, of_entropy = scale.entropy_weight / scale.total;
  if constexpr (DISCRETE) {
    for (int type = 0, at = 0; type < N_TYPES; at += SIZES[type++])
      for (int k = at; k < at + SIZES[type]; ++k) {
        const float is_taken = k - at == row.choices[type] ? 1.f : 0.f;
        const float gradient = of_policy * (is_taken - probability[k]) +
                               of_entropy * (probability[k] * (log_probability[k] + entropies[type]));
        d_head[k] = is_allowed(row.mask, k) ? gradient : 0.f;
      }
  } else {
    for (int j = 0; j < N_TYPES; ++j) {
      const float inverse = wd_exp(-row.log_std[j]), z = (row.drawn[j] - head[j]) * inverse;
      d_head[j] = of_policy * (z * inverse);
      d_log_std[j] = of_policy * (z * z - 1.f) - of_entropy;
    }
  }
}

// Returns the gradient by the value, and fills its term.
WD_FN float loss_of_value(const Row& row, const Scale& scale, const float value, float* const terms) {
  const float error = value - row.returned;
  float term = error * error, d_value = 2.f * error;
  if constexpr (VALUE_CLIPPED) {
    const float move = value - row.old_value;
    const float clipped_error = (row.old_value + wd_clip(move, -VALUE_CLIP, VALUE_CLIP)) - row.returned;
    const bool is_larger = clipped_error * clipped_error > term;
    term = is_larger ? clipped_error * clipped_error : term;
    d_value = is_larger ? (fabsf(move) <= VALUE_CLIP ? 2.f * clipped_error : 0.f) : d_value;
  }
  terms[1] = term;
  return (scale.value_weight * d_value) / scale.total;
}

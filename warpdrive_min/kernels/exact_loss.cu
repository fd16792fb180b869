// The loss of A2C and PPO, term by term and with its gradients, one row (step, environment, agent) a thread.
//
// Reads head (logits of all types side by side, or the means of a Gaussian), values, actions (choices if DISCRETE, else
// drawn), log_probs of when they were drawn, old_values if VALUE_CLIPPED, returns, advantages, mask if MASKED, log_std
// unless DISCRETE, and the numbers total, value_weight and entropy_weight.
// Writes d_head, d_values, terms (policy, value, entropy, KL and whether the ratio is clipped), and d_log_std unless
// DISCRETE, a row each: `part_sums` adds them up. Arrays whose flag is false are never touched.
//
// As `warpdrive_min/training/algorithms/losses.py` has it; the KL's term is r - 1 - log r. A type whose every choice is
// forbidden has log-probability and entropy 0.
//
// Compiled without contraction always, so that the bits are the same on every GPU and CPU.

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

WD_KERNEL(loss)(const float* head, const float* values, const int* choices, const float* drawn, const float* log_probs,
                const float* old_values, const float* returns, const float* advantages, const int* mask,
                const float* log_std, const float* total, const float* value_weight,
                const float* entropy_weight, float* d_head, float* d_values, float* terms, float* d_log_std, int n_envs) {
  WD_EACH_ENV(local, row) {
    const long long outputs = static_cast<long long>(row) * N_OUTPUTS, types = static_cast<long long>(row) * N_TYPES;
    float probability[N_OUTPUTS], log_probability[N_OUTPUTS], entropies[N_TYPES];
    float log_prob = 0.f, entropy = 0.f;
    if constexpr (DISCRETE) {
      for (int type = 0, at = 0; type < N_TYPES; at += SIZES[type++]) {
        const Policy policy = choice(head + outputs + at, mask + outputs + at, SIZES[type], choices[types + type],
                                     probability + at, log_probability + at);
        log_prob += policy.log_prob;
        entropy += policy.entropy;
        entropies[type] = policy.entropy;
      }
    } else {
      for (int j = 0; j < N_TYPES; ++j) {
        const float z = (drawn[types + j] - head[types + j]) * wd_exp(-log_std[j]);
        log_prob += (-0.5f * (z * z) - log_std[j]) - HALF_LOG_TWO_PI;
        entropy += (0.5f + HALF_LOG_TWO_PI) + log_std[j];
      }
    }
    const float advantage = advantages[row];
    const float log_ratio = log_prob - log_probs[row];
    const float ratio = wd_exp(log_ratio);
    float policy_term, d_log_prob;
    if constexpr (IS_CLIPPED) {
      const float gain = ratio * advantage, clipped_gain = wd_clip(ratio, 1.f - CLIP_PARAM, 1.f + CLIP_PARAM) * advantage;
      policy_term = -(clipped_gain < gain ? clipped_gain : gain);
      d_log_prob = clipped_gain < gain ? 0.f : -gain;
    } else {
      policy_term = -(log_prob * advantage);
      d_log_prob = -advantage;
    }
    const float error = values[row] - returns[row];
    float value_term = error * error, d_value = 2.f * error;
    if constexpr (VALUE_CLIPPED) {
      const float move = values[row] - old_values[row];
      const float clipped_error = (old_values[row] + wd_clip(move, -VALUE_CLIP, VALUE_CLIP)) - returns[row];
      const bool is_larger = clipped_error * clipped_error > value_term;
      value_term = is_larger ? clipped_error * clipped_error : value_term;
      d_value = is_larger ? (fabsf(move) <= VALUE_CLIP ? 2.f * clipped_error : 0.f) : d_value;
    }
    const float of_policy = d_log_prob / total[0], of_entropy = entropy_weight[0] / total[0];
    d_values[row] = (value_weight[0] * d_value) / total[0];
    if constexpr (DISCRETE) {
      for (int type = 0, at = 0; type < N_TYPES; at += SIZES[type++])
        for (int k = at; k < at + SIZES[type]; ++k) {
          const float is_taken = k - at == choices[types + type] ? 1.f : 0.f;
          const float gradient = of_policy * (is_taken - probability[k]) +
                                 of_entropy * (probability[k] * (log_probability[k] + entropies[type]));
          d_head[outputs + k] = is_allowed(mask + outputs, k) ? gradient : 0.f;
        }
    } else {
      for (int j = 0; j < N_TYPES; ++j) {
        const float inverse = wd_exp(-log_std[j]), z = (drawn[types + j] - head[types + j]) * inverse;
        d_head[types + j] = of_policy * (z * inverse);
        d_log_std[types + j] = of_policy * (z * z - 1.f) - of_entropy;
      }
    }
    float* const term = terms + static_cast<long long>(row) * 5;
    term[0] = policy_term;
    term[1] = value_term;
    term[2] = entropy;
    term[3] = (ratio - 1.f) - log_ratio;
    term[4] = fabsf(ratio - 1.f) > CLIP_PARAM ? 1.f : 0.f;
  }
}

// The loss of A2C and PPO, term by term and with its gradients, one row (step, environment, agent) a thread.
//
// Reads head (logits of all types side by side, or the means of a Gaussian), values, actions (choices if DISCRETE, else
// drawn), log_probs of when they were drawn, old_values if VALUE_CLIPPED, returns, advantages, mask if MASKED, log_std
// unless DISCRETE, and the numbers total, value_weight and entropy_weight.
// Writes d_head, d_values, terms (policy, value, entropy, KL and whether the ratio is clipped), and d_log_std unless
// DISCRETE, a row each: `part_sums` adds them up. Arrays whose flag is false are never touched.
//
// Compiled without contraction always, so that the bits are the same on every GPU and CPU.

#include "exact_loss.cuh"

WD_KERNEL(loss)(const float* head, const float* values, const int* choices, const float* drawn, const float* log_probs,
                const float* old_values, const float* returns, const float* advantages, const int* mask,
                const float* log_std, const float* total, const float* value_weight,
                const float* entropy_weight, float* d_head, float* d_values, float* terms, float* d_log_std, int n_envs) {
  const Scale scale = {total[0], value_weight[0], entropy_weight[0]};
  WD_EACH_ENV(local, at) {
    const long long outputs = static_cast<long long>(at) * N_OUTPUTS, types = static_cast<long long>(at) * N_TYPES;
    const Row row = {choices + types,  drawn + types,    mask + outputs, log_std,
                     log_probs[at], advantages[at], returns[at],    VALUE_CLIPPED ? old_values[at] : 0.f};
    float* const term = terms + static_cast<long long>(at) * N_TERMS;
    loss_of_policy(row, scale, head + outputs, d_head + outputs, d_log_std + types, term);
    d_values[at] = loss_of_value(row, scale, values[at], term);
  }
}

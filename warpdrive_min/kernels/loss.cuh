// A2C's and PPO's loss of a row and its derivatives, and the sums over blocks.
//
// Constants that come before this header: those of `tiles.cuh`; TO, tiles of 8 outputs; WARPS; N_AGENTS; N_TYPES; SIZES,
// choices of each type; MASKED; IS_CLIPPED, PPO's loss, else A2C's; VALUE_CLIPPED and VALUE_CLIP.
#pragma once

#include "tiles.cuh"

constexpr int N_TERMS = 5;

// Numbers of a row besides x, each in an array of ROWS.
constexpr int LOG_PROB = 0, ADVANTAGE = ROWS, RETURN = 2 * ROWS, OLD_VALUE = 3 * ROWS, WEIGHT = 4 * ROWS, ACTIONS = 5 * ROWS;

constexpr float LOWEST = -3.402823466e38f;

struct Rollout {
  const float *observations, *log_probs, *returns, *advantages, *old_values, *weights;
  const int *actions, *masks, *indices;
  float* values;  // gets the values of rows, unless null
  int n_rows;
  bool is_taken;  // advantages are those of the minibatch

  WD_METHOD int within(const int row) const { return row < n_rows ? row : n_rows - 1; }
  WD_METHOD int index(const int row) const { return indices ? indices[row / N_AGENTS] : row / N_AGENTS; }
  WD_METHOD long long source(const int row, const int at) const {  // row of the rollout; `at` is its `index`
    return static_cast<long long>(at) * N_AGENTS + row % N_AGENTS;
  }
  WD_METHOD long long source(const int row) const { return source(row, index(row)); }
};

struct Rule {
  float vf_loss_coeff, entropy_coeff, clip_param;
};

WD_FN float exponential(const float x) { return TF32 ? wd_power_of_two(1.44269504f * x) : expf(x); }
WD_FN float logarithm(const float x) { return TF32 ? 0.693147181f * wd_log2(x) : logf(x); }
WD_FN float excess(const float x) {  // e^x - 1 - x, without cancellation near 0
  const float series = 1.f + x * (1.f / 5) * (1.f + x * (1.f / 6) * (1.f + x * (1.f / 7) * (1.f + x * (1.f / 8))));
  const float near = 0.5f * x * x * (1.f + x * (1.f / 3) * (1.f + x * (1.f / 4) * series));
  return fabsf(x) < 0.5f ? near : exponential(x) - 1.f - x;
}

// Returns the value's term, and its derivative.
WD_FN float loss_of_value(const float value, const float target, const float old, float& d_value) {
  const float error = value - target;
  d_value = 2.f * error;
  if (!VALUE_CLIPPED) return error * error;
  const float move = value - old, other = old + wd_clip(move, -VALUE_CLIP, VALUE_CLIP) - target;
  if (!(other * other > error * error)) return error * error;
  d_value = fabsf(move) <= VALUE_CLIP ? 2.f * other : 0.f;
  return other * other;
}

WD_FN int size_of(const int type) { return N_TYPES == 1 ? N_OUTPUTS : SIZES[type]; }

#define EACH_TYPE _Pragma("unroll (N_OUTPUTS <= 24 ? N_TYPES : 1)")
#define EACH_CHOICE _Pragma("unroll (N_OUTPUTS <= 24 ? N_OUTPUTS : 1)")

// Loss of a row of the minibatch. Replaces its outputs, without their biases, by the derivatives with respect to them, and
// adds to the sums of terms: policy, value, entropy, KL and whether the ratio is clipped.
WD_FN void loss(const Part part, const Rollout& rollout, const Rule& rule, const int row, float* const outputs,
                const float* const biases, const float* const numbers, float* const terms) {
  const bool is_row = row < rollout.n_rows;
  const float weight = !is_row ? 0.f : rollout.weights ? numbers[WEIGHT] : 1.f;
  const float target = numbers[RETURN];
  float out[8 * TO];
#pragma unroll
  for (int k = 0; k < 8 * TO; k += 4) {
    const float4 four = wd_load<float4>(outputs + k);
    out[k] = four.x, out[k + 1] = four.y, out[k + 2] = four.z, out[k + 3] = four.w;
  }
  float value = numbers[OLD_VALUE], d_value = 0.f;
  if (part.has_value) {
    const int column = part.value_column();
    value = (part.has_policy ? out[N_OUTPUTS % (8 * TO)] : out[0]) + biases[column];
    terms[1] += weight * loss_of_value(value, target, numbers[OLD_VALUE], d_value);
    d_value *= weight * rule.vf_loss_coeff;
    if (rollout.values) {
      const long long at = rollout.source(rollout.within(row));
      if (is_row) rollout.values[at] = value;
    }
  }
  float d[8 * TO];
#pragma unroll
  for (int k = 0; k < 8 * TO; ++k) d[k] = 0.f;
  if (part.has_policy) {
    const int* const mask = MASKED ? rollout.masks + rollout.source(rollout.within(row)) * N_OUTPUTS : nullptr;
    const auto is_allowed = [&](const int k) { return !MASKED || mask[k]; };
    float p[N_OUTPUTS], entropies[N_TYPES], log_prob = 0.f, entropy = 0.f;
    int end = 0;
    EACH_TYPE for (int type = 0; type < N_TYPES; ++type) {
      const int first = end, action = first + static_cast<int>(wd_bits(numbers[ACTIONS + ROWS * type]));
      end += size_of(type);
      const auto is_own = [&](const int k) { return N_TYPES == 1 || (k >= first && k < end); };
      float top = LOWEST, norm = 0.f, sum = 0.f;
      EACH_CHOICE for (int k = 0; k < N_OUTPUTS; ++k)
        if (is_own(k)) {
          out[k] += biases[k];
          if (is_allowed(k)) top = fmaxf(top, out[k]);
        }
      EACH_CHOICE for (int k = 0; k < N_OUTPUTS; ++k)
        if (is_own(k)) {
          out[k] -= top;
          p[k] = is_allowed(k) ? exponential(out[k]) : 0.f;
          norm += p[k];
        }
      const bool is_free = !MASKED || norm != 0.f;  // a type whose choices are all forbidden contributes nothing
      const float over = is_free ? wd_reciprocal(norm) : 0.f, log_norm = is_free ? logarithm(norm) : 0.f;
      EACH_CHOICE for (int k = 0; k < N_OUTPUTS; ++k)
        if (is_own(k)) {
          p[k] *= over;
          const float own = is_free && is_allowed(k) ? out[k] - log_norm : 0.f;
          sum += p[k] * own;
          log_prob += k == action ? own : 0.f;
          out[k] = own;
        }
      entropies[type] = -sum;
      entropy -= sum;
    }
    const float advantage = rollout.advantages ? numbers[ADVANTAGE] : target - value;
    const float log_ratio = log_prob - numbers[LOG_PROB], kl = excess(log_ratio), clip = rule.clip_param;
    float policy = -log_prob * advantage, d_log_prob = -advantage;
    if (IS_CLIPPED) {
      const float ratio = exponential(log_ratio), gain = ratio * advantage;
      const float clipped = wd_clip(ratio, 1.f - clip, 1.f + clip) * advantage;
      policy = clipped < gain ? -clipped : -gain;
      d_log_prob = clipped < gain ? 0.f : -gain;
    }
    terms[0] += policy * weight;
    terms[2] += entropy * weight;
    terms[3] += kl * weight;
    terms[4] += fabsf(kl + log_ratio) > clip ? weight : 0.f;
    end = 0;
    EACH_TYPE for (int type = 0; type < N_TYPES; ++type) {
      const int first = end, action = first + static_cast<int>(wd_bits(numbers[ACTIONS + ROWS * type]));
      end += size_of(type);
      EACH_CHOICE for (int k = 0; k < N_OUTPUTS; ++k)
        if (N_TYPES == 1 || (k >= first && k < end)) {
          const float of_policy = d_log_prob * ((k == action ? 1.f : 0.f) - p[k]);
          const float of_entropy = rule.entropy_coeff * p[k] * (out[k] + entropies[type]);
          d[k] = is_allowed(k) ? weight * (of_policy + of_entropy) : 0.f;
        }
    }
    if (part.has_value) d[N_OUTPUTS % (8 * TO)] = d_value;
  } else {
    d[0] = d_value;
  }
#pragma unroll
  for (int k = 0; k < 8 * TO; k += 4) wd_store<float4>(outputs + k, make_float4(d[k], d[k + 1], d[k + 2], d[k + 3]));
}

// Adds the blocks' rows of `partial` in order, divides by `total`, and writes a member's gradient and terms.
constexpr int COLUMNS = 32, GROUPS = WARPS;
WD_FN void add_rows(float (*const shared)[COLUMNS], const float* const partial, const int n_rows, const int n_parameters,
                    const float total, float* const gradient, float* const terms) {
  const int n_columns = n_parameters + N_TERMS, lane = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
  const int column = blockIdx.x * COLUMNS + lane;
  float sum = 0.f;
  if (column < n_columns)
    for (int row = group; row < n_rows; row += GROUPS) sum += partial[static_cast<long long>(row) * n_columns + column];
  shared[group][lane] = sum;
  __syncthreads();
  if (group > 0 || column >= n_columns) return;
  for (int k = 1; k < GROUPS; ++k) sum += shared[k][lane];
  if (column < n_parameters)
    gradient[column] = sum / total;
  else
    terms[(column - n_parameters) * static_cast<int>(gridDim.y) + blockIdx.y] = sum / total;
}

// Rows of a minibatch that a warp learns from, and where gradients lie.
//
// Constants that come before this header: those of `loss.cuh`; N_SEEN; SHARING; STAGES of rows in shared memory; SX, floats
// of a row of x there; OF_X and OF_NUMBERS, a warp's places of x and of the other numbers, N_NUMBERS per stage.
#pragma once

#include "loss.cuh"

struct Places {  // first number of each layer in the vector of parameters
  int w1, b1, w2, b2, w3, b3, v3, c3;
};

// Starts the copies of a tile's rows: two lanes a row, or all if rows are long. A lane has the source of row lane % 16.
WD_FN void begin_copies(const Part part, float* const mine, const int stage, const Rollout& rollout, const int row,
                        const long long source, const int lane) {
  const int half = lane / ROWS;
  float* const numbers = mine + OF_NUMBERS + stage * N_NUMBERS + lane % ROWS;
  constexpr int STEP = N_SEEN % 4 ? 1 : 4;  // rows of 16 bytes are aligned
  constexpr int AT_ONCE = SHARING > 1 ? 1 : ROWS, BESIDE = LANES / AT_ONCE;
  const int first = STEP * (lane / AT_ONCE);
  const int begin = N_SEEN > BESIDE * STEP ? first : 0;  // addresses of a lane's copies differ by constants
#pragma unroll
  for (int r = 0; r < ROWS; r += AT_ONCE) {
    float* const x = mine + OF_X + stage * ROWS * SX + (r + lane % AT_ONCE) * SX + begin;
    const float* const from = rollout.observations + (SHARING > 1 ? __shfl_sync(~0u, source, r) : source) * N_SEEN + begin;
    copy_row<N_SEEN, BESIDE, STEP>(x, from, begin, first);
  }
  if (half == 0) {
    if (part.has_policy) {
      wd_copy4(numbers + LOG_PROB, rollout.log_probs + source);
#pragma unroll 1
      for (int type = 0; type < N_TYPES; ++type)
        wd_copy4(numbers + ACTIONS + ROWS * type, rollout.actions + source * N_TYPES + type);
    }
    if (rollout.weights) wd_copy4(numbers + WEIGHT, rollout.weights + row / N_AGENTS);
  } else {
    const bool needs_value = part.has_policy && !rollout.advantages;  // returns - value
    if (part.has_policy && rollout.advantages)
      wd_copy4(numbers + ADVANTAGE, rollout.advantages + (rollout.is_taken ? row : source));
    if (part.has_value || needs_value) wd_copy4(numbers + RETURN, rollout.returns + source);
    if ((part.has_value && VALUE_CLIPPED) || (!part.has_value && needs_value))
      wd_copy4(numbers + OLD_VALUE, rollout.old_values + source);
  }
}

// Words of a GPU's matrix units and copies, for fibres.
#pragma once

// The matrix unit in words: lanes show each other what they hold, of which it takes the first 19 bits.
static void wd_multiply_tf32(float* const sum, const unsigned (&left)[4], const unsigned (&right)[2]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto shown = [](const unsigned bits, const int from) {
    return __uint_as_float(__shfl_sync(0xffffffffu, bits, from) & 0xFFFFE000u);
  };
  for (int k = 0; k < 8; ++k) {
    const float upper = shown(left[k / 4 * 2], 4 * g + k % 4), lower = shown(left[k / 4 * 2 + 1], 4 * g + k % 4);
    const float one = shown(right[k / 4], 8 * t + k % 4), other = shown(right[k / 4], 8 * t + 4 + k % 4);
    sum[0] += upper * one, sum[1] += upper * other;
    sum[2] += lower * one, sum[3] += lower * other;
  }
}

static void wd_multiply_parts(float* const sum, const unsigned (&high)[4], const unsigned (&low)[4],
                              const unsigned (&right_high)[2], const unsigned (&right_low)[2]) {
  wd_multiply_tf32(sum, low, right_high);
  wd_multiply_tf32(sum, high, right_low);
  wd_multiply_tf32(sum, high, right_high);
}

static float wd_power_of_two(const float x) { return exp2f(x); }
static float wd_log2(const float x) { return log2f(x); }
static float wd_reciprocal(const float x) { return 1.f / x; }
static float wd_rough_tanh(const float x) { return tanhf(x); }
static float wd_round_tf32(const float x) { return !CUTS ? x : __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xFFFFE000u); }

static void wd_copy4(float* const to, const void* const from) { memcpy(to, from, 4); }
static void wd_copy16(float* const to, const void* const from) { memcpy(to, from, 16); }
static void wd_end_copies() {}
static void wd_await_all_but_last() {}
static void wd_await_all() {}


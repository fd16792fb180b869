// A warp of fibres that evaluates a perceptron as a GPU's matrix units do.

// The matrix unit in words: lanes show each other what they hold, of which it takes the first 19 bits.
static void wd_multiply_tf32(float (&sum)[4], const unsigned (&left)[4], const unsigned (&right)[2]) {
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

static float wd_power_of_two(const float x) { return exp2f(x); }
static float wd_rough_tanh(const float x) { return tanhf(x); }
static float wd_reciprocal(const float x) { return 1.f / x; }

#include "perceptron_warp.cuh"

__global__ void evaluate(const float* weights, float (*in)[ROW], float (*out)[ROW]) {
  const auto load = [&](const int row, const int column) { return wd_load<wd_pair>(in[row] + column); };
  wd_evaluate<N_OUTPUTS, ROW, 32, SIDE_BY_SIDE>(weights, load, out, threadIdx.x);
}

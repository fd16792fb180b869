// Sixteen floats side by side, on the CPU.
#pragma once

typedef float wd_floats __attribute__((vector_size(64)));
constexpr int WD_FLOATS = sizeof(wd_floats) / sizeof(float);

// A number in all lanes; keeps the sign of 0.
WD_FN wd_floats wd_all_lanes(const float number) { return number - wd_floats{}; }

// sum += weight * row, rounded once.
WD_FN void wd_add_product(wd_floats& sum, const float weight, const wd_floats& row) {
#if defined(__AVX512F__) && !defined(__clang__)  // else GCC takes one lane after the other
  sum = __builtin_ia32_vfmaddps512_mask(wd_all_lanes(weight), row, sum, static_cast<unsigned short>(-1), 4);
#elif defined(__FMA__) && !defined(__clang__)
  typedef float half __attribute__((vector_size(32)));
  half numbers[2], sums[2];
  std::memcpy(numbers, &row, sizeof row);
  std::memcpy(sums, &sum, sizeof sum);
  for (int i = 0; i < 2; ++i) sums[i] = __builtin_ia32_vfmaddps256(weight - half{}, numbers[i], sums[i]);
  std::memcpy(&sum, sums, sizeof sum);
#else
  for (int i = 0; i < WD_FLOATS; ++i) sum[i] = fmaf(weight, row[i], sum[i]);
#endif
}

// Words for a GPU's matrix units, and functions as precise as their products.
//
// Constants that come before this header: IS_TANH, else relu; TF32, one product of factors with 11 bits, else three.
#pragma once

#if defined(__CUDACC__)

// sum += left * right, of tiles of 16 x 8 and 8 x 8, in the order of the unit's registers.
WD_FN void wd_multiply_tf32(float* const sum, const unsigned (&left)[4], const unsigned (&right)[2]) {
  float to[4];
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]), "f"(sum[0]), "f"(sum[1]),
        "f"(sum[2]), "f"(sum[3]));
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = to[i];
}

// The same with factors in two parts, without the product of the lower ones.
WD_FN void wd_multiply_parts(float* const sum, const unsigned (&high)[4], const unsigned (&low)[4],
                             const unsigned (&right_high)[2], const unsigned (&right_low)[2]) {
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
  asm volatile(MMA "{%8,%9,%10,%11}, {%12,%13}, {%0,%1,%2,%3};\n\t"
      MMA "{%4,%5,%6,%7}, {%14,%15}, {%0,%1,%2,%3};\n\t"
      MMA "{%4,%5,%6,%7}, {%12,%13}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(high[0]), "r"(high[1]), "r"(high[2]), "r"(high[3]), "r"(low[0]), "r"(low[1]), "r"(low[2]), "r"(low[3]),
        "r"(right_high[0]), "r"(right_high[1]), "r"(right_low[0]), "r"(right_low[1]));
#undef MMA
}

// 2^x, log2 x and 1 / x, within 2 ulp, where they are no smaller than normal floats.
WD_FN float wd_power_of_two(float x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

WD_FN float wd_log2(float x) {
  asm("lg2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

WD_FN float wd_reciprocal(float x) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// The nearest number with 11 bits.
WD_FN float wd_round_tf32(const float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return wd_float(bits);
}

// tanh x within 2^-11 of it: the error of a factor in TF32.
WD_FN float wd_rough_tanh(const float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

// The first 11 bits of a number, and the rest.
WD_FN void wd_cut(const float x, unsigned& high, unsigned& low) {
  high = wd_bits(x) & 0xFFFFE000u;
  low = wd_bits(x - wd_float(high));
}

WD_FN float wd_curve(const float x) {  // tanh x
  if (TF32) return wd_rough_tanh(x);
  return fmaf(-2.f, wd_reciprocal(1.f + wd_power_of_two(2.88539008f * x)), 1.f);  // within 2e-7, by e^(2 x)
}

WD_FN float wd_activated(const float x) { return IS_TANH ? wd_curve(x) : x < 0.f ? 0.f : x; }

// Functions that CUDA C, Numba and NumPy compute alike.
//
// `wd_exp`, `wd_log`, `wd_wrap`, `wd_principal` and `wd_clip` are made of operations that IEEE 754 rounds in one way
// only (+ - * and comparisons, `fmodf`, exact scaling by a power of two): compiled without contraction to FMA they are
// bit-identical in all languages. With EXACT so are sine and cosine; else those are the library's on a GPU, and on the
// CPU the same ones as with EXACT, which run in SIMD.
//
// Greatest error without contraction, measured against double over the range (sine and cosine: over every float from
// 0.5 to 8192): wd_exp 1.0 ulp, wd_log 0.9 ulp, wd_sin and wd_cos 2.4 ulp.
#pragma once

WD_FN float wd_float(const unsigned bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

WD_FN unsigned wd_bits(const float value) {
#if defined(__CUDACC__)
  return __float_as_uint(value);
#else
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

// A quotient; that of IEEE 754 with EXACT, else within 2 ulp: on a GPU 0 by more than 2^126, without a branch; on the CPU by
// the reciprocal, which takes no division where b is a constant.
WD_FN float wd_quotient(const float a, const float b) {
#if defined(__CUDACC__)
  if (!EXACT) return __fdividef(a, b);
#else
  if (!EXACT) return a * (1.f / b);
#endif
  return a / b;
}

// The same quotient where |b| is from 2^-126 to 2^126, in fewer instructions on a GPU.
WD_FN float wd_quotient_by_normal(const float a, const float b) {
#if defined(__CUDACC__)
  if (!EXACT) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
    return __fmul_rn(a, reciprocal);
  }
#endif
  return wd_quotient(a, b);
}

// The nearest integer, ties to even, of |x| < 2^22: the sum has no bits left for a fraction.
WD_FN float wd_round(const float x) { return (x + 12582912.f) - 12582912.f; }

// `x` between bounds, of which the lower is not above the other.
WD_FN float wd_clip(const float x, const float low, const float high) {
#if defined(__CUDACC__)
  return x < low ? low : x > high ? high : x;
#else  // the same with two comparisons, not four, in SIMD
  const float raised = x < low ? low : x;
  return raised > high ? high : raised;
#endif
}

// A weighted mean, which cannot overflow, clipped, since its rounding may pass a bound. Never contracted on a GPU.
WD_FN float wd_between(const float least, const float most, const float weight) {
#if defined(__CUDACC__)
  return wd_clip(__fadd_rn(__fmul_rn(1.f - weight, least), __fmul_rn(weight, most)), least, most);
#else
  return wd_clip((1.f - weight) * least + weight * most, least, most);
#endif
}

WD_FN constexpr int wd_min(const int a, const int b) { return a < b ? a : b; }
WD_FN constexpr int wd_up(const int n, const int by) { return (n + by - 1) / by * by; }  // to a multiple

// fmodf for SIMD: exact, as products are in double precision, and as a quotient that rounds up to the next integer is
// seen by the sign of the rest. From 2^22 periods on, where few floats lie in one, the rest is 0.
WD_FN float wd_fmod(const float x, const float period) {
#if defined(__CUDACC__)
  return fmodf(x, period);
#else
  const float size = std::fabs(x);
  const double whole = std::trunc(size / period);
  const float rest = static_cast<float>(size - whole * period);
  const float mended = rest < 0.f ? rest + period : rest;
  return std::copysign(size >= 4194304.f * period ? size * 0.f : mended, x);
#endif
}

// x modulo period into [0, period), as Python's %; `fmodf` is exact, and a sum that rounds to the period becomes 0.
WD_FN float wd_wrap(const float x, const float period) {
  const float rest = wd_fmod(x, period);
  const float wrapped = rest < 0.f ? rest + period : rest;
  return wrapped >= period ? 0.f : wrapped;
}

// The same angle within +-pi; one that is there already keeps its bits.
WD_FN float wd_principal(const float angle) {
  constexpr float pi = 3.14159274f, two_pi = 6.28318548f;
  return fabsf(angle) <= pi ? angle : wd_wrap(angle + pi, two_pi) - pi;
}

// e^x; 0 below -87 (before the result is subnormal) and for NaN, infinite above 88.
// x = n ln 2 + r, |r| <= ln 2 / 2, e^r by Cephes' expf polynomial; ln 2 in two parts, n times the first is exact.
WD_FN float wd_exp(const float x) {
  const float rounder = 12582912.f;
  const float shifted = x * 1.44269504f + rounder;  // as wd_round; its lowest bits are n
  const float n = shifted - rounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = (p * (r * r) + r) + 1.f;
  const float scaled = y * wd_float((wd_bits(shifted) << 23) + 0x3F800000u);  // times 2^n
  return x > 88.f ? wd_float(0x7F800000u) : x >= -87.f ? scaled : 0.f;  // selects, where branches would diverge
}

// tanh x; Cephes' tanhf polynomial below 0.625, else from e^|2x|, which is infinite where the result is 1; NaN of NaN.
WD_FN float wd_tanh(const float x) {
  const float size = fabsf(x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = (p * z) * x + x;
  const float far = 1.f - 2.f / (wd_exp(size + size) + 1.f);
  const float signed_far = x < 0.f ? -far : far;
  return x != x ? x : size < 0.625f ? near : signed_far;
}

// Natural logarithm of a positive, normal, finite x.
// x = m 2^e, m in [sqrt(1/2), sqrt(2)), log m by Cephes' logf polynomial.
WD_FN float wd_log(const float x) {
  const unsigned bits = wd_bits(x);
  const float half = wd_float((bits & 0x007FFFFFu) | 0x3F000000u);  // m or m / 2, in [1/2, 1)
  const bool is_low = half < 0.707106781f;
  const float e = static_cast<float>(static_cast<int>(bits >> 23) - (is_low ? 127 : 126));
  const float f = (is_low ? half + half : half) - 1.f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float y = (p * (f * z) + e * -2.12194440e-4f) - 0.5f * z;
  return (f + y) + e * 0.693359375f;
}

#if defined(__CUDACC__)
constexpr bool OWN_SINE = EXACT, IN_BITS = false;
#else
constexpr bool OWN_SINE = true, IN_BITS = !EXACT;
#endif

constexpr float MOST_SMALL = 0.785f;  // below pi/4

// Sine and cosine of |x| <= pi/4 or NaN: Cephes' sinf and cosf polynomials. If OWN_SINE, those of wd_sincos to the bit.
WD_FN void wd_sincos_small(const float x, float* const sine, float* const cosine) {
  const float z = x * x;
  *sine = x + (x * z) * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f);
  *cosine = (1.f - 0.5f * z) +
            (z * z) * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f);
}

// Sine and cosine. If OWN_SINE: x = j pi/2 + r, |r| <= pi/4, pi/2 in four parts (Cody and Waite; j times each of the
// first three is exact for |x| <= 8192), wd_sincos_small of r, then the quadrant by comparisons; IN_BITS takes half as many
// instructions, the lowest bits of the sum, which are j's where |j| < 2^22. NaN and infinities give NaN; far beyond 8192
// the accuracy fades: wrap angles first.
WD_FN void wd_sincos(const float x, float* const sine, float* const cosine) {
  if constexpr (OWN_SINE) {
    const float shifted = x * 0.636619772f + 12582912.f;  // as wd_round
    const float j = shifted - 12582912.f;
    const float r =
        (((x - j * 1.5703125f) - j * 4.837512969970703e-4f) - j * 7.549533620476723e-8f) - j * 2.5633440682570896e-12f;
    float s, c;
    wd_sincos_small(r, &s, &c);
    if constexpr (IN_BITS) {
      const unsigned n = wd_bits(shifted);
      const bool is_odd = (n & 1u) != 0u;
      *sine = wd_float(wd_bits(is_odd ? c : s) ^ (n << 30 & 0x80000000u));
      *cosine = wd_float(wd_bits(is_odd ? s : c) ^ ((n + 1u) << 30 & 0x80000000u));
      return;
    }
    const float quadrant = j - 4.f * wd_round(j * 0.25f);  // -2, -1, 0, 1 or 2
    const bool is_odd = quadrant * quadrant == 1.f;
    const float sine_part = is_odd ? c : s;
    const float cosine_part = is_odd ? s : c;
    *sine = ((quadrant == -1.f) | (quadrant * quadrant == 4.f)) ? -sine_part : sine_part;
    *cosine = ((quadrant == 1.f) | (quadrant * quadrant == 4.f)) ? -cosine_part : cosine_part;
  } else {
    sincosf(x, sine, cosine);
  }
}

WD_FN float wd_sin(const float x) {
  if constexpr (!OWN_SINE) return sinf(x);
  float sine, cosine;
  wd_sincos(x, &sine, &cosine);
  return sine;
}

WD_FN float wd_cos(const float x) {
  if constexpr (!OWN_SINE) return cosf(x);
  float sine, cosine;
  wd_sincos(x, &sine, &cosine);
  return cosine;
}

// A row of an array as a struct of as many floats: aligned to 8 or 16 bytes, as the rows then must be, it moves in
// accesses as wide. On the CPU it moves float by float, so that loops over rows become loads and stores of vectors.
template <class Row>
WD_FN Row wd_load(const float* const from) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Row*>(from);
#else
  Row row;
  for (unsigned i = 0; i < sizeof(Row) / sizeof(float); ++i) reinterpret_cast<float*>(&row)[i] = from[i];
  return row;
#endif
}

template <class Row>
WD_FN void wd_store(float* const to, const Row& row) {
#if defined(__CUDACC__)
  *reinterpret_cast<Row*>(to) = row;
#else
  for (unsigned i = 0; i < sizeof(Row) / sizeof(float); ++i) to[i] = reinterpret_cast<const float*>(&row)[i];
#endif
}

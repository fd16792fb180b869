// CUDA C names that nvcc provides without a header, for the C++ compiler of the backend `host`; included before each source.
// docs/cuda-words.md lists them. Approximate functions are exact here, and atomics cover all threads, whatever their scope.
// It includes only the smallest headers of the C++ library, since each slows down every build.
#pragma once

#if !defined(__CUDACC__)

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define __host__
#define __device__
#define __managed__
#define __shared__ thread_local  // of the OS thread that runs the block
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#if !defined(WD_FIBRES)
#define __constant__
#define WD_UNSEEN
struct uint3 {
  unsigned x, y, z;
};
#endif

// ---- vectors

#define WD_VECTORS(name, T, pair)                                                        \
  struct name##1 { T x; };                                                              \
  struct alignas(pair) name##2 { T x, y; };                                             \
  struct name##3 { T x, y, z; };                                                        \
  struct alignas(2 * pair > 16 ? 16 : 2 * pair) name##4 { T x, y, z, w; };              \
  static inline name##1 make_##name##1(T x) { return {x}; }                             \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                     \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }             \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
WD_VECTORS(char, signed char, 2)
WD_VECTORS(uchar, unsigned char, 2)
WD_VECTORS(short, short, 4)
WD_VECTORS(ushort, unsigned short, 4)
WD_VECTORS(int, int, 8)
WD_VECTORS(long, long, 16)
WD_VECTORS(ulong, unsigned long, 16)
WD_VECTORS(longlong, long long, 16)
WD_VECTORS(ulonglong, unsigned long long, 16)
WD_VECTORS(float, float, 8)
WD_VECTORS(double, double, 16)
struct uint1 { unsigned x; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint1 make_uint1(unsigned x) { return {x}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- least and greatest

template <class T>
static inline T wd_lesser(const T a, const T b) {
  return (a < b) | (b != b) ? a : b;  // of NaN and a number, the number
}
template <class T>
static inline T wd_greater(const T a, const T b) {
  return (a > b) | (b != b) ? a : b;
}
template <class A, class B>
static inline auto min(const A a, const B b) -> decltype(a + b) {
  return wd_lesser<decltype(a + b)>(a, b);
}
template <class A, class B>
static inline auto max(const A a, const B b) -> decltype(a + b) {
  return wd_greater<decltype(a + b)>(a, b);
}
#define WD_LEAST_AND_GREATEST(prefix, T)                                     \
  static inline T prefix##min(const T a, const T b) { return min(a, b); }  \
  static inline T prefix##max(const T a, const T b) { return max(a, b); }
WD_LEAST_AND_GREATEST(u, unsigned)
WD_LEAST_AND_GREATEST(ll, long long)
WD_LEAST_AND_GREATEST(ull, unsigned long long)

// ---- maths

static inline float wd_rsqrt(float x) { return 1.f / sqrtf(x); }
static inline double wd_rsqrt(double x) { return 1. / sqrt(x); }
static inline double wd_sinpi(double x) { return sin(M_PI * remainder(x, 2.)); }
static inline double wd_cospi(double x) { return cos(M_PI * remainder(x, 2.)); }
static inline float wd_sinpi(float x) { return static_cast<float>(wd_sinpi(static_cast<double>(x))); }
static inline float wd_cospi(float x) { return static_cast<float>(wd_cospi(static_cast<double>(x))); }
static inline float rcbrtf(float x) { return 1.f / cbrtf(x); }
static inline double rcbrt(double x) { return 1. / cbrt(x); }
static inline float rhypotf(float x, float y) { return 1.f / hypotf(x, y); }
static inline double rhypot(double x, double y) { return 1. / hypot(x, y); }
static inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
static inline double norm3d(double x, double y, double z) { return sqrt(x * x + y * y + z * z); }
static inline float norm4df(float x, float y, float z, float w) { return sqrtf(x * x + y * y + z * z + w * w); }
static inline double norm4d(double x, double y, double z, double w) { return sqrt(x * x + y * y + z * z + w * w); }
static inline float rnorm3df(float x, float y, float z) { return 1.f / norm3df(x, y, z); }
static inline double rnorm3d(double x, double y, double z) { return 1. / norm3d(x, y, z); }
static inline float rnorm4df(float x, float y, float z, float w) { return 1.f / norm4df(x, y, z, w); }
static inline double rnorm4d(double x, double y, double z, double w) { return 1. / norm4d(x, y, z, w); }
static inline double norm(int n, const double* x) {
  double sum = 0.;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sqrt(sum);
}
static inline float normf(int n, const float* x) {
  double sum = 0.;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(sqrt(sum));
}
static inline double rnorm(int n, const double* x) { return 1. / norm(n, x); }
static inline float rnormf(int n, const float* x) { return 1.f / normf(n, x); }
static inline float normcdff(float x) { return .5f * erfcf(-x * static_cast<float>(M_SQRT1_2)); }
static inline double normcdf(double x) { return .5 * erfc(-x * M_SQRT1_2); }

// e^(x^2) erfc x; from 25 on by a continued fraction, as erfc is subnormal there.
static inline double erfcx(double x) {
  if (x < 25.) return exp(x * x) * erfc(x);
  double rest = x;
  for (int k = 8; k > 0; --k) rest = x + .5 * k / rest;
  return M_2_SQRTPI / 2. / rest;
}
// Quantile p of the normal distribution, by steps of Halley's method in the smaller tail.
static inline double normcdfinv(double p) {
  if (!(p > 0. && p < 1.)) return p == 0. ? -HUGE_VAL : p == 1. ? HUGE_VAL : nan("");
  if (p > .5) return -normcdfinv(1. - p);
  const double t = sqrt(-2. * log(p));  // within 4.5e-4, by Abramowitz and Stegun 26.2.23
  double x = (2.515517 + t * (.802853 + t * .010328)) / (1. + t * (1.432788 + t * (.189269 + t * .001308))) - t;
  for (int i = 0; i < 3; ++i) {
    const double step = (normcdf(x) - p) * exp(.5 * x * x) * 2.5066282746310002;
    x -= step / (1. + .5 * x * step);
  }
  return x;
}
static inline double erfcinv(double y) { return -normcdfinv(.5 * y) * M_SQRT1_2; }
static inline double erfinv(double y) {
  if (fabs(y) > .1) return y < 0. ? -erfcinv(1. + y) : erfcinv(1. - y);
  double x = y * .88622692545275801;  // near 0 the tails have lost what y still has
  for (int i = 0; i < 4; ++i) x -= (erf(x) - y) * exp(x * x) * .88622692545275801;
  return x;
}
static inline float erfcxf(float x) { return static_cast<float>(erfcx(x)); }
static inline float normcdfinvf(float p) { return static_cast<float>(normcdfinv(p)); }
static inline float erfcinvf(float y) { return static_cast<float>(erfcinv(y)); }
static inline float erfinvf(float y) { return static_cast<float>(erfinv(y)); }

static inline double fdivide(double a, double b) { return a / b; }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0.f ? x < 1.f ? x : 1.f : 0.f; }
static inline void wd_sincospi(double x, double* sine, double* cosine) { *sine = wd_sinpi(x), *cosine = wd_cospi(x); }
static inline void wd_sincospi(float x, float* sine, float* cosine) { *sine = wd_sinpi(x), *cosine = wd_cospi(x); }

// Macros, as newer or older C libraries have functions of some of these names.
#define rsqrtf(x) wd_rsqrt(static_cast<float>(x))
#define rsqrt(x) wd_rsqrt(x)
#define sinpi(x) wd_sinpi(x)
#define cospi(x) wd_cospi(x)
#define sinpif(x) wd_sinpi(static_cast<float>(x))
#define cospif(x) wd_cospi(static_cast<float>(x))
#define sincospi(x, sine, cosine) wd_sincospi(x, sine, cosine)
#define sincospif(x, sine, cosine) wd_sincospi(x, sine, cosine)
#define __fdividef(a, b) fdividef(a, b)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sincosf(x, sine, cosine) sincosf(x, sine, cosine)
#define __tanhf(x) tanhf(x)

// Arithmetic rounded in one direction. What is volatile is computed where it stands, between the changes of the mode.
static int wd_round_to(const int mode) {
  const int before = fegetround();
  fesetround(mode);
  return before;
}
#define WD_DIRECTED(name, T, mode, suffix, arguments, value, ...)  \
  static inline T __##name##_##suffix arguments {                  \
    const volatile T __VA_ARGS__;                                  \
    const int before = wd_round_to(mode);                          \
    const volatile T result = value;                               \
    wd_round_to(before);                                           \
    return result;                                                 \
  }
#define WD_ROUNDED(name, T, arguments, value, ...)                                                   \
  static inline T __##name##_rn arguments {                                                          \
    T __VA_ARGS__;                                                                                   \
    return value;                                                                                    \
  }                                                                                                  \
  WD_DIRECTED(name, T, FE_TOWARDZERO, rz, arguments, value, __VA_ARGS__)                             \
  WD_DIRECTED(name, T, FE_DOWNWARD, rd, arguments, value, __VA_ARGS__)                               \
  WD_DIRECTED(name, T, FE_UPWARD, ru, arguments, value, __VA_ARGS__)
#define WD_ARITHMETIC(prefix, T, root, fma, fused)                            \
  WD_ROUNDED(prefix##add, T, (T a, T b), x + y, x = a, y = b)                 \
  WD_ROUNDED(prefix##sub, T, (T a, T b), x - y, x = a, y = b)                 \
  WD_ROUNDED(prefix##mul, T, (T a, T b), x * y, x = a, y = b)                 \
  WD_ROUNDED(prefix##div, T, (T a, T b), x / y, x = a, y = b)                 \
  WD_ROUNDED(prefix##rcp, T, (T a), T(1) / x, x = a)                          \
  WD_ROUNDED(prefix##sqrt, T, (T a), root(x), x = a)                          \
  WD_ROUNDED(fused, T, (T a, T b, T c), fma(x, y, z), x = a, y = b, z = c)
WD_ARITHMETIC(f, float, sqrtf, fmaf, fmaf)
WD_ARITHMETIC(d, double, sqrt, fma, fma)
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }

// ---- casts

template <class To, class From>
static inline To wd_bits_as(const From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline float __int_as_float(int x) { return wd_bits_as<float>(x); }
static inline float __uint_as_float(unsigned x) { return wd_bits_as<float>(x); }
static inline int __float_as_int(float x) { return wd_bits_as<int>(x); }
static inline unsigned __float_as_uint(float x) { return wd_bits_as<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return wd_bits_as<double>(x); }
static inline long long __double_as_longlong(double x) { return wd_bits_as<long long>(x); }
static inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
static inline double __hiloint2double(int high, int low) {
  return wd_bits_as<double>(static_cast<unsigned long long>(high) << 32 | static_cast<unsigned>(low));
}

// To an integer as a GPU does: a number beyond the type's range is the nearest one in it, NaN is 0, or with 64 bits on one
// of the sides the highest bit alone.
template <class Integer, class Float>
static inline Integer wd_to_integer(const Float whole) {
  constexpr Integer half = Integer(1) << (8 * sizeof(Integer) - 2);
  constexpr Integer highest = Integer(-1) < 0 ? half - 1 + half : Integer(-1), lowest = Integer(-1) < 0 ? -highest - 1 : 0;
  if (whole <= static_cast<Float>(lowest)) return lowest;
  if (whole >= static_cast<Float>(highest)) return highest;
  if (whole == whole) return static_cast<Integer>(whole);
  return sizeof(Float) + sizeof(Integer) == 8 ? 0 : Integer(-1) < 0 ? lowest : half + half;
}
#define WD_TO_INTEGER(Float, Integer, result)                                                                             \
  static inline Integer __##Float##2##result##_rn(Float x) { return wd_to_integer<Integer, Float>(nearbyint(x)); }        \
  static inline Integer __##Float##2##result##_rz(Float x) { return wd_to_integer<Integer, Float>(trunc(x)); }            \
  static inline Integer __##Float##2##result##_rd(Float x) { return wd_to_integer<Integer, Float>(floor(x)); }            \
  static inline Integer __##Float##2##result##_ru(Float x) { return wd_to_integer<Integer, Float>(ceil(x)); }
WD_TO_INTEGER(float, int, int)
WD_TO_INTEGER(float, unsigned, uint)
WD_TO_INTEGER(float, long long, ll)
WD_TO_INTEGER(float, unsigned long long, ull)
WD_TO_INTEGER(double, int, int)
WD_TO_INTEGER(double, unsigned, uint)
WD_TO_INTEGER(double, long long, ll)
WD_TO_INTEGER(double, unsigned long long, ull)

#define WD_TO_FLOAT(name, From, T, mode, suffix)        \
  static inline T __##name##2##T##_##suffix(From from) { \
    const volatile From x = from;                       \
    const int before = wd_round_to(mode);               \
    const volatile T result = static_cast<T>(x);        \
    wd_round_to(before);                                \
    return result;                                      \
  }
#define WD_TO_FLOATS(name, From, T)                                                               \
  static inline T __##name##2##T##_rn(From x) { return static_cast<T>(x); }                       \
  WD_TO_FLOAT(name, From, T, FE_TOWARDZERO, rz)                                                   \
  WD_TO_FLOAT(name, From, T, FE_DOWNWARD, rd)                                                     \
  WD_TO_FLOAT(name, From, T, FE_UPWARD, ru)
WD_TO_FLOATS(int, int, float)
WD_TO_FLOATS(uint, unsigned, float)
WD_TO_FLOATS(ll, long long, float)
WD_TO_FLOATS(ull, unsigned long long, float)
WD_TO_FLOATS(double, double, float)
WD_TO_FLOATS(ll, long long, double)
WD_TO_FLOATS(ull, unsigned long long, double)
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }

// ---- integers

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0u;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
static inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
// Select four of the eight bytes of two numbers. The lowest three bits of each digit of the choice are the byte's index.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned choice) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0u;
  for (int i = 0; i < 4; ++i) {
    result |= (static_cast<unsigned>(both >> 8 * (choice >> 4 * i & 7u)) & 255u) << 8 * i;
  }
  return result;
}
static inline unsigned wd_funnel(unsigned low, unsigned high, unsigned shift) {  // upper half of both, shifted left
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << shift >> 32);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) { return wd_funnel(low, high, n & 31u); }
static inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned n) {
  return wd_funnel(low, high, n < 32u ? n : 32u);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return wd_funnel(low, high, 32u - (n & 31u));
}
static inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned n) {
  return wd_funnel(low, high, n < 32u ? 32u - n : 0u);
}
static inline int __mul24(int a, int b) {
  return static_cast<int>((static_cast<long long>(a) << 40 >> 40) * (static_cast<long long>(b) << 40 >> 40));
}
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFFu) * (b & 0xFFFFFFu); }
static inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return wd_upper(a, b); }
static inline long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
static inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
static inline unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>((0ull + a + b) >> 1); }
static inline unsigned __urhadd(unsigned a, unsigned b) { return static_cast<unsigned>((1ull + a + b) >> 1); }
static inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
static inline unsigned __sad(int a, int b, unsigned c) {
  return (a < b ? static_cast<unsigned>(b) - static_cast<unsigned>(a) : static_cast<unsigned>(a) - static_cast<unsigned>(b)) + c;
}

// ---- memory

#define WD_LOAD(name)                        \
  template <class T>                         \
  static inline T name(const T* address) {   \
    return *address;                         \
  }
WD_LOAD(__ldg)
WD_LOAD(__ldca)
WD_LOAD(__ldcg)
WD_LOAD(__ldcs)
WD_LOAD(__ldcv)
WD_LOAD(__ldlu)
template <class T>
struct wd_itself {  // a parameter's type that no argument decides
  using type = T;
};
#define WD_STORE(name)                                                       \
  template <class T>                                                         \
  static inline void name(T* address, const typename wd_itself<T>::type value) { \
    *address = value;                                                        \
  }
WD_STORE(__stcg)
WD_STORE(__stcs)
WD_STORE(__stwb)
WD_STORE(__stwt)
WD_UNSEEN static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __threadfence(); }
static inline void __threadfence_system() { __threadfence(); }
static inline long long clock64() { return clock(); }

// ---- atomics

// With fibres, an atomic that changes nothing switches to other threads: kernels build locks from such calls.
#if defined(WD_FIBRES)
#define WD_TURN(what) wd_yield(what, file, line)
#define WD_CALLER , WD_HERE
static inline void __nanosleep(unsigned, WD_HERE) { WD_TURN("__nanosleep"); }
#else
#define WD_TURN(what) ((void)0)
#define WD_CALLER
static inline void __syncthreads() {}  // as WD_SYNC: threads are the loops
static inline void __syncwarp(unsigned = ~0u) {}
static inline void __nanosleep(unsigned) {}
#endif

// Replace a value by `change` of it; returns the value before. A template, so that a source may define its own.
template <class T, class Change>
WD_UNSEEN static T wd_change(T* const address, const Change change) {
  T before;
  __atomic_load(address, &before, __ATOMIC_SEQ_CST);
  for (;;) {
    T after = change(before);
    if (__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return before;
  }
}
#define WD_ATOMIC(name, expression)                                                          \
  template <class T>                                                                         \
  static T name(T* const address, const typename wd_itself<T>::type value) {                       \
    return wd_change(address, [value](const T old) { return static_cast<T>(expression); });  \
  }                                                                                          \
  template <class T>                                                                         \
  static T name##_block(T* const address, const typename wd_itself<T>::type value) {               \
    return name(address, value);                                                             \
  }                                                                                          \
  template <class T>                                                                         \
  static T name##_system(T* const address, const typename wd_itself<T>::type value) {              \
    return name(address, value);                                                             \
  }
WD_ATOMIC(atomicAdd, old + value)
WD_ATOMIC(atomicSub, old - value)
WD_ATOMIC(atomicMin, value < old ? value : old)
WD_ATOMIC(atomicMax, old < value ? value : old)
WD_ATOMIC(atomicAnd, old & value)
WD_ATOMIC(atomicOr, old | value)
WD_ATOMIC(atomicXor, old ^ value)
WD_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
WD_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)

#define WD_ATOMIC_EXCHANGE(name)                                                                \
  template <class T>                                                                            \
  static T name(T* const address, const typename wd_itself<T>::type value WD_CALLER) {          \
    const T old = wd_change(address, [value](const T) { return value; });                       \
    if (old == value) WD_TURN("atomicExch");                                                    \
    return old;                                                                                 \
  }
WD_ATOMIC_EXCHANGE(atomicExch)
WD_ATOMIC_EXCHANGE(atomicExch_block)
WD_ATOMIC_EXCHANGE(atomicExch_system)
#define WD_ATOMIC_COMPARE(name)                                                                                       \
  template <class T>                                                                                                  \
  WD_UNSEEN static T name(T* const address, typename wd_itself<T>::type compare, typename wd_itself<T>::type value    \
                          WD_CALLER) {                                                                                \
    if (!__atomic_compare_exchange(address, &compare, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {           \
      WD_TURN("atomicCAS");                                                                                           \
    }                                                                                                                 \
    return compare;                                                                                                   \
  }
WD_ATOMIC_COMPARE(atomicCAS)
WD_ATOMIC_COMPARE(atomicCAS_block)
WD_ATOMIC_COMPARE(atomicCAS_system)
#if defined(WD_FIBRES)  // its writes must not be reported to fibres
#undef WD_ATOMIC_ADD
#undef WD_ATOMIC_MIN
#define WD_ATOMIC_ADD(address, value) atomicAdd(address, value)
#define WD_ATOMIC_MIN(address, value) atomicMin(address, value)
#endif

#endif

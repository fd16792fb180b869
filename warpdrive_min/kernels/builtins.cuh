// What nvcc knows without a header, for the C++ compiler of the backend `host`: included by `nvcc.cuh` before a source with
// a thread for each agent. Names that approximate are exact here, and atomics hold for all threads, whatever their scope.
#pragma once

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <limits>
#include <type_traits>

#define __host__
#define __device__
#define __global__
#define __managed__
#define WD_EXPORTED __attribute__((visibility("protected")))
#define __constant__ WD_EXPORTED  // others copy to it, by its name
#define __shared__ thread_local  // of the system's thread that runs the block
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#include "fibres.cuh"

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

// ---- numbers

template <class T>
static inline T wd_lesser(const T a, const T b) {
  if constexpr (std::is_floating_point_v<T>) return fmin(a, b);  // of NaN and a number, the number
  return b < a ? b : a;
}
template <class T>
static inline T wd_greater(const T a, const T b) {
  if constexpr (std::is_floating_point_v<T>) return fmax(a, b);
  return a < b ? b : a;
}
#define WD_LEAST_AND_GREATEST(T)                             \
  static inline T min(T a, T b) { return wd_lesser(a, b); }  \
  static inline T max(T a, T b) { return wd_greater(a, b); }
WD_LEAST_AND_GREATEST(int)
WD_LEAST_AND_GREATEST(unsigned)
WD_LEAST_AND_GREATEST(long)
WD_LEAST_AND_GREATEST(unsigned long)
WD_LEAST_AND_GREATEST(long long)
WD_LEAST_AND_GREATEST(unsigned long long)
WD_LEAST_AND_GREATEST(float)
WD_LEAST_AND_GREATEST(double)
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline auto min(const A a, const B b) {
  return wd_lesser<std::common_type_t<A, B>>(a, b);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline auto max(const A a, const B b) {
  return wd_greater<std::common_type_t<A, B>>(a, b);
}

static inline float wd_rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline double wd_rsqrt(double x) { return 1. / sqrt(x); }
static inline double wd_sinpi(double x) { return sin(M_PI * remainder(x, 2.)); }
static inline double wd_cospi(double x) { return cos(M_PI * remainder(x, 2.)); }
static inline float wd_sinpif(float x) { return static_cast<float>(wd_sinpi(x)); }
static inline float wd_cospif(float x) { return static_cast<float>(wd_cospi(x)); }
static inline float rcbrtf(float x) { return 1.f / cbrtf(x); }
static inline double rcbrt(double x) { return 1. / cbrt(x); }
static inline float rhypotf(float x, float y) { return 1.f / hypotf(x, y); }
static inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
static inline float norm4df(float x, float y, float z, float w) { return sqrtf(x * x + y * y + z * z + w * w); }
static inline float normcdff(float x) { return .5f * erfcf(-x * static_cast<float>(M_SQRT1_2)); }
static inline double normcdf(double x) { return .5 * erfc(-x * M_SQRT1_2); }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0.f ? x < 1.f ? x : 1.f : 0.f; }

// Macros, as newer or older C libraries have functions of some of these names.
#define rsqrtf(x) wd_rsqrtf(x)
#define rsqrt(x) wd_rsqrt(x)
#define sinpi(x) wd_sinpi(x)
#define cospi(x) wd_cospi(x)
#define sinpif(x) wd_sinpif(x)
#define cospif(x) wd_cospif(x)
#define __fdividef(a, b) ((a) / (b))
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

#define WD_ROUNDED(prefix, T, sqrt)                                                   \
  static inline T __##prefix##add_rn(T a, T b) { return a + b; }                      \
  static inline T __##prefix##sub_rn(T a, T b) { return a - b; }                      \
  static inline T __##prefix##mul_rn(T a, T b) { return a * b; }                      \
  static inline T __##prefix##div_rn(T a, T b) { return a / b; }                      \
  static inline T __##prefix##rcp_rn(T a) { return T(1) / a; }                        \
  static inline T __##prefix##sqrt_rn(T a) { return sqrt(a); }
WD_ROUNDED(f, float, sqrtf)
WD_ROUNDED(d, double, sqrt)
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }

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

// To an integer as a GPU does: a number beyond the type's range is the nearest one in it, NaN is 0.
template <class Integer, class Float>
static inline Integer wd_to_integer(const Float whole) {
  constexpr Integer lowest = std::numeric_limits<Integer>::lowest(), highest = std::numeric_limits<Integer>::max();
  if (whole <= static_cast<Float>(lowest)) return lowest;
  if (whole >= static_cast<Float>(highest)) return highest;
  return whole == whole ? static_cast<Integer>(whole) : 0;
}
#define WD_CONVERSIONS(name, Float, Integer, result)                                                                     \
  static inline Integer __##name##2##result##_rn(Float x) { return wd_to_integer<Integer, Float>(nearbyint(x)); }        \
  static inline Integer __##name##2##result##_rz(Float x) { return wd_to_integer<Integer, Float>(trunc(x)); }            \
  static inline Integer __##name##2##result##_rd(Float x) { return wd_to_integer<Integer, Float>(floor(x)); }            \
  static inline Integer __##name##2##result##_ru(Float x) { return wd_to_integer<Integer, Float>(ceil(x)); }
WD_CONVERSIONS(float, float, int, int)
WD_CONVERSIONS(float, float, unsigned, uint)
WD_CONVERSIONS(float, float, long long, ll)
WD_CONVERSIONS(float, float, unsigned long long, ull)
WD_CONVERSIONS(double, double, int, int)
WD_CONVERSIONS(double, double, unsigned, uint)
WD_CONVERSIONS(double, double, long long, ll)
WD_CONVERSIONS(double, double, unsigned long long, ull)
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
static inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
static inline float __double2float_rn(double x) { return static_cast<float>(x); }
static inline double __int2double_rn(int x) { return x; }

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
static inline int __mul24(int a, int b) { return a * b; }
static inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return wd_upper(a, b); }

// ---- memory

template <class T>
static inline T __ldg(const T* address) {
  return *address;
}
WD_UNSEEN static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __threadfence(); }
static inline void __threadfence_system() { __threadfence(); }
static inline long long clock64() { return clock(); }
static inline void __nanosleep(unsigned, WD_HERE) { wd_yield("__nanosleep", file, line); }

// Replace a value by what `change` makes of it; returns the value before. In a template, so that a source may have its own.
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
  static T name(T* const address, const std::common_type_t<T> value) {                       \
    return wd_change(address, [value](const T old) { return static_cast<T>(expression); });  \
  }                                                                                          \
  template <class T>                                                                         \
  static T name##_block(T* const address, const std::common_type_t<T> value) {               \
    return name(address, value);                                                             \
  }                                                                                          \
  template <class T>                                                                         \
  static T name##_system(T* const address, const std::common_type_t<T> value) {              \
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

// Those of which locks are made: a thread that changed nothing lets others have their turn.
template <class T>
static T atomicExch(T* const address, const std::common_type_t<T> value, WD_HERE) {
  const T old = wd_change(address, [value](const T) { return value; });
  if (old == value) wd_yield("atomicExch", file, line);
  return old;
}
template <class T>
WD_UNSEEN static T atomicCAS(T* const address, std::common_type_t<T> compare, std::common_type_t<T> value, WD_HERE) {
  if (!__atomic_compare_exchange(address, &compare, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    wd_yield("atomicCAS", file, line);
  }
  return compare;
}

// ---- symbols

#include <dlfcn.h>
#if __has_include(<link.h>)
#include <link.h>
#endif

// Bytes of an exported variable; 0 where the system does not say.
extern "C" WD_EXPORTED size_t wd_size_of(void* symbol) {
#if defined(__GLIBC__)
  Dl_info library;
  ElfW(Sym)* entry = nullptr;
  if (dladdr1(symbol, &library, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) && entry) return entry->st_size;
#endif
  return 0;
}

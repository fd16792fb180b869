// Names that sources for nvcc rely on, included before a source with a thread for each agent. nvcc includes headers of the
// host's compiler, and WarpDrive included more. NVRTC includes none, so this header defines the same names.
#pragma once

#if !defined(__CUDACC_RTC__)

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#if !defined(__CUDACC__)
#include "builtins.cuh"
#endif

#else

template <class Base, class Exponent>  // of mixed types
WD_FN double pow(Base base, Exponent exponent) {
  return pow(static_cast<double>(base), static_cast<double>(exponent));
}

namespace std {
using ::abs, ::fabs, ::fmod, ::fmin, ::fmax, ::remainder, ::copysign, ::hypot, ::ldexp, ::fma, ::cbrt;
using ::sqrt, ::pow, ::exp, ::exp2, ::expm1, ::log, ::log2, ::log10, ::log1p, ::erf, ::erfc, ::tgamma, ::lgamma;
using ::sin, ::cos, ::tan, ::asin, ::acos, ::atan, ::atan2, ::sinh, ::cosh, ::tanh, ::asinh, ::acosh, ::atanh;
using ::floor, ::ceil, ::round, ::trunc, ::rint, ::nearbyint, ::lround, ::lrint, ::isnan, ::isinf, ::isfinite, ::signbit;
}  // namespace std

#define M_E 2.7182818284590452354
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000)
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.19209289550781250000e-07f
#define DBL_MAX 1.79769313486231570815e+308
#define DBL_MIN 2.22507385850720138309e-308
#define DBL_EPSILON 2.22044604925031308085e-16

#if __has_include(<cuda/std/cstdint>)  // cuRAND's header includes it, and a type or a limit is defined once
#include <cuda/std/climits>
#include <cuda/std/cstdint>
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-SCHAR_MAX - 1)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-SHRT_MAX - 1)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-LONG_MAX - 1)
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define INT64_MAX LONG_MAX
#define INT64_MIN LONG_MIN
#endif

#endif

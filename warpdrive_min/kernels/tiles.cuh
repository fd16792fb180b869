// Tiles of numbers in the order of a GPU's matrix units, and their products.
//
// A tile of 16 x 8 numbers has four in each lane, 4 g + t: those of rows g and g + 8 in columns 2 t and 2 t + 1. Two orders
// are used, R (rows of a tile are rows, columns are units) and T (rows are units). A tile in order R is used unchanged as
// the next layer's left factor, or as the right factor of a product in order T. A tile in order T is used unchanged as the
// left or right factor of a gradient of weights, a sum over rows. For the order of a sum's terms is free: the unit takes a
// lane's columns 2 t and 2 t + 1 for columns t and t + 4. Weights lie in shared memory in the order of the lanes.
//
// Constants that come before this header: N_OUTPUTS; IS_TANH; TF32.
#pragma once

#include "copies.cuh"
#include "matrix_units.cuh"

constexpr int LANES = 32, ROWS = 16;

struct Part {  // what a network computes
  bool has_policy, has_value;

  WD_METHOD int value_column() const { return has_policy ? N_OUTPUTS : 0; }
  WD_METHOD int n_columns() const { return (has_policy ? N_OUTPUTS : 0) + (has_value ? 1 : 0); }
};

#if defined(__CUDACC__)

// A barrier of `n` warps, those of a group.
WD_FN void wd_sync_warps(const int group, const int n) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(n * LANES) : "memory");
}

#endif

// ---- products

// Left factor, 16 x 8, and right factor, 8 x 8: the first bits of each number, and the rest.
struct Left {
  unsigned high[4], low[4];
};
struct Right {
  unsigned high[2], low[2];
};
WD_FN void cut(const float x, unsigned& high, unsigned& low) {
  high = wd_bits(x), low = 0u;
  if (!TF32) wd_cut(x, high, low);  // in TF32 the unit leaves the rest out itself
}
WD_FN Left left(const float a, const float b, const float c, const float d) {
  Left all;
  cut(a, all.high[0], all.low[0]), cut(b, all.high[1], all.low[1]);
  cut(c, all.high[2], all.low[2]), cut(d, all.high[3], all.low[3]);
  return all;
}
WD_FN Left left(const float (&tile)[4]) { return left(tile[0], tile[2], tile[1], tile[3]); }
WD_FN Left left(const float4 x) { return left(x.x, x.y, x.z, x.w); }
WD_FN Right right(const float a, const float b) {
  Right all;
  cut(a, all.high[0], all.low[0]), cut(b, all.high[1], all.low[1]);
  return all;
}
WD_FN void multiply(float* const sum, const Left& a, const Right& b) {
  if (TF32)
    wd_multiply_tf32(sum, a.high, b.high);
  else
    wd_multiply_parts(sum, a.high, a.low, b.high, b.low);
}
WD_FN void zero(float (&tile)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[i] = 0.f;
}
// As `multiply` of two tiles of rows, to a sum over thousands of rows. The unit cuts sums off instead of rounding them, so
// for float32 it adds only 16 rows.
WD_FN void accumulate(float* const sum, const Left (&a)[2], const Right& b0, const Right& b1) {
  if (TF32) {
    multiply(sum, a[0], b0);
    multiply(sum, a[1], b1);
    return;
  }
  float some[4];
  zero(some);
  multiply(some, a[0], b0);
  multiply(some, a[1], b1);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += some[i];
}
WD_FN void activate(float (&tile)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[i] = wd_activated(tile[i]);
}
WD_FN float slope(const float y) { return IS_TANH ? fmaf(-y, y, 1.f) : y <= 0.f ? 0.f : 1.f; }
WD_FN float factor(const float x) { return TF32 ? wd_round_tf32(x) : x; }

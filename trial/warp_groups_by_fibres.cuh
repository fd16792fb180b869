// Words of `warp_groups.cuh` for fibres.
#pragma once
#include <vector>
#include <deque>
#include "matrix_units_by_fibres_.cuh"
using Byte = unsigned char;
using Word = unsigned;
using Long = unsigned long long;
static constexpr int place(const int column, const int k, const int n) { return (k / 4 * n + column) * 16 + k % 4 * 4; }
static Long described(const Word address, const int n) {
  return static_cast<Long>((address & 0x3FFFF) >> 4) | static_cast<Long>(n) << 16 | static_cast<Long>(8) << 32;
}
static thread_local Byte* wd_room;
static Word shared_address(const void* const at) { return static_cast<Word>(static_cast<const Byte*>(at) - wd_room); }
static void store2(const Word at, const Word a, const Word b) {
  if (at % 8) wd_stop("misaligned");
  memcpy(wd_room + at, &a, 4), memcpy(wd_room + at + 4, &b, 4);
}
static float2 shared2(const Word at) { float2 v; memcpy(&v, wd_room + at, 8); return v; }
static void publish_writes() {}

struct Product { Word left[4]; Long a, b; float* sum; int n; bool is_first, is_shared; int part; };
static std::deque<Product>* const wd_queues = new std::deque<Product>[8 * 512];
#define wd_queue (wd_queues + 512 * blockIdx.x)
static thread_local int wd_part[512];
static float wd_factor_at(const Long d, const int mn, const int k) {
  const Word start = (d & 0x3FFF) << 4, lbo = (d >> 16 & 0x3FFF) << 4, sbo = (d >> 32 & 0x3FFF) << 4;
  Word at;
  if (d >> 62 == 1) {
    at = start + mn / 8 * sbo + mn % 8 * 128 + k * 4;
    at ^= (at >> 7 & 7) << 4;
  } else {
    at = start + k / 4 * lbo + mn / 8 * sbo + mn % 8 * 16 + k % 4 * 4;
  }
  float x; memcpy(&x, wd_room + at, 4);
  return x;
}
static float wd_short(const float x) { return CUTS ? __uint_as_float(__float_as_uint(x) & 0xFFFFE000u) : x; }
__attribute__((no_sanitize("thread"), noinline)) static void wd_run_products(const int warp) {
  std::deque<Product>* const q = wd_queue + 32 * warp;
  const int n = q[0].front().n;
  float a[16][8], b[256][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Product& p = q[lane].front();
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i)
      if (!p.is_shared) a[g + 8 * (i % 2)][t + 4 * (i / 2)] = wd_short(__uint_as_float(p.left[i]));
  }
  const Product& p = q[0].front();
  if (p.is_shared)
    for (int m = 0; m < 16; ++m) for (int k = 0; k < 8; ++k) a[m][k] = wd_short(wd_factor_at(p.a, 16 * (warp % 4) + m, k));
  for (int c = 0; c < n; ++c) for (int k = 0; k < 8; ++k) b[c][k] = wd_short(wd_factor_at(p.b, c, k));
  for (int lane = 0; lane < 32; ++lane) {
    const Product& own = q[lane].front();
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < n / 2; ++i) {
      const int row = g + 8 * (i % 4 / 2), column = 8 * (i / 4) + 2 * t + i % 2;
      double s = own.is_first ? 0. : own.sum[i];
      for (int k = 0; k < 8; ++k) s += double(a[row][k]) * b[column][k];
      own.sum[i] = s;
    }
  }
  for (int lane = 0; lane < 32; ++lane) q[lane].pop_front();
}
static void wd_run_until(const int part) {
  const int warp = threadIdx.x / 32;
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    while (!wd_queue[32 * warp].empty() && wd_queue[32 * warp].front().part <= part) wd_run_products(warp);
  __syncwarp();
}
static void begin_products() {}
static void end_products() {
  const int own = wd_part[threadIdx.x]++;
  if (!LATE) wd_run_until(own);
}
template <int N> static void await_products() { wd_run_until(wd_part[threadIdx.x] - 1 - N); }
static void wd_push(Product p) { p.part = wd_part[threadIdx.x]; wd_queue[threadIdx.x].push_back(p); }
static void multiply(float* sum, const Word (&left)[4], const Long right) {
  wd_push({{left[0], left[1], left[2], left[3]}, 0, right, sum, 64, false, false});
}
static void multiply_first(float* sum, const Word (&left)[4], const Long right) {
  wd_push({{left[0], left[1], left[2], left[3]}, 0, right, sum, 64, true, false});
}
template <int N> static void multiply_shared(float (&sum)[N], const Long left, const Long right) {
  wd_push({{}, left, right, sum, 2 * N, false, true});
}
static thread_local int wd_arrived[16], wd_turn[16];
__attribute__((no_sanitize("thread"), noinline)) static void wd_sync_warps(const int group, const int n) {
  const int turn = wd_turn[group];
  if (++wd_arrived[group] == 32 * n) { wd_arrived[group] = 0, ++wd_turn[group]; return; }
  while (wd_turn[group] == turn) wd_yield("wd_sync_warps", __FILE__, __LINE__);
}
static int anew(const int x) { return x; }
static Long anew(const Long x) { return x; }

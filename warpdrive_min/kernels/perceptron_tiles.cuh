// Networks with two hidden layers on matrix units: their layout in shared memory, products, and the forward pass.
//
// A warp takes 16 rows at a time through everything. Warps share only the weights, so there is no barrier of the block. With
// many features, SHARING warps also share the sums of the first layer's gradients; see `learn.cuh`.
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2; N_OUTPUTS; IS_SHARED, if the value is a further output
// on the same hidden layers; IS_TANH; TF32; WARPS of a block; LEARNS, if the pass goes back too; if so, N_TYPES of actions;
// IN_PARTS, if it cuts weights into two factors of TF32 once for all rows, and stores the second ones behind all first ones;
// SHARING, 1 if warps do not share sums.
#pragma once

#include "tiles.cuh"

// Units rounded up to 16; tiles of 8 units, of 8 features (and 1, with the biases as weights), and of 8 outputs.
constexpr int U1 = wd_up(HIDDEN1, 16), U2 = wd_up(HIDDEN2, 16), T1 = U1 / 8, T2 = U2 / 8, KF = wd_up(N_SEEN + 1, 8) / 8;
constexpr int TO = wd_up(N_OUTPUTS + IS_SHARED, 8) / 8;
constexpr bool KEEPS_H1 = SHARING > 1;  // with few features it is cheaper to compute it again than to transpose it
constexpr int STAGES = SHARING > 1 ? 1 : 2;  // of rows: those to compute and those to copy; long rows have room for one
constexpr int SX = 8 * KF + 4, SO = 8 * TO + 4;  // floats of a row of x and of outputs: no two lanes in one bank
constexpr int N_NUMBERS = LEARNS ? (5 + N_TYPES) * ROWS : 0;  // besides x

// Where a block's weights lie in shared memory, in floats: R and T as above, F forward, B backward.
constexpr int OF_W1 = U1 * 8 * KF, OF_W2 = U1 * U2, OF_W3 = 8 * TO * U2;
constexpr int AT_W1R = 0, AT_W2F = AT_W1R + OF_W1, AT_W3F = AT_W2F + OF_W2, AT_B2 = AT_W3F + OF_W3, AT_B3 = AT_B2 + T2 * 16;
constexpr int AT_W1T = AT_B3 + 8 * TO, AT_W2B = AT_W1T + (KEEPS_H1 ? 0 : OF_W1);
constexpr int AT_W3R = AT_W2B + OF_W2, AT_W3T = AT_W3R + OF_W3;
constexpr int N_WEIGHTS = LEARNS ? AT_W3T + OF_W3 : AT_W1T;
constexpr int OF_LOW = IN_PARTS ? N_WEIGHTS : 0, AT_WARPS = N_WEIGHTS + OF_LOW;
// What a warp has behind them: h2, h1 if kept, and numbers of rows if it learns, stages of x, outputs.
constexpr int OF_H1 = LEARNS ? ROWS * U2 : 0, OF_X = OF_H1 + (KEEPS_H1 ? ROWS * U1 : 0);
constexpr int OF_NUMBERS = OF_X + STAGES * ROWS * SX, OF_OUT = OF_NUMBERS + STAGES * N_NUMBERS;
constexpr int WARP_FLOATS = OF_OUT + ROWS * SO;

// Four weights, for one left factor or two right ones.
struct Weights {
  Left all;

  WD_METHOD Right half(const int n) const {
    return {{all.high[2 * n], all.high[2 * n + 1]}, {all.low[2 * n], all.low[2 * n + 1]}};
  }
};
WD_FN Weights weights(const float* const at) {
  const float4 w = wd_load<float4>(at);
  if (OF_LOW == 0) return {left(w)};
  const float4 low = wd_load<float4>(at + OF_LOW);
  return {{{wd_bits(w.x), wd_bits(w.y), wd_bits(w.z), wd_bits(w.w)},
           {wd_bits(low.x), wd_bits(low.y), wd_bits(low.z), wd_bits(low.w)}}};
}

struct Layers {  // the value's output is `v3` and `c3`
  const float *w1, *b1, *w2, *b2, *w3, *b3, *v3, *c3;
};

// Place of a lane's tile of U units in shared memory, (8, U, 2): pairs of rows g and g + 8 lie side by side, and blocks of 8
// floats are exchanged by rows, so that neither stores of R (16 bytes) nor loads of T (8 bytes) meet in a bank.
template <int U>
WD_FN int swizzled(const int row, const int first) {
  return row * 2 * U + (first ^ 8 * ((row >> 1) ^ (row & 1) * 2));
}
// Stores tile n of U units, in order R.
template <int U>
WD_FN void transpose(float* const to, const int lane, const int n, const float (&tile)[4]) {
  const float4 both = make_float4(tile[0], tile[2], tile[1], tile[3]);  // of rows g and g + 8
  wd_store<float4>(to + (swizzled<U>(lane / 4, lane % 4 * 4) ^ 16 * (n % 2)) + n / 2 * 32, both);
}
// Loads 16 units, from 16 j on, of both tiles of 8 rows, in order T.
template <int U>
WD_FN void transposed(const float* const from, const int lane, const int j, float (&tiles)[2][4]) {
  const int place = swizzled<U>(2 * (lane % 4), 2 * (lane / 4));
  const float* const even = from + place + 32 * j;
  const float* const odd = from + (place ^ 16) + 32 * j;
  const float2 both[4] = {wd_load<float2>(even), wd_load<float2>(odd + 2 * U), wd_load<float2>(odd),
                          wd_load<float2>(even + 2 * U)};
#pragma unroll
  for (int e = 0; e < 4; ++e) tiles[0][e] = both[e].x, tiles[1][e] = both[e].y;
}

// Fills the block's weights. Columns of outputs are the choices, then the value.
WD_FN void load_weights(const Part part, float* const shared, const Layers& of) {
  const int me = threadIdx.x;
  constexpr int BY = WARPS * LANES;
  const auto w1 = [&](const int unit, const int k) {
    if (unit >= HIDDEN1 || k > N_SEEN) return 0.f;
    return factor(k == N_SEEN ? of.b1[unit] : of.w1[unit * N_SEEN + k]);
  };
  const auto w2 = [&](const int to, const int from) {
    return to < HIDDEN2 && from < HIDDEN1 ? factor(of.w2[to * HIDDEN1 + from]) : 0.f;
  };
  const auto w3 = [&](const int out, const int unit) {
    if (unit >= HIDDEN2) return 0.f;
    if (part.has_policy && out < N_OUTPUTS) return factor(of.w3[out * HIDDEN2 + unit]);
    return part.has_value && out == part.value_column() ? factor(of.v3[unit]) : 0.f;
  };
  const auto put = [&](const int to, const float a, const float b, const float c, const float d) {
    if (OF_LOW == 0) return wd_store<float4>(shared + to, make_float4(a, b, c, d));
    const Left w = left(a, b, c, d);
    const auto store = [&](float* const at, const unsigned (&x)[4]) {
      wd_store<float4>(at, make_float4(wd_float(x[0]), wd_float(x[1]), wd_float(x[2]), wd_float(x[3])));
    };
    store(shared + to, w.high), store(shared + to + OF_LOW, w.low);
  };
#pragma unroll 1
  for (int n = me; n < U1 * 2 * KF; n += BY) {  // four numbers each
    const int lane = n % 32, g = lane / 4, t = lane % 4, k = n / 32 % KF * 8 + t, unit = n / 32 / KF * 16 + g;
    const float a = w1(unit, k), b = w1(unit, k + 4), c = w1(unit + 8, k), d = w1(unit + 8, k + 4);
    put(AT_W1R + 4 * n, a, b, c, d);
    if (LEARNS && !KEEPS_H1) put(AT_W1T + 4 * n, a, c, b, d);
  }
#pragma unroll 4
  for (int n = me; n < U1 * U2 / 4; n += BY) {
    const int lane = n % 32, g = lane / 4, t = lane % 4;
    const int to = n / 32 / (T1 / 2) * 8 + g, from = n / 32 % (T1 / 2) * 16 + 2 * t;
    put(AT_W2F + 4 * n, w2(to, from), w2(to, from + 1), w2(to, from + 8), w2(to, from + 9));
    const int unit1 = n / 32 / T2 * 16 + g, unit2 = n / 32 % T2 * 8 + 2 * t;
    if (LEARNS)
      put(AT_W2B + 4 * n, w2(unit2, unit1), w2(unit2, unit1 + 8), w2(unit2 + 1, unit1), w2(unit2 + 1, unit1 + 8));
  }
#pragma unroll 1
  for (int n = me; n < 2 * TO * U2; n += BY) {
    const int lane = n % 32, g = lane / 4, t = lane % 4, unit = n / 32 % (T2 / 2) * 16, out = n / 32 / (T2 / 2) * 8;
    const int from = unit + 2 * t, to = unit + g;
    const float a = w3(out + t, to), b = w3(out + t + 4, to), c = w3(out + t, to + 8), d = w3(out + t + 4, to + 8);
    put(AT_W3F + 4 * n, w3(out + g, from), w3(out + g, from + 1), w3(out + g, from + 8), w3(out + g, from + 9));
    if (LEARNS) put(AT_W3R + 4 * n, a, b, c, d), put(AT_W3T + 4 * n, a, c, b, d);
  }
#pragma unroll 1
  for (int n = me; n < T2 * 4; n += BY) {
    const int unit = n / 4 * 8 + n % 4 * 2;
    const float x = unit < HIDDEN2 ? of.b2[unit] : 0.f, y = unit + 1 < HIDDEN2 ? of.b2[unit + 1] : 0.f;
    wd_store<float4>(shared + AT_B2 + 4 * n, make_float4(x, y, x, y));
  }
#pragma unroll 1
  for (int n = me; n < 8 * TO; n += BY)
    shared[AT_B3 + n] = part.has_policy && n < N_OUTPUTS             ? of.b3[n]
                        : part.has_value && n == part.value_column() ? *of.c3
                                                                     : 0.f;
}

// Passes 16 rows forward: units of the second layer into `z`, and if it learns transposed into `mine`; outputs, without
// their biases, into rows of SO.
WD_FN void forward(const float* const shared, const float* const x, float* const outputs, float* const mine, const int lane,
                   float (&z)[T2][4]) {
  const int g = lane / 4, t = lane % 4;
  float h1[T1][4];
#pragma unroll
  for (int k = 0; k < KF; ++k) {
#pragma unroll
    for (int i = 0; i < T1 / 2; ++i) {
      const Weights w = weights(shared + AT_W1R + (i * KF + k) * 128 + 4 * lane);
      const float* const upper = x + g * SX + 8 * k + t;
      const float* const lower = upper + 8 * SX;
      const Left a = left(upper[0], lower[0], upper[4], lower[4]);
      float(&one)[4] = h1[2 * i], (&other)[4] = h1[2 * i + 1];
      if (k == 0) zero(one), zero(other);
      multiply(one, a, w.half(0));
      multiply(other, a, w.half(1));
      if (k == KF - 1) activate(one), activate(other);
    }
  }
#pragma unroll
  for (int n = 0; n < T1; ++n)
    if (KEEPS_H1) transpose<U1>(mine + OF_H1, lane, n, h1[n]);
#pragma unroll
  for (int n = 0; n < T2; ++n) {
    const float4 b = wd_load<float4>(shared + AT_B2 + (4 * n + t) * 4);
    z[n][0] = b.x, z[n][1] = b.y, z[n][2] = b.z, z[n][3] = b.w;
  }
#pragma unroll
  for (int q = 0; q < T1 / 2; ++q) {
    const Left a0 = left(h1[2 * q]), a1 = left(h1[2 * q + 1]);
#pragma unroll
    for (int n = 0; n < T2; ++n) {
      const Weights w = weights(shared + AT_W2F + (n * (T1 / 2) + q) * 128 + 4 * lane);
      multiply(z[n], a0, w.half(0));
      multiply(z[n], a1, w.half(1));
    }
  }
  float out[TO][2][4];
#pragma unroll
  for (int o = 0; o < TO; ++o) zero(out[o][0]), zero(out[o][1]);
#pragma unroll
  for (int n = 0; n < T2; ++n) {
    activate(z[n]);
    const Left a = left(z[n]);
#pragma unroll
    for (int o = 0; o < TO; ++o) {
      const Weights w = weights(shared + AT_W3F + (o * (T2 / 2) + n / 2) * 128 + 4 * lane);
      multiply(out[o][n % 2], a, w.half(n % 2));
    }
    if (LEARNS) transpose<U2>(mine, lane, n, z[n]);
  }
#pragma unroll
  for (int o = 0; o < TO; ++o) {
    float* const upper = outputs + g * SO + 8 * o + 2 * t;
    const float(&one)[4] = out[o][0], (&other)[4] = out[o][1];
    wd_store<float2>(upper, make_float2(one[0] + other[0], one[1] + other[1]));
    wd_store<float2>(upper + 8 * SO, make_float2(one[2] + other[2], one[3] + other[3]));
  }
}

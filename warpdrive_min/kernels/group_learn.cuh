// A2C's and PPO's loss of a minibatch and its gradients, by groups of warps, in one pass over the rows (sm_90a).
//
// A group of four warps takes 64 rows at a time through everything. Products have 64 rows: with z for units before their
// activation, in registers,
//   x -> h1 -> h2 -> outputs -> loss, a lane a row -> d_z2 -> d_z1
// The gradients of weights are products whose rows are units, d_z2' h1 and d_z1' x. Their factors lie in shared memory,
// transposed. Their sums stay in registers for all rows. The few outputs' gradients are sums of a thread's own units.
// d_z1' x of a tile waits for the next tile, whose first product hides the wait for what was stored.
//
// ptxas lets products run side by side only if control flow is the same for all threads, no accumulator is written while
// others are computed, and none is computed when a loop repeats; else it waits for each, without an error.
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2; N_OUTPUTS; IS_SHARED; IS_TANH; TF32, which is true;
// WARPS; N_TYPES; N_AGENTS; SIZES; MASKED; IS_CLIPPED; VALUE_CLIPPED and VALUE_CLIP, as for `learn.cuh`.
#pragma once

constexpr bool BF16 = false;

#include "tiles.cuh"
//
#include "warp_groups.cuh"

constexpr int UNITS = 64, TILE = 64, GROUP_WARPS = 4, GROUP_THREADS = 128, N_GROUPS = WARPS / GROUP_WARPS;
constexpr int KF = wd_up(N_SEEN + 1, 8) / 8, TO = 1, STAGES = 2, SHARING = 1;
constexpr int N_COLUMNS = N_OUTPUTS + IS_SHARED;  // of outputs of a network
constexpr int SX = 8 * KF + 4, SO = 8 * TO + 4;  // floats of a row of x and of outputs: no two lanes in one bank
constexpr int N_NUMBERS = (5 + N_TYPES) * ROWS;
static_assert(TF32 && HIDDEN1 <= UNITS && HIDDEN2 <= UNITS && N_COLUMNS <= 8);

// Where a block's weights lie in shared memory, in floats: right factors, forward and backward.
constexpr int AT_W1 = 0, AT_W2 = AT_W1 + UNITS * 8 * KF, AT_W2B = AT_W2 + UNITS * UNITS, AT_W3 = AT_W2B + UNITS * UNITS;
constexpr int AT_W3B = AT_W3 + 8 * UNITS, AT_B2 = AT_W3B + 8 * UNITS, AT_B3 = AT_B2 + UNITS, AT_WARPS = AT_B3 + 8;
// What a warp has behind them: stages of x and of numbers, outputs.
constexpr int OF_X = 0, OF_NUMBERS = STAGES * ROWS * SX, OF_OUT = OF_NUMBERS + STAGES * N_NUMBERS;
constexpr int WARP_FLOATS = OF_OUT + LANES * SO;  // outputs twice
// And a group: h1, d_z2, d_z1 and x, transposed. Cores of 4 rows are so far apart that no two lanes store to one bank.
constexpr int APART = 4 * UNITS + 4, APART_X = 32 + 16, FACTOR = TILE / 4 * APART, FACTOR_X = TILE / 4 * APART_X;
constexpr int AT_GROUPS = AT_WARPS + WARPS * WARP_FLOATS, OF_D2 = FACTOR, OF_D1 = 2 * FACTOR, OF_XT = 3 * FACTOR;
constexpr int GROUP_FLOATS = OF_XT + STAGES * KF * FACTOR_X;
static_assert(AT_WARPS % 4 == 0 && WARP_FLOATS % 4 == 0 && FACTOR % 4 == 0, "factors are aligned");

#include "learn_rows.cuh"

// Sums of a thread, in the order in which they are added up.
constexpr int R_W2 = 0, R_W1 = UNITS / 2, R_W3 = R_W1 + 4 * KF, R_B2 = R_W3 + N_COLUMNS * UNITS / 4;
constexpr int R_B3 = R_B2 + UNITS / 4, R_TERMS = R_B3 + N_COLUMNS, R_ALL = R_TERMS + N_TERMS;
constexpr int N_TOTALS = R_ALL - R_B3;  // that do not depend on the thread
constexpr int LOOP_FLOATS = AT_GROUPS + N_GROUPS * GROUP_FLOATS, ADD_FLOATS = R_ALL * WARPS * LANES;
constexpr int SHARED_FLOATS = LOOP_FLOATS;
static_assert(LOOP_FLOATS >= ADD_FLOATS + N_TOTALS * LANES, "sums are added up in the same place");

#define EACH_PAIR(s, i)                                 \
  _Pragma("unroll") for (int s = 0; s < UNITS / 8; ++s) \
    _Pragma("unroll") for (int i = 0; i < 2; ++i)
#define EACH_UNIT(s, i)                                 \
  _Pragma("unroll") for (int s = 0; s < UNITS / 8; ++s) \
    _Pragma("unroll") for (int i = 0; i < 4; ++i)

// ---- factors in shared memory

// Fills the block's weights. Columns of outputs are the choices, then the value.
WD_FN void load_weights(const Part part, float* const shared, const float* const parameters, const Places at) {
  constexpr int BY = WARPS * LANES;
  const auto w2 = [&](const int to, const int from) {
    return to < HIDDEN2 && from < HIDDEN1 ? factor(parameters[at.w2 + to * HIDDEN1 + from]) : 0.f;
  };
  const auto w3 = [&](const int out, const int unit) {
    if (unit >= HIDDEN2) return 0.f;
    if (part.has_policy && out < N_OUTPUTS) return factor(parameters[at.w3 + out * HIDDEN2 + unit]);
    return part.has_value && out == part.value_column() ? factor(parameters[at.v3 + unit]) : 0.f;
  };
  const auto put = [&](const int first, const int column, const int k, const int n, const float value) {
    shared[first + static_cast<int>(place(column, k, n)) / 4] = value;
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < UNITS * 8 * KF; n += BY) {
    const int unit = n / (8 * KF), k = n % (8 * KF);
    const bool is_there = unit < HIDDEN1 && k <= N_SEEN;
    put(AT_W1, unit, k, UNITS,
        is_there ? factor(parameters[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k]) : 0.f);
  }
#pragma unroll 4
  for (int n = threadIdx.x; n < UNITS * UNITS; n += BY) {
    const int to = n / UNITS, k = n % UNITS;
    put(AT_W2, to, k, UNITS, w2(to, column_of(k)));
    put(AT_W2B, k, to, UNITS, w2(column_of(to), k));
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < 8 * UNITS; n += BY) {
    const int out = n / UNITS, k = n % UNITS;
    put(AT_W3, out, k, 8, w3(out, column_of(k)));
    put(AT_W3B, k, out, UNITS, w3(out, k));
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < UNITS; n += BY) shared[AT_B2 + n] = n < HIDDEN2 ? parameters[at.b2 + n] : 0.f;
#pragma unroll 1
  for (int n = threadIdx.x; n < 8; n += BY)
    shared[AT_B3 + n] = part.has_policy && n < N_OUTPUTS             ? parameters[at.b3 + n]
                        : part.has_value && n == part.value_column() ? parameters[at.c3]
                                                                     : 0.f;
}

// Units of 64 rows as left factors, 8 at a time: number i of a factor is number `number(i)` of a sum.
typedef Word Units[UNITS / 8][4];
WD_FN constexpr int number(const int i) { return i % 2 * 2 + i / 2; }

// Stores units transposed, as pairs of rows g and g + 8, which lie side by side; `to` is the thread's first place.
WD_FN constexpr int transposed(const int s, const int i) { return s * 32 + i * 4; }
WD_FN void transpose(float* const to, const Units& units) {
  EACH_PAIR(s, i)
  wd_store<float2>(to + transposed(s, i), make_float2(wd_float(units[s][2 * i]), wd_float(units[s][2 * i + 1])));
}
// sum += units * right, of right factors of N columns.
template <int N>
WD_FN void multiply_units(float (&sum)[N / 2], const Units& units, const Word right) {
#pragma unroll
  for (int s = 0; s < UNITS / 8; ++s) multiply(sum, units[s], described_at(right + s * 2 * N));
}

// ---- one network

// Writes a block's sums at their places: gradients, and the terms behind all `n_parameters`.
WD_FN void store_sums(const Part part, float* const shared, const Places at, float* const to, const int n_parameters) {
  constexpr int BY = WARPS * LANES;
  const auto of_threads = [&](const int k, const int first, const int step, const int n) {
    float sum = 0.f;
#pragma unroll 16
    for (int i = 0; i < n; ++i) sum += shared[k * BY + first + i * step];
    return sum;
  };
  // A product's sum, whose first number is `k`, over groups.
  const auto of_product = [&](const int k, const int row, const int column) {
    return of_threads(k + column / 8 * 4 + row % 16 / 8 * 2 + column % 2, row / 16 * LANES + row % 8 * 4 + column % 8 / 2,
                      GROUP_THREADS, N_GROUPS);
  };
  const auto of_unit = [&](const int k, const int unit) {  // over all lanes 4 g + t of one t
    return of_threads(k + unit / 8 * 2 + unit % 2, unit % 8 / 2, 4, BY / 4);
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN2 * HIDDEN1; n += BY) to[at.w2 + n] = of_product(R_W2, n / HIDDEN1, n % HIDDEN1);
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN1 * (N_SEEN + 1); n += BY) {
    const int unit = n / (N_SEEN + 1), k = n % (N_SEEN + 1);
    to[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k] = of_product(R_W1, unit, k);
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < part.n_columns() * HIDDEN2; n += BY) {
    const int out = n / HIDDEN2, unit = n % HIDDEN2;
    const bool is_value = part.has_value && out == part.value_column();
    to[is_value ? at.v3 + unit : at.w3 + n] = of_unit(R_W3 + out * UNITS / 4, unit);
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN2; n += BY) to[at.b2 + n] = of_unit(R_B2, n);
  // Totals over all threads in two parts: alone, few threads would take longer for them than all for the rest.
#pragma unroll 1
  for (int n = threadIdx.x; n < N_TOTALS * LANES; n += BY)
    shared[ADD_FLOATS + n] = of_threads(R_B3 + n / LANES, n % LANES, LANES, WARPS);
  __syncthreads();
  const auto total = [&](const int n) {
    float sum = 0.f;
#pragma unroll 16
    for (int i = 0; i < LANES; ++i) sum += shared[ADD_FLOATS + n * LANES + i];
    return sum;
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < part.n_columns(); n += BY)
    to[part.has_value && n == part.value_column() ? at.c3 : at.b3 + n] = total(n);
#pragma unroll 1
  for (int n = threadIdx.x; n < N_TERMS; n += BY)
    if (n == 1 ? part.has_value : part.has_policy) to[n_parameters + n] = total(N_COLUMNS + n);
}

// A network's gradients and terms over this block's rows; overwrites `shared`.
WD_FN void learn_network(const Part part, float* const shared, const float* const parameters, const Places at,
                         const Rollout& rollout, const Rule& rule, float* const to, const int n_parameters) {
  const int lane = threadIdx.x % LANES, warp = __reduce_min_sync(~0u, threadIdx.x / LANES), g = lane / 4, t = lane % 4;
  const int group = warp / GROUP_WARPS, of_tile = warp % GROUP_WARPS * ROWS, of_block = warp * ROWS;
  __syncthreads();
  load_weights(part, shared, parameters, at);
  float* const mine = shared + AT_WARPS + warp * WARP_FLOATS;
#pragma unroll 1
  for (int n = lane; n < STAGES * ROWS * SX; n += LANES) mine[OF_X + n] = n % SX == N_SEEN ? 1.f : 0.f;  // 1: biases
  float* const factors = shared + AT_GROUPS + group * GROUP_FLOATS;
#pragma unroll 1
  for (int n = threadIdx.x % GROUP_THREADS; n < GROUP_FLOATS - OF_D1; n += GROUP_THREADS) factors[OF_D1 + n] = 0.f;
  publish_stores();
  __syncthreads();

  float w2[UNITS / 2], w1[KF][4], w3[N_COLUMNS][UNITS / 4], b2[UNITS / 4], b3[N_COLUMNS], terms[N_TERMS];
#pragma unroll
  for (int i = 0; i < UNITS / 2; ++i) w2[i] = 0.f;
#pragma unroll
  for (int i = 0; i < 4 * KF; ++i) w1[i / 4][i % 4] = 0.f;
#pragma unroll
  for (int c = 0; c < N_COLUMNS; ++c) {
    b3[c] = 0.f;
#pragma unroll
    for (int i = 0; i < UNITS / 4; ++i) w3[c][i] = 0.f;
  }
#pragma unroll
  for (int i = 0; i < UNITS / 4; ++i) b2[i] = 0.f;
#pragma unroll
  for (int i = 0; i < N_TERMS; ++i) terms[i] = 0.f;

  const int own = (of_tile + 2 * g) / 4 * APART + 2 * g % 4 + 8 * t;  // the thread's first place in a transposed factor
  const int own_x = (of_tile + 2 * g) / 4 * APART_X + 2 * g % 4 + 4 * t;
  const Word base = shared_address(shared), of_group = base + 4 * (AT_GROUPS + group * GROUP_FLOATS);
  const auto left_at = [&](const int offset) { return described_low(of_group + 4 * offset, APART / 4); };
  const Word by_w1 = described_low(base + 4 * AT_W1, UNITS), by_w2 = described_low(base + 4 * AT_W2, UNITS);
  const Word by_w2b = described_low(base + 4 * AT_W2B, UNITS), by_w3 = described_low(base + 4 * AT_W3, 8);
  const Word by_w3b = described_low(base + 4 * AT_W3B, UNITS);
  const Word h1_t = left_at(0), d2_t = left_at(OF_D2), d1_t = left_at(OF_D1);

  // Groups take tiles side by side, so that all threads leave the loop at once, and descriptions of factors are uniform.
  const int n_tiles = (rollout.n_rows + N_GROUPS * TILE - 1) / (N_GROUPS * TILE), by = gridDim.x;
  int tile = blockIdx.x;
  const auto row_of = [&](const int which) { return rollout.within(which * (N_GROUPS * TILE) + of_block + lane % ROWS); };
  int next = 0;  // an index as loaded, for arithmetic on it would wait for memory
  if (tile < n_tiles) {
    begin_copies(part, mine, 0, rollout, row_of(tile), rollout.source(row_of(tile)), lane);
    if (tile + by < n_tiles) next = rollout.index(row_of(tile + by));
  }
  wd_end_copies();
  int stage = 0;
  const auto multiply_x = [&](const int of_stage) {  // d_z1' x
    publish_stores();
    wd_sync_warps(group, GROUP_WARPS);  // all have stored d_z1 and x, and no longer multiply d_z2' h1
    begin_products();
#pragma unroll
    for (int k = 0; k < KF; ++k) {
      const Word x_t = described_low(of_group + 4 * (OF_XT + (of_stage * KF + k) * FACTOR_X), APART_X / 4);
#pragma unroll
      for (int s = 0; s < TILE / 8; ++s)
        multiply(w1[k], described_at(d1_t + s * 2 * (APART / 4)), described_at(x_t + s * 2 * (APART_X / 4)));
    }
    end_products();
  };
#pragma unroll 1
  for (; tile < n_tiles; tile += by, stage ^= 1) {
    if (const int row = row_of(tile + by); tile + by < n_tiles)
      begin_copies(part, mine, stage ^ 1, rollout, row, rollout.source(row, next), lane);
    wd_end_copies();
    if (tile + 2 * by < n_tiles) next = rollout.index(row_of(tile + 2 * by));
    wd_await_all_but_last();
    __syncwarp();
    const float* const x = mine + OF_X + stage * ROWS * SX;
    float* const outputs = mine + OF_OUT;

    Word seen[KF][4];
    Units h1, h2;  // h2 becomes d_z2, then d_z1
    float z[UNITS / 2];
#pragma unroll
    for (int k = 0; k < KF; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) seen[k][i] = wd_bits(x[(g + i % 2 * 8) * SX + 8 * k + t + i / 2 * 4]);
#pragma unroll
    for (int i = 0; i < UNITS / 2; ++i) z[i] = 0.f;
    begin_products();
#pragma unroll
    for (int k = 0; k < KF; ++k) multiply(z, seen[k], described_at(by_w1 + k * 2 * UNITS));
    end_products();
    multiply_x(stage ^ 1);  // of the tile before
    await_products<1>();
    EACH_UNIT(s, i) h1[s][i] = wd_bits(wd_activated(z[4 * s + number(i)]));

#pragma unroll
    for (int s = 0; s < UNITS / 8; ++s) {
      const float2 b = wd_load<float2>(shared + AT_B2 + 8 * s + 2 * t);
      z[4 * s] = z[4 * s + 2] = b.x, z[4 * s + 1] = z[4 * s + 3] = b.y;
    }
    begin_products();
    multiply_units<UNITS>(z, h1, by_w2);
    end_products();
    transpose(factors + own, h1);
#pragma unroll
    for (int k = 0; k < KF; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        wd_store<float2>(factors + OF_XT + (stage * KF + k) * FACTOR_X + own_x + 16 * i,
                         make_float2(wd_float(seen[k][2 * i]), wd_float(seen[k][2 * i + 1])));
    await_products<0>();
    EACH_UNIT(s, i) h2[s][i] = wd_bits(wd_activated(z[4 * s + number(i)]));

    float out[4] = {0.f, 0.f, 0.f, 0.f};
    begin_products();
    multiply_units<8>(out, h2, by_w3);
    end_products();
    await_products<0>();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      wd_store<float2>(outputs + (g + 8 * i) * SO + 2 * t, make_float2(out[i % 2 * 2], out[i % 2 * 2 + 1]));
    __syncwarp();
    // The other lanes compute the same outputs with a weight of 0.
    const int row = lane < ROWS ? tile * (N_GROUPS * TILE) + of_block + lane : rollout.n_rows;
    loss(part, rollout, rule, row, outputs + lane * SO, shared + AT_B3,
         mine + OF_NUMBERS + stage * N_NUMBERS + lane % ROWS, terms);
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c) b3[c] += outputs[lane * SO + c];
    __syncwarp();

    Word d_out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) d_out[i] = wd_bits(outputs[(g + i % 2 * 8) * SO + t + i / 2 * 4]);
#pragma unroll
    for (int i = 0; i < UNITS / 2; ++i) z[i] = 0.f;
    begin_products();
    multiply(z, d_out, described_at(by_w3b));
    end_products();
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c) {
      if (c >= part.n_columns()) break;
      const float of_row[2] = {outputs[g * SO + c], outputs[(g + 8) * SO + c]};
      EACH_UNIT(s, i) w3[c][2 * s + i / 2] = fmaf(wd_float(h2[s][i]), of_row[i % 2], w3[c][2 * s + i / 2]);
    }
    await_products<0>();
    EACH_UNIT(s, i) {
      const float d = z[4 * s + number(i)] * slope(wd_float(h2[s][i]));
      h2[s][i] = wd_bits(d);
      b2[2 * s + i / 2] += d;
    }
#pragma unroll
    for (int i = 0; i < UNITS / 2; ++i) z[i] = 0.f;
    begin_products();
    multiply_units<UNITS>(z, h2, by_w2b);
    end_products();
    transpose(factors + OF_D2 + own, h2);
    Units slopes;
    EACH_PAIR(s, i) {
      const float2 h = wd_load<float2>(factors + own + transposed(s, i));
      slopes[s][2 * i] = wd_bits(slope(h.x)), slopes[s][2 * i + 1] = wd_bits(slope(h.y));
    }
    publish_stores();
    wd_sync_warps(group, GROUP_WARPS);  // all have stored h1 and d_z2
    begin_products();
#pragma unroll
    for (int s = 0; s < TILE / 8; ++s)
      multiply(w2, described_at(d2_t + s * 2 * (APART / 4)), described_at(h1_t + s * 2 * (APART / 4)));
    end_products();
    await_products<1>();
    EACH_UNIT(s, i) h2[s][i] = wd_bits(z[4 * s + number(i)] * wd_float(slopes[s][i]));
    transpose(factors + OF_D1 + own, h2);
    await_products<0>();
  }
  multiply_x(stage ^ 1);
  await_products<0>();

  __syncthreads();
  float* const sums = shared + threadIdx.x;
  constexpr int BY = WARPS * LANES;
#pragma unroll
  for (int i = 0; i < UNITS / 2; ++i) sums[(R_W2 + i) * BY] = w2[i];
#pragma unroll
  for (int i = 0; i < 4 * KF; ++i) sums[(R_W1 + i) * BY] = w1[i / 4][i % 4];
#pragma unroll
  for (int c = 0; c < N_COLUMNS; ++c) {
    sums[(R_B3 + c) * BY] = b3[c];
#pragma unroll
    for (int i = 0; i < UNITS / 4; ++i) sums[(R_W3 + c * UNITS / 4 + i) * BY] = w3[c][i];
  }
#pragma unroll
  for (int i = 0; i < UNITS / 4; ++i) sums[(R_B2 + i) * BY] = b2[i];
#pragma unroll
  for (int i = 0; i < N_TERMS; ++i) sums[(R_TERMS + i) * BY] = terms[i];
  __syncthreads();
  store_sums(part, shared, at, to, n_parameters);
}

#include "learn_part.cuh"

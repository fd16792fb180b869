// A2C's and PPO's loss of a minibatch and its gradients, by groups of warps, in one pass over the rows (sm_90a).
//
// A group of four warps takes 64 rows at a time through everything. Products have 64 rows: with z for units before their
// activation, in registers,
//   x -> z1 -> h1 -> z2 -> h2 -> outputs -> loss -> d_z2 -> d_z1
// The gradients of weights are products whose rows are units, d_z2' h1 and d_z1' x. Their factors lie in shared memory,
// transposed. Their sums stay in registers for all rows. The few outputs, and their gradients, are sums of a thread's own
// units. The warps of a group meet three times per tile: before h1 and x are written (M), when h1 and d_z2 are (A), and when
// d_z1 is (B). d_z1' x ends with the first product of the next tile.
//
// ptxas lets products run side by side only if control flow is the same for all threads, and no accumulator is written while
// others are computed; else it waits for each, without an error. With three groups a thread has 168 registers. A value that
// spills waits in the loop for copies of rows, which is why some are computed anew, and `Sizes.n_groups` may be two.
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2; N_OUTPUTS; IS_SHARED; IS_TANH; TF32, which is true;
// WARPS; N_TYPES; N_AGENTS; SIZES; MASKED; IS_CLIPPED; VALUE_CLIPPED and VALUE_CLIP, as for `learn.cuh`.
#pragma once

constexpr bool BF16 = false;

#include "tiles.cuh"
//
#include "warp_groups.cuh"

constexpr int UNITS = 64, STEPS = UNITS / 8, TILE = 64, GROUP_WARPS = 4, GROUP_THREADS = 128, N_GROUPS = WARPS / GROUP_WARPS;
constexpr int KF = wd_up(N_SEEN + 1, 8) / 8, TO = 1, STAGES = 2;
constexpr int MOST_COLUMNS = N_OUTPUTS + IS_SHARED;  // of outputs of a network
static_assert(TF32 && HIDDEN1 <= UNITS && HIDDEN2 <= UNITS && MOST_COLUMNS <= 4, "outputs are half a left factor");

// A group's transposed factors: h1, of which row 64 is ones; d_z2; d_z1; x. Cores of 4 rows are so far apart that no two
// lanes store to one bank.
constexpr int H1 = 0, ONES = H1 + UNITS, D_Z2 = ONES + 8, D_Z1 = D_Z2 + UNITS, X = D_Z1 + UNITS, N_FACTORS = X + 8 * KF;
constexpr int APART = 16 * N_FACTORS + 16, GROUP_BYTES = TILE / 4 * APART;
// Behind those of all groups lie weights: right factors, w3 once more as numbers, and biases of outputs; then the rule.
constexpr int BYTES_8 = 8 * UNITS * 4, BYTES_W2 = UNITS * UNITS * 4;
constexpr int AT_W1 = N_GROUPS * GROUP_BYTES, AT_B2 = AT_W1 + KF * BYTES_8, AT_W3B = AT_B2 + BYTES_8;
constexpr int AT_W2 = AT_W3B + BYTES_8, AT_W2B = AT_W2 + BYTES_W2, AT_W3 = AT_W2B + BYTES_W2;
constexpr int AT_B3 = AT_W3 + 4 * UNITS * 4, AT_RULE = AT_B3 + 8 * 4, AT_WARPS = AT_RULE + 4 * 4;
// And a warp's rows in two stages, in floats: those to compute and those to copy.
constexpr int SX = 8 * KF + 4, INDEX = (5 + N_TYPES) * ROWS, N_NUMBERS = INDEX + ROWS;
constexpr int OF_X = 0, OF_NUMBERS = STAGES * ROWS * SX;
constexpr int WARP_FLOATS = OF_NUMBERS + STAGES * N_NUMBERS, SHARED_FLOATS = AT_WARPS / 4 + WARPS * WARP_FLOATS;

#include "learn_places.cuh"
#include "loss.cuh"

// Offset of a unit's number of row k in a group's factors.
WD_FN constexpr int place_of(const int unit, const int k) { return k / 4 * APART + unit * 16 + k % 4 * 4; }

// Sums of a thread over its rows, in the order in which groups add them.
template <int N_COLUMNS>
struct Sums {
  static constexpr int W1 = 36, W3 = W1 + 4 * KF, B3 = W3 + 2 * STEPS * N_COLUMNS, TERMS = B3 + N_COLUMNS;
  static constexpr int ALL = TERMS + N_TERMS, N_TOTALS = ALL - B3;  // totals do not depend on the thread
  float w2[36], w1[KF][4], w3[N_COLUMNS][2 * STEPS], b3[N_COLUMNS], terms[N_TERMS];

  WD_METHOD void clear() {
    each([](float& sum, int) { sum = 0.f; });
  }
  template <class Function>
  WD_METHOD void each(const Function& function) {
#pragma unroll
    for (int k = 0; k < 36; ++k) function(w2[k], k);
#pragma unroll
    for (int k = 0; k < 4 * KF; ++k) function(w1[k / 4][k % 4], W1 + k);
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c) {
#pragma unroll
      for (int k = 0; k < 2 * STEPS; ++k) function(w3[c][k], W3 + 2 * STEPS * c + k);
      function(b3[c], B3 + c);
    }
#pragma unroll
    for (int k = 0; k < N_TERMS; ++k) function(terms[k], TERMS + k);
  }
};

// ---- weights

// Fills the block's weights. Columns of outputs are the choices, then the value.
WD_FN void load_weights(const Part part, Byte* const room, const float* const parameters, const Places at) {
  constexpr int BY = WARPS * LANES;
  const auto put = [&](const int to, const float value) { *reinterpret_cast<float*>(room + to) = value; };
  const auto w2 = [&](const int to, const int from) {
    return to < HIDDEN2 && from < HIDDEN1 ? factor(parameters[at.w2 + to * HIDDEN1 + from]) : 0.f;
  };
  const auto w3 = [&](const int out, const int unit) {
    if (unit >= HIDDEN2) return 0.f;
    if (part.has_policy && out < N_OUTPUTS) return factor(parameters[at.w3 + out * HIDDEN2 + unit]);
    return part.has_value && out == part.value_column() ? factor(parameters[at.v3 + unit]) : 0.f;
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < UNITS * 8 * KF; n += BY) {
    const int unit = n / (8 * KF), k = n % (8 * KF);
    const bool is_there = unit < HIDDEN1 && k <= N_SEEN;
    put(AT_W1 + place(unit, k, UNITS),
        is_there ? factor(parameters[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k]) : 0.f);
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < UNITS * 8; n += BY) {
    const int unit = n / 8, k = n % 8, to = place(unit, k, UNITS);
    put(AT_B2 + to, unit < HIDDEN2 && k == N_SEEN % 8 ? factor(parameters[at.b2 + unit]) : 0.f);
    put(AT_W3B + to, k < 4 ? w3(k, unit) : 0.f);
    if (k < 4) put(AT_W3 + (k * UNITS + unit) * 4, w3(k, unit));
  }
#pragma unroll 4
  for (int n = threadIdx.x; n < UNITS * UNITS; n += BY) {
    const int column = n / UNITS, k = n % UNITS, to = place(column, k, UNITS);
    put(AT_W2 + to, w2(column, column_of(k)));
    put(AT_W2B + to, w2(column_of(k), column));
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < 8; n += BY)
    put(AT_B3 + 4 * n, part.has_policy && n < N_OUTPUTS             ? parameters[at.b3 + n]
                       : part.has_value && n == part.value_column() ? parameters[at.c3]
                                                                    : 0.f);
}

// Starts the copies of a tile's rows, if it is there, from what the stage has as their indices, and of the indices of rows
// `following`. Two lanes copy a row. Branches would make the products that run meanwhile wait.
template <bool HAS_POLICY, bool HAS_VALUE>
WD_FN void begin_copies(const Word mine, const int stage, const Rollout& rollout, const int row, const int following,
                        const bool is_there, const int lane) {
  const int half = lane / ROWS;
  const Word x = mine + 4 * (OF_X + (stage * ROWS + lane % ROWS) * SX);
  const Word numbers = mine + 4 * (OF_NUMBERS + stage * N_NUMBERS + lane % ROWS);
  const int loaded = static_cast<int>(shared1(numbers + 4 * INDEX));
  __syncwarp();
  const long long source = rollout.source(row, rollout.indices ? loaded : row / N_AGENTS);
  const float* const from = rollout.observations + source * N_SEEN;
  if constexpr (N_SEEN % 4 == 0) {  // rows of 16 bytes are aligned
#pragma unroll
    for (int k = 0; k < N_SEEN; k += 8)
      copy16_if(x + 4 * (k + 4 * half), from + k + 4 * half, is_there && k + 4 * half < N_SEEN);
  } else {
#pragma unroll
    for (int k = 0; k < N_SEEN; k += 2) copy4_if(x + 4 * (k + half), from + k + half, is_there && k + half < N_SEEN);
  }
  // A number of the row for each of the two lanes.
  struct Number {
    int at;
    const void* from;
    bool is_there;
  };
  const auto two = [&](const Number& a, const Number& b) {
    copy4_if(numbers + 4 * (half ? b.at : a.at), half ? b.from : a.from, is_there && (half ? b.is_there : a.is_there));
  };
  const bool is_given = rollout.advantages, needs_return = HAS_VALUE || !is_given;  // advantages, else returns - value
  if constexpr (HAS_POLICY) {
    two({LOG_PROB, rollout.log_probs + source, true},
        {ADVANTAGE, rollout.advantages + (rollout.is_taken ? row : source), is_given});
#pragma unroll 1
    for (int type = 1; type < N_TYPES; ++type)
      copy4_if(numbers + 4 * (ACTIONS + ROWS * type), rollout.actions + source * N_TYPES + type, is_there && half);
  }
  two({INDEX, rollout.indices + following / N_AGENTS, rollout.indices != nullptr},
      {ACTIONS, rollout.actions + source * N_TYPES, HAS_POLICY});
  two({WEIGHT, rollout.weights + row / N_AGENTS, rollout.weights != nullptr},
      {RETURN, rollout.returns + source, needs_return});
  if (VALUE_CLIPPED || !HAS_VALUE)
    copy4_if(numbers + 4 * OLD_VALUE, rollout.old_values + source, is_there && half && needs_return);
}

// ---- one network

// Writes a block's sums at their places: gradients, and the terms behind all `n_parameters`.
template <class All>
WD_FN void store_sums(const Part part, float* const shared, const Places at, float* const to, const int n_parameters) {
  constexpr int BY = WARPS * LANES, AT_TOTALS = All::ALL * GROUP_THREADS, PARTS = 16;
  // A product's sum, whose first number is `k`.
  const auto of_product = [&](const int k, const int row, const int column) {
    const int sum = k + column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
    return shared[sum * GROUP_THREADS + row / 16 * LANES + row % 8 * 4 + column % 8 / 2];
  };
  const auto of_threads = [&](const float* const first, const int step, const int n) {
    float sum = 0.f;
#pragma unroll 16
    for (int i = 0; i < n; ++i) sum += first[i * step];
    return sum;
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN2 * HIDDEN1; n += BY) to[at.w2 + n] = of_product(0, n / HIDDEN1, n % HIDDEN1);
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN2; n += BY) to[at.b2 + n] = of_product(0, n, ONES);
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN1 * (N_SEEN + 1); n += BY) {
    const int unit = n / (N_SEEN + 1), k = n % (N_SEEN + 1);
    to[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k] = of_product(All::W1, unit, column_of(k));
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < part.n_columns() * HIDDEN2; n += BY) {
    const int out = n / HIDDEN2, unit = n % HIDDEN2;
    const bool is_value = part.has_value && out == part.value_column();
    const float* const first = shared + (All::W3 + 2 * STEPS * out + unit / 8 * 2 + unit % 2) * GROUP_THREADS + unit % 8 / 2;
    to[is_value ? at.v3 + unit : at.w3 + n] = of_threads(first, 4, GROUP_THREADS / 4);
  }
  // Totals of rows, which two of each four lanes have, in parts: alone, few threads would take longer than all for the rest.
#pragma unroll 1
  for (int n = threadIdx.x; n < All::N_TOTALS * PARTS; n += BY)
    shared[AT_TOTALS + n] =
        of_threads(shared + (All::B3 + n / PARTS) * GROUP_THREADS + n % PARTS / 2 * 4 + n % 2, 32, GROUP_THREADS / 32);
  __syncthreads();
  const auto total = [&](const int n) { return of_threads(shared + AT_TOTALS + n * PARTS, 1, PARTS); };
#pragma unroll 1
  for (int n = threadIdx.x; n < part.n_columns(); n += BY)
    to[part.has_value && n == part.value_column() ? at.c3 : at.b3 + n] = total(n);
#pragma unroll 1
  for (int n = threadIdx.x; n < N_TERMS; n += BY)
    if (n == 1 ? part.has_value : part.has_policy) to[n_parameters + n] = total(All::TERMS - All::B3 + n);
}

// A network's gradients and terms over this block's rows; overwrites `room`.
template <bool HAS_POLICY, bool HAS_VALUE>
WD_FN void learn_network(float* const shared, const float* const parameters, const Places at, const Rollout& rollout,
                         const Rule& rule, float* const to, const int n_parameters) {
  constexpr Part part = {HAS_POLICY, HAS_VALUE};
  constexpr int N_COLUMNS = (HAS_POLICY ? N_OUTPUTS : 0) + HAS_VALUE;
  Byte* const room = reinterpret_cast<Byte*>(shared);
  const int lane = threadIdx.x % LANES, warp = __reduce_min_sync(~0u, threadIdx.x / LANES), g = lane / 4, t = lane % 4;
  const int group = warp / GROUP_WARPS, of_group = warp % GROUP_WARPS;
  const Word base = shared_address(room), area = base + group * GROUP_BYTES;
  __syncthreads();
  load_weights(part, room, parameters, at);
  float* const mine = shared + AT_WARPS / 4 + warp * WARP_FLOATS;
#pragma unroll 1
  for (int n = lane; n < STAGES * ROWS * SX; n += LANES) mine[OF_X + n] = n % SX == N_SEEN ? 1.f : 0.f;  // 1: biases
#pragma unroll 1
  for (int n = threadIdx.x % GROUP_THREADS; n < (N_FACTORS - ONES) * TILE; n += GROUP_THREADS)
    *reinterpret_cast<float*>(room + group * GROUP_BYTES + place_of(ONES + n / TILE, n % TILE)) = n < TILE ? 1.f : 0.f;
  if (threadIdx.x == 0) *reinterpret_cast<Rule*>(room + AT_RULE) = rule;  // registers are few
  publish_stores();
  __syncthreads();

  Sums<N_COLUMNS> sums;
  sums.clear();

  const Long rights = anew(described(base + AT_W1, UNITS)), factors = anew(described(area, APART / 16));
  const auto right_at = [&](const int offset) { return rights + (offset - AT_W1) / 16; };
  const auto factor_at = [&](const int unit, const int s) { return factors + place_of(unit, 8 * s) / 16; };
  const Word own = area + place_of(2 * t, 16 * of_group + 2 * g);  // of units 2 t and 2 t + 1, rows g and g + 8
  const auto unit_at = [&](const int first, const int s, const int e) { return own + (first + 8 * s + e) * 16; };
  const Word x_at = anew(static_cast<Word>(shared_address(mine) + 4 * (OF_X + g * SX + t)));
  const float* const w3 = shared + AT_W3 / 4 + 2 * t;
  const bool is_lower = t % 2;  // of rows g and g + 8 a lane takes one through the loss
  const int of_loss = g + 8 * is_lower;

  // Groups take tiles side by side, so that all threads leave the loop at once.
  const int n_tiles = (rollout.n_rows + N_GROUPS * TILE - 1) / (N_GROUPS * TILE), by = gridDim.x;
  int tile = blockIdx.x;
  const auto row_of = [&](const int which, const int of_lane) {
    return rollout.within(min(which, n_tiles - 1) * (N_GROUPS * TILE) + warp * ROWS + of_lane % ROWS);
  };
  // Copies a tile's rows into the stage that has their indices, and then the indices of the tile that has the stage next.
  const auto begin = [&](const int which, const int of_stage) {
    const int own_lane = static_cast<int>(anew(static_cast<Word>(threadIdx.x)) % LANES);  // in no register meanwhile
    begin_copies<HAS_POLICY, HAS_VALUE>(base + AT_WARPS + warp * (4 * WARP_FLOATS), of_stage, rollout,
                                        row_of(which, own_lane), row_of(which + STAGES * by, own_lane), which < n_tiles,
                                        own_lane);
    wd_end_copies();
  };
#pragma unroll
  for (int n = 0; n < STAGES; ++n) {
    const int index = rollout.index(row_of(tile + n * by, lane));
    mine[OF_NUMBERS + n * N_NUMBERS + INDEX + lane % ROWS] = wd_float(static_cast<Word>(index));
    __syncwarp();
    begin(tile + n * by, n);
  }
  int stage = 0;
#pragma unroll 1
  for (; tile < n_tiles; tile += by, stage ^= 1) {
    wd_await_all_but_last();
    __syncwarp();
    const Word x = x_at + stage * (4 * ROWS * SX);

    // Forward; z1 and z2 become h1 and h2.
    float z1[UNITS / 2], z2[UNITS / 2];
    Word seen[KF][4];
#pragma unroll
    for (int k = 0; k < KF; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) seen[k][i] = shared1(x + 4 * (i % 2 * 8 * SX + 8 * k + i / 2 * 4));
    begin_products();
    multiply_first(z1, seen[0], right_at(AT_W1));
#pragma unroll
    for (int k = 1; k < KF; ++k) multiply(z1, seen[k], right_at(AT_W1 + k * BYTES_8));
    end_products();
    multiply_first(z2, seen[N_SEEN / 8], right_at(AT_B2));
    end_products();
    await_products<1>();
    wd_sync_warps(group, GROUP_WARPS);  // M
#pragma unroll
    for (int k = 0; k < KF; ++k)  // features t and t + 4 are units 2 t and 2 t + 1
#pragma unroll
      for (int e = 0; e < 2; ++e) store2(unit_at(X, k, e), seen[k][2 * e], seen[k][2 * e + 1]);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      float* const h = z1 + 4 * s;
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] = wd_activated(h[i]);
#pragma unroll
      for (int e = 0; e < 2; ++e) store2(unit_at(H1, s, e), wd_bits(h[e]), wd_bits(h[2 + e]));
      const Word left[4] = {wd_bits(h[0]), wd_bits(h[2]), wd_bits(h[1]), wd_bits(h[3])};
      begin_products();
      multiply(z2, left, right_at(AT_W2 + s * BYTES_8));
    }
    end_products();
    await_products<0>();
    float out[N_COLUMNS][2] = {};
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      float* const h = z2 + 4 * s;
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] = wd_activated(h[i]);
#pragma unroll
      for (int c = 0; c < N_COLUMNS; ++c) {
        const float2 w = wd_load<float2>(w3 + c * UNITS + 8 * s);
        out[c][0] = fmaf(h[1], w.y, fmaf(h[0], w.x, out[c][0]));
        out[c][1] = fmaf(h[3], w.y, fmaf(h[2], w.x, out[c][1]));
      }
    }

    // Loss, a row for two of four lanes each.
    alignas(16) float outputs[8] = {};
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c) {
      const float keep = is_lower ? out[c][1] : out[c][0], send = is_lower ? out[c][0] : out[c][1];
      const float two = keep + __shfl_xor_sync(~0u, send, 1);
      outputs[c] = two + __shfl_xor_sync(~0u, two, 2);
    }
    loss(part, rollout, *reinterpret_cast<const Rule*>(room + AT_RULE),
         tile * (N_GROUPS * TILE) + warp * ROWS + of_loss, outputs, shared + AT_B3 / 4,
         mine + OF_NUMBERS + stage * N_NUMBERS + of_loss, sums.terms);
    float d[N_COLUMNS][2], left_d[2] = {};
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c) {
      const float own_row = outputs[c], other = __shfl_xor_sync(~0u, own_row, 1);
      d[c][0] = is_lower ? other : own_row, d[c][1] = is_lower ? own_row : other;
      sums.b3[c] += own_row;
#pragma unroll
      for (int r = 0; r < 2; ++r) left_d[r] = t == c ? d[c][r] : left_d[r];
    }

    // Backward; d_h2 becomes d_z2.
    float d_z2[UNITS / 2], d_z1[UNITS / 2];
    const Word of_outputs[4] = {wd_bits(left_d[0]), wd_bits(left_d[1]), 0u, 0u};
    begin_products();
    multiply_first(d_z2, of_outputs, right_at(AT_W3B));
    end_products();
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c)
#pragma unroll
      for (int n = 0; n < 2 * STEPS; ++n) {
        const int i = n / 2 * 4 + n % 2;
        sums.w3[c][n] = fmaf(d[c][1], z2[i + 2], fmaf(d[c][0], z2[i], sums.w3[c][n]));
      }
    await_products<0>();
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      float* const d_z = d_z2 + 4 * s;
#pragma unroll
      for (int i = 0; i < 4; ++i) d_z[i] *= slope(z2[4 * s + i]);
#pragma unroll
      for (int e = 0; e < 2; ++e) store2(unit_at(D_Z2, s, e), wd_bits(d_z[e]), wd_bits(d_z[2 + e]));
    }
    begin_products();
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const float* const d_z = d_z2 + 4 * s;
      const Word left[4] = {wd_bits(d_z[0]), wd_bits(d_z[2]), wd_bits(d_z[1]), wd_bits(d_z[3])};
      if (s == 0)
        multiply_first(d_z1, left, right_at(AT_W2B));
      else
        multiply(d_z1, left, right_at(AT_W2B + s * BYTES_8));
    }
    end_products();
    publish_stores();
    wd_sync_warps(group, GROUP_WARPS);  // A
    begin_products();
#pragma unroll
    for (int s = 0; s < STEPS; ++s) multiply(sums.w2, factor_at(D_Z2, s), factor_at(H1, s));
    end_products();
    begin(tile + STAGES * by, stage);
    await_products<1>();
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float2 h = shared2(unit_at(H1, s, e));
        store2(unit_at(D_Z1, s, e), wd_bits(d_z1[4 * s + e] * slope(h.x)), wd_bits(d_z1[4 * s + e + 2] * slope(h.y)));
      }
    publish_stores();
    wd_sync_warps(group, GROUP_WARPS);  // B
    begin_products();
#pragma unroll
    for (int k = 0; k < KF; ++k)
#pragma unroll
      for (int s = 0; s < STEPS; ++s) multiply(sums.w1[k], factor_at(D_Z1, s), factor_at(X + 8 * k, s));
    end_products();
  }
  await_products<0>();

  // Groups add their sums in order.
  using All = Sums<N_COLUMNS>;
  static_assert((All::ALL + 2) * GROUP_THREADS <= SHARED_FLOATS, "sums overwrite the rest");
#pragma unroll 1
  for (int n = 0; n < N_GROUPS; ++n) {
    __syncthreads();
    if (n != group) continue;
    sums.each([&](const float sum, const int k) {
      float* const at_sum = shared + k * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
      *at_sum = n ? *at_sum + sum : sum;
    });
  }
  __syncthreads();
  store_sums<All>(part, shared, at, to, n_parameters);
}

// A block's row of `partial`: gradients at their places, then the terms. Blocks (x, member, z): with separate networks and
// a grid of two along z, a block has one network, else both.
WD_FN void learn_part(float* const shared, const float* const parameters, const int* const places, const Rollout& rollout,
                      const Rule& rule, float* const to, const int n_parameters) {
  if constexpr (IS_SHARED) {
    learn_network<true, true>(shared, parameters, places_of(places, 1), rollout, rule, to, n_parameters);
  } else {  // the value's network is first
    if (gridDim.z == 1 || blockIdx.z == 0)
      learn_network<false, true>(shared, parameters, places_of(places, 0), rollout, rule, to, n_parameters);
    if (gridDim.z == 1 || blockIdx.z == 1)
      learn_network<true, false>(shared, parameters, places_of(places, 1), rollout, rule, to, n_parameters);
  }
}

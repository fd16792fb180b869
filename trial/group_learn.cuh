// A2C's and PPO's loss of a minibatch and its gradients by groups of four warps, in TF32 (sm_90a).
//
// A group takes 64 rows at a time through everything; a warp has 16 of them. Products have rows of the tile as rows, so that
// sums of one are used unchanged as the left factor of the next, see `warp_groups.cuh`. Gradients of weights are sums over
// the rows of a tile. Their factors lie in shared memory, units by rows, and their sums stay in registers. In lane 4 g + t
// rows g and g + 8 are numbers 2 g and 2 g + 1 of such a sum, so that a store has both.
//
// Two barriers of a group per tile: A, when h1 and d_z2 are written, and B, when x and d_z1 are. In order, with what waits:
//   x -> z1 -> h1, written (read until the last B) -> z2 -> h2 -> outputs -> loss
//   d_h2 -> d_z2, written (until the last B)
//   A -> begin d_w2 -> x, written (read until the last A) -> d_z1, written (until the last A) -> end d_w2
//   B -> begin d_w1, which ends with the next z1
//
// Constants that come before this header: N_SEEN; HIDDEN1, HIDDEN2, up to 64; N_OUTPUTS; IS_SHARED; IS_TANH; TF32; WARPS,
// four for each group; N_AGENTS; N_TYPES; SIZES; MASKED; IS_CLIPPED; VALUE_CLIPPED and VALUE_CLIP; SWIZZLES, if factors of
// gradients are swizzled; STEPS_AT_ONCE, of the eight products for z2, those that begin together; KEEPS_H1, in registers,
// which three groups lack; MEETS_FIRST, if the group also meets before it writes h1, so that d_w2 may end as late as d_w1.
#pragma once

constexpr bool BF16 = false;

#include "tiles.cuh"
//
#if defined(__CUDACC__)
#include "warp_groups.cuh"
#endif

constexpr int TO = 1, WIDTH = 64, TILE = 64, GROUP = 128, N_GROUPS = WARPS / 4, N_STEPS = WIDTH / 8;
constexpr int MOST_COLUMNS = 4;  // outputs of a network
static_assert(TF32 && WARPS % 4 == 0 && HIDDEN1 <= WIDTH && HIDDEN2 <= WIDTH && N_SEEN < 8);
static_assert(N_OUTPUTS + IS_SHARED <= MOST_COLUMNS, "outputs are 4 columns of a left factor");

#include "loss.cuh"

// ---- layout

// Factors of a group's gradients: h1, of which row 64 is ones; d_z2; d_z1; x.
constexpr int H1 = 0, ONES = H1 + WIDTH, D_Z2 = ONES + 8, D_Z1 = D_Z2 + WIDTH, X = D_Z1 + WIDTH, N_FACTORS = X + 8;
constexpr int HALF_BYTES = N_FACTORS * 128;         // if swizzled: of 32 rows
constexpr int CORE_BYTES = N_FACTORS * 16 + 16;     // if not: of 4 rows; no two lanes store to one bank
constexpr int AREA_BYTES = SWIZZLES ? 2 * HALF_BYTES : wd_up(16 * CORE_BYTES, 1024);
constexpr int BYTES_8 = WIDTH * 8 * 4, BYTES_W2 = WIDTH * WIDTH * 4;
constexpr int AT_W1 = N_GROUPS * AREA_BYTES, AT_B2 = AT_W1 + BYTES_8, AT_D_OUT = AT_B2 + BYTES_8;
constexpr int AT_W2F = AT_D_OUT + BYTES_8, AT_W2B = AT_W2F + BYTES_W2, AT_W3 = AT_W2B + BYTES_W2;
constexpr int AT_B3 = AT_W3 + MOST_COLUMNS * WIDTH * 4, AT_WARPS = AT_B3 + 8 * 4;
// Rows of a warp in two stages, in floats: those to compute and those to copy.
constexpr int SX = 12, INDEX = (5 + N_TYPES) * ROWS, N_NUMBERS = INDEX + ROWS, OF_NUMBERS = 2 * ROWS * SX;
constexpr int WARP_FLOATS = OF_NUMBERS + 2 * N_NUMBERS, SHARED_NEEDED = AT_WARPS + WARPS * WARP_FLOATS * 4;

// Offset of a unit's number of row k of a sum.
WD_FN constexpr int place_of(const int unit, const int k) {
  if (SWIZZLES) return k / 32 * HALF_BYTES + unit * 128 + (k / 4 % 8 ^ unit % 8) * 16 + k % 4 * 4;
  return k / 4 * CORE_BYTES + unit * 16 + k % 4 * 4;
}
// The same distance for units 8 apart.
constexpr int UNITS_APART = SWIZZLES ? 1024 : 128;
// The unit's description of an area's first factor, and what step `s` of 8 rows adds.
WD_FN Long described_factor(const Word area) {
  const Long at = (area & 0x3FFFF) >> 4;
  if (SWIZZLES) return at | 1ull << 16 | 64ull << 32 | 1ull << 62;
  return at | static_cast<Long>(CORE_BYTES / 16) << 16 | 8ull << 32;
}
WD_FN constexpr int of_step(const int s) {
  return (SWIZZLES ? s / 4 * HALF_BYTES + s % 4 * 32 : 2 * s * CORE_BYTES) / 16;
}
// Column of a sum that is column k of the next product's left factor.
WD_FN constexpr int column_of(const int k) { return k / 8 * 8 + k % 4 * 2 + k % 8 / 4; }

struct Places {  // first number of each layer in the vector of parameters
  int w1, b1, w2, b2, w3, b3, v3, c3;
};

// The kernel's arguments. Those of a member are computed where they are used, so that they occupy no registers in between.
struct Task {
  const float* all_parameters;
  const int* all_places;
  Rollout all_rows;
  const float *vf_loss_coeff, *entropy_coeff, *clip_param;
  float* partial;
  int n_parameters;

  WD_METHOD const float* parameters() const { return all_parameters + static_cast<long long>(member()) * n_parameters; }
  WD_METHOD Places places(const bool of_policy) const {
    const int* const of = all_places + 8 * of_policy;
    return {of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]};
  }
  WD_METHOD Rollout rollout() const {
    Rollout own = all_rows;
    const long long at = member();
    if (own.is_taken) own.advantages += at * own.n_rows;
    if (own.indices) own.indices += at * (own.n_rows / N_AGENTS);
    return own;
  }
  WD_METHOD Rule rule() const {
    const int at = member();
    return {vf_loss_coeff[at], entropy_coeff[at], clip_param[at]};
  }
  WD_METHOD float* to() const {
    return partial + (static_cast<long long>(member()) * gridDim.x + blockIdx.x) * (n_parameters + N_TERMS);
  }

 private:
  WD_METHOD static int member() { return anew(static_cast<int>(blockIdx.y)); }
};

// Sums of a thread over its rows, in the order in which groups add them.
template <int N_COLUMNS>
struct Sums {
  static constexpr int W1 = 36, W3 = W1 + 4, B3 = W3 + 16 * N_COLUMNS, TERMS = B3 + N_COLUMNS, ALL = TERMS + N_TERMS;
  float w2[36], w1[4], w3[N_COLUMNS][16], b3[N_COLUMNS], terms[N_TERMS];

  WD_METHOD void clear() {
    each([](float& sum, int) { sum = 0.f; });
  }
  template <class Function>
  WD_METHOD void each(const Function& function) {
#pragma unroll
    for (int k = 0; k < 36; ++k) function(w2[k], k);
#pragma unroll
    for (int k = 0; k < 4; ++k) function(w1[k], W1 + k);
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c) {
#pragma unroll
      for (int k = 0; k < 16; ++k) function(w3[c][k], W3 + 16 * c + k);
      function(b3[c], B3 + c);
    }
#pragma unroll
    for (int k = 0; k < N_TERMS; ++k) function(terms[k], TERMS + k);
  }
};

// ---- weights and rows

// Fills the block's weights. Columns of outputs are the choices, then the value.
template <bool HAS_POLICY, bool HAS_VALUE>
WD_FN void load_weights(Byte* const room, const float* const parameters, const Places& at) {
  const auto put = [&](const int to, const float value) { *reinterpret_cast<float*>(room + to) = value; };
  const auto w2 = [&](const int to, const int from) {
    return to < HIDDEN2 && from < HIDDEN1 ? wd_round_tf32(parameters[at.w2 + to * HIDDEN1 + from]) : 0.f;
  };
  const auto w3 = [&](const int out, const int unit) {
    if (unit >= HIDDEN2) return 0.f;
    if (HAS_POLICY && out < N_OUTPUTS) return wd_round_tf32(parameters[at.w3 + out * HIDDEN2 + unit]);
    return HAS_VALUE && out == (HAS_POLICY ? N_OUTPUTS : 0) ? wd_round_tf32(parameters[at.v3 + unit]) : 0.f;
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < WIDTH * 8; n += THREADS) {
    const int unit = n / 8, k = n % 8, to = place(unit, k, WIDTH);
    float first = 0.f;
    if (unit < HIDDEN1 && k <= N_SEEN) first = parameters[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k];
    put(AT_W1 + to, wd_round_tf32(first));
    put(AT_B2 + to, unit < HIDDEN2 && k == N_SEEN ? wd_round_tf32(parameters[at.b2 + unit]) : 0.f);
    put(AT_D_OUT + to, k < MOST_COLUMNS ? w3(k, unit) : 0.f);
    if (k < MOST_COLUMNS) put(AT_W3 + (k * WIDTH + unit) * 4, w3(k, unit));
  }
#pragma unroll 4
  for (int n = threadIdx.x; n < WIDTH * WIDTH; n += THREADS) {
    const int column = n / WIDTH, k = n % WIDTH, to = place(column, k, WIDTH), from = column_of(k);
    put(AT_W2F + to, w2(column, from));
    put(AT_W2B + to, w2(from, column));
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < 8; n += THREADS) {
    float bias = 0.f;
    if (HAS_POLICY && n < N_OUTPUTS) bias = parameters[at.b3 + n];
    if (HAS_VALUE && n == (HAS_POLICY ? N_OUTPUTS : 0)) bias = parameters[at.c3];
    put(AT_B3 + 4 * n, bias);
  }
}

// Starts the copies of a warp's rows, two lanes a row, and of the index of the row `following` in the next tile. A lane has
// the source of row lane % 16.
WD_FN void begin_copies(const Part part, float* const mine, const int stage, const Rollout& rollout, const int row,
                        const int following, const long long source, const int lane) {
  const int half = lane / ROWS;
  float* const numbers = mine + OF_NUMBERS + stage * N_NUMBERS + lane % ROWS;
  float* const x = mine + (stage * ROWS + lane % ROWS) * SX;
  const float* const from = rollout.observations + source * N_SEEN;
  if (N_SEEN == 4) {  // rows of 16 bytes are aligned
    if (half == 0) wd_copy16(x, from);
  } else {
#pragma unroll
    for (int k = 0; k < N_SEEN; k += 2)
      if (k + half < N_SEEN) wd_copy4(x + k + half, from + k + half);
  }
  if (half == 0) {
    if (part.has_policy) {
      wd_copy4(numbers + LOG_PROB, rollout.log_probs + source);
#pragma unroll 1
      for (int type = 0; type < N_TYPES; ++type)
        wd_copy4(numbers + ACTIONS + ROWS * type, rollout.actions + source * N_TYPES + type);
    }
    if (rollout.weights) wd_copy4(numbers + WEIGHT, rollout.weights + row / N_AGENTS);
  } else {
    if (rollout.indices) wd_copy4(numbers + INDEX, rollout.indices + following / N_AGENTS);
    const bool needs_value = part.has_policy && !rollout.advantages;  // returns - value
    if (part.has_policy && rollout.advantages)
      wd_copy4(numbers + ADVANTAGE, rollout.advantages + (rollout.is_taken ? row : source));
    if (part.has_value || needs_value) wd_copy4(numbers + RETURN, rollout.returns + source);
    if ((part.has_value && VALUE_CLIPPED) || (!part.has_value && needs_value))
      wd_copy4(numbers + OLD_VALUE, rollout.old_values + source);
  }
}

// ---- one network

// Writes a block's sums at their places: gradients, and the terms behind all `n_parameters`.
template <bool HAS_POLICY, bool HAS_VALUE, class All>
WD_FN void store_sums(const float* const shared, const Places& at, float* const to, const int n_parameters) {
  constexpr int N_COLUMNS = (HAS_POLICY ? N_OUTPUTS : 0) + HAS_VALUE;
  // A sum in row `unit` and column `column` of a product, of which the first sum is `k`.
  const auto of_product = [&](const int k, const int unit, const int column) {
    const int sum = k + column / 8 * 4 + unit / 8 % 2 * 2 + column % 2;
    return shared[sum * GROUP + unit / 16 * 32 + unit % 8 * 4 + column % 8 / 2];
  };
  const auto over_lanes = [&](const int k, const int first, const int n) {  // of n in each four
    float sum = 0.f;
    for (int four = 0; four < GROUP; four += 4)
      for (int m = 0; m < n; ++m) sum += shared[k * GROUP + four + first + m];
    return sum;
  };
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN2 * HIDDEN1; n += THREADS) to[at.w2 + n] = of_product(0, n / HIDDEN1, n % HIDDEN1);
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN2; n += THREADS) to[at.b2 + n] = of_product(0, n, ONES);
#pragma unroll 1
  for (int n = threadIdx.x; n < HIDDEN1 * (N_SEEN + 1); n += THREADS) {
    const int unit = n / (N_SEEN + 1), k = n % (N_SEEN + 1);
    to[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k] = of_product(All::W1, unit, column_of(k));
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < N_COLUMNS * HIDDEN2; n += THREADS) {
    const int out = n / HIDDEN2, unit = n % HIDDEN2;
    const bool is_value = HAS_VALUE && out == N_COLUMNS - 1;
    to[is_value ? at.v3 + unit : at.w3 + n] =
        over_lanes(All::W3 + 16 * out + unit / 8 * 2 + unit % 2, unit % 8 / 2, 1);
  }
#pragma unroll 1
  for (int n = threadIdx.x; n < N_COLUMNS; n += THREADS)
    to[HAS_VALUE && n == N_COLUMNS - 1 ? at.c3 : at.b3 + n] = over_lanes(All::B3 + n, 0, 2);
#pragma unroll 1
  for (int n = threadIdx.x; n < N_TERMS; n += THREADS)
    if (n == 1 ? HAS_VALUE : HAS_POLICY) to[n_parameters + n] = over_lanes(All::TERMS + n, 0, 2);
}

// A network's gradients and terms over this block's rows; overwrites `room`.
template <bool HAS_POLICY, bool HAS_VALUE>
WD_FN void learn_network(Byte* const room, const Task& task) {
  constexpr int N_COLUMNS = (HAS_POLICY ? N_OUTPUTS : 0) + HAS_VALUE;
  constexpr Part part = {HAS_POLICY, HAS_VALUE};
  const int lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
  const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), of_group = warp % 4, group = warp / 4;
  const Word base = shared_address(room), area = base + group * AREA_BYTES;
  __syncthreads();
  load_weights<HAS_POLICY, HAS_VALUE>(room, task.parameters(), task.places(HAS_POLICY));
  float* const mine = reinterpret_cast<float*>(room + AT_WARPS) + warp * WARP_FLOATS;
#pragma unroll 1
  for (int n = lane; n < 2 * ROWS * SX; n += LANES) mine[n] = n % SX == N_SEEN ? 1.f : 0.f;  // 1: biases
#pragma unroll 1
  for (int n = threadIdx.x % GROUP; n < 8 * TILE; n += GROUP)
    *reinterpret_cast<float*>(room + group * AREA_BYTES + place_of(ONES + n / TILE, n % TILE)) = n < TILE ? 1.f : 0.f;
  publish_writes();
  __syncthreads();

  // Descriptions of one kind differ by their addresses.
  const Long weights = anew(described(base + AT_W1, WIDTH)), factors = anew(described_factor(area));
  const auto from = [&](const int at) { return weights + (at - AT_W1) / 16; };
  const auto factor_at = [&](const int unit, const int s) { return factors + place_of(unit, 0) / 16 + of_step(s); };
  const int k_own = 16 * of_group + 2 * g;                                   // of rows g and g + 8
  const Word own[2] = {area + place_of(2 * t, k_own), area + place_of(2 * t + 1, k_own)};  // of two units
  const auto unit_at = [&](const int first, const int n, const int e) { return own[e] + (first / 8 + n) * UNITS_APART; };
  const float* const w3 = reinterpret_cast<float*>(room + AT_W3) + 2 * t;
  const bool is_lower = t % 2;  // of the rows g and g + 8 the lane takes one through the loss
  const int of_loss = g + 8 * is_lower;

  const Rollout rollout = task.rollout();
  const Rule rule = task.rule();
  Sums<N_COLUMNS> sums;
  sums.clear();

  const int n_tiles = (rollout.n_rows + TILE - 1) / TILE, by = gridDim.x * N_GROUPS;
  int tile = group * gridDim.x + blockIdx.x;
  const auto row_of = [&](const int of_tile) { return rollout.within(of_tile * TILE + of_group * ROWS + lane % ROWS); };
  if (tile < n_tiles) {
    const int row = row_of(tile);
    begin_copies(part, mine, 0, rollout, row, row_of(tile + by), rollout.source(row), lane);
  }
  wd_end_copies();
  int stage = 0;
#pragma unroll 1
  for (; tile < n_tiles; tile += by, stage ^= 1) {
    wd_await_all();
    __syncwarp();
    if (tile + by < n_tiles) {
      const int row = row_of(tile + by);
      int at_row = row / N_AGENTS;
      if (rollout.indices)
        at_row = static_cast<int>(wd_bits(mine[OF_NUMBERS + stage * N_NUMBERS + INDEX + lane % ROWS]));
      begin_copies(part, mine, stage ^ 1, rollout, row, row_of(tile + 2 * by), rollout.source(row, at_row), lane);
    }
    wd_end_copies();
    const float* const x = mine + stage * ROWS * SX + g * SX + t;

    // Forward; z1 and z2 become h1 and h2.
    float z1[32], z2[32];
    const Word seen[4] = {wd_bits(x[0]), wd_bits(x[8 * SX]), wd_bits(x[4]), wd_bits(x[8 * SX + 4])};
    begin_products();
    multiply_first(z1, seen, from(AT_W1));
    end_products();
    multiply_first(z2, seen, from(AT_B2));
    end_products();
    await_products<1>();
    if (MEETS_FIRST) wd_sync_warps(group, 4);
#pragma unroll
    for (int first = 0; first < N_STEPS; first += STEPS_AT_ONCE) {
#pragma unroll
      for (int s = first; s < first + STEPS_AT_ONCE; ++s) {
#pragma unroll
        for (int e = 4 * s; e < 4 * s + 4; ++e) z1[e] = wd_activated(z1[e]);
#pragma unroll
        for (int e = 0; e < 2; ++e) store2(unit_at(H1, s, e), wd_bits(z1[4 * s + e]), wd_bits(z1[4 * s + 2 + e]));
      }
      begin_products();
#pragma unroll
      for (int s = first; s < first + STEPS_AT_ONCE; ++s) {
        const Word left[4] = {wd_bits(z1[4 * s]), wd_bits(z1[4 * s + 2]), wd_bits(z1[4 * s + 1]), wd_bits(z1[4 * s + 3])};
        multiply(z2, left, from(AT_W2F + s * BYTES_8));
      }
    }
    end_products();
    await_products<0>();
    float out[N_COLUMNS][2] = {};
#pragma unroll
    for (int n = 0; n < N_STEPS; ++n) {
      float* const h = z2 + 4 * n;
#pragma unroll
      for (int e = 0; e < 4; ++e) h[e] = wd_activated(h[e]);
#pragma unroll
      for (int c = 0; c < N_COLUMNS; ++c) {
        const float2 w = wd_load<float2>(w3 + c * WIDTH + 8 * n);
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
    loss(part, rollout, rule, tile * TILE + of_group * ROWS + of_loss, outputs,
         reinterpret_cast<const float*>(room + AT_B3), mine + OF_NUMBERS + stage * N_NUMBERS + of_loss, sums.terms);
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
    float d_z2[32], d_z1[32];
    const Word of_outputs[4] = {wd_bits(left_d[0]), wd_bits(left_d[1]), 0u, 0u};
    begin_products();
    multiply_first(d_z2, of_outputs, from(AT_D_OUT));
    end_products();
#pragma unroll
    for (int c = 0; c < N_COLUMNS; ++c)
#pragma unroll
      for (int n = 0; n < 2 * N_STEPS; ++n) {
        const int i = n / 2 * 4 + n % 2;
        sums.w3[c][n] = fmaf(d[c][1], z2[i + 2], fmaf(d[c][0], z2[i], sums.w3[c][n]));
      }
    await_products<0>();
#pragma unroll
    for (int s = 0; s < N_STEPS; ++s) {
#pragma unroll
      for (int e = 4 * s; e < 4 * s + 4; ++e) d_z2[e] *= slope(z2[e]);
      store2(unit_at(D_Z2, s, 0), wd_bits(d_z2[4 * s]), wd_bits(d_z2[4 * s + 2]));
      store2(unit_at(D_Z2, s, 1), wd_bits(d_z2[4 * s + 1]), wd_bits(d_z2[4 * s + 3]));
    }
    begin_products();
#pragma unroll
    for (int s = 0; s < N_STEPS; ++s) {
      const float* const d_z = d_z2 + 4 * s;
      const Word left[4] = {wd_bits(d_z[0]), wd_bits(d_z[2]), wd_bits(d_z[1]), wd_bits(d_z[3])};
      if (s == 0)
        multiply_first(d_z1, left, from(AT_W2B));
      else
        multiply(d_z1, left, from(AT_W2B + s * BYTES_8));
    }
    end_products();
    publish_writes();
    wd_sync_warps(group, 4);  // A
    begin_products();
#pragma unroll
    for (int s = 0; s < N_STEPS; ++s) multiply_shared(sums.w2, factor_at(D_Z2, s), factor_at(H1, s));
    end_products();
    store2(unit_at(X, 0, 0), wd_bits(x[0]), wd_bits(x[8 * SX]));  // features t and t + 4 as units 2 t and 2 t + 1
    store2(unit_at(X, 0, 1), wd_bits(x[4]), wd_bits(x[8 * SX + 4]));
    await_products<1>();
#pragma unroll
    for (int s = 0; s < N_STEPS; ++s)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 4 * s + e;
        const float2 h = KEEPS_H1 ? make_float2(z1[i], z1[i + 2]) : shared2(unit_at(H1, s, e));
        d_z1[i] *= slope(h.x), d_z1[i + 2] *= slope(h.y);
        store2(unit_at(D_Z1, s, e), wd_bits(d_z1[i]), wd_bits(d_z1[i + 2]));
      }
    publish_writes();
    if (!MEETS_FIRST) await_products<0>();
    wd_sync_warps(group, 4);  // B
    begin_products();
#pragma unroll
    for (int s = 0; s < N_STEPS; ++s) multiply_shared(sums.w1, factor_at(D_Z1, s), factor_at(X, s));
    end_products();
  }
  await_products<0>();

  // Groups add their sums in order.
  using All = Sums<N_COLUMNS>;
  static_assert(All::ALL * GROUP * 4 <= AT_WARPS, "sums overwrite the rest");
  float* const shared = reinterpret_cast<float*>(room);
#pragma unroll 1
  for (int n = 0; n < N_GROUPS; ++n) {
    __syncthreads();
    if (n != group) continue;
    sums.each([&](const float sum, const int k) {
      float* const at_sum = shared + k * GROUP + threadIdx.x % GROUP;
      *at_sum = n ? *at_sum + sum : sum;
    });
  }
  __syncthreads();
  store_sums<HAS_POLICY, HAS_VALUE, All>(shared, task.places(HAS_POLICY), task.to(), task.n_parameters);
}

// A block's row of `partial`: gradients at their places, then the terms. Blocks (x, member, z): with separate networks and
// a grid of two along z, a block has one network, else both.
WD_FN void learn_part(Byte* const room, const Task& task) {
  if constexpr (IS_SHARED) {
    learn_network<true, true>(room, task);
  } else {  // the value's network is first
    if (gridDim.z == 1 || blockIdx.z == 0) learn_network<false, true>(room, task);
    if (gridDim.z == 1 || blockIdx.z == 1) learn_network<true, false>(room, task);
  }
}

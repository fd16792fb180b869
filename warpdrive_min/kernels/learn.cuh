// A2C's and PPO's loss of a minibatch and its gradients, on matrix units, in one pass over the rows.
//
// A warp keeps its sums of all gradients in registers; at the end the block's warps add theirs. With R, T and tiles as in
// `perceptron_tiles.cuh`, and z for units before their activation, a warp computes
//   h1 (R) -> h2 (R) -> outputs (R) -> loss, a lane a row -> d_z2 (R) -> d_z1 (T) -> d_w1
//   h1 (T) is computed again from x; d_z2 (T) from the loss; only h2 is transposed, through shared memory -> d_w2, d_w3
//
// With many features the sums of d_w1 exceed the registers. Then SHARING warps exchange d_z1 through shared memory. Each
// adds the products of all their rows for every SHARING-th tile of features. h1 is transposed, too.
//
// Constants that come before this header: those of `perceptron_tiles.cuh`; N_AGENTS; SIZES, choices of each type; MASKED;
// IS_CLIPPED, PPO's loss, else A2C's; VALUE_CLIPPED and VALUE_CLIP. Separate networks have sizes in common.
#pragma once

#include "perceptron_tiles.cuh"
//
#include "learn_places.cuh"
#include "loss.cuh"

// Sums of a lane, in the order in which warps add them.
constexpr int OWN_KF = wd_up(KF, SHARING) / SHARING;  // tiles of features of which a warp has the sums
constexpr int R_W2 = 0, R_W1 = R_W2 + U1 * U2 / 32, R_W3 = R_W1 + U1 * OWN_KF / 4, R_B2 = R_W3 + U2 * TO / 4;
constexpr int R_B3 = R_B2 + T2, R_TERMS = R_B3 + 2 * TO, R_ALL = R_TERMS + N_TERMS;
constexpr int LOOP_FLOATS = AT_WARPS + WARPS * WARP_FLOATS, HALF = (WARPS + 1) / 2;
static_assert(SHARING == 1 || HALF % SHARING == 0, "warps that are added up have the same features");
constexpr int ADD_FLOATS = HALF * R_ALL * LANES;
constexpr int SHARED_FLOATS = LOOP_FLOATS > ADD_FLOATS ? LOOP_FLOATS : ADD_FLOATS;

// ---- one network

// Starts the copies of a tile's rows: two lanes a row, or all if rows are long. A lane has the source of row lane % 16.
WD_FN void begin_copies(const Part part, float* const mine, const int stage, const Rollout& rollout, const int row,
                        const long long source, const int lane) {
  const int half = lane / ROWS;
  float* const numbers = mine + OF_NUMBERS + stage * N_NUMBERS + lane % ROWS;
  constexpr int STEP = N_SEEN % 4 ? 1 : 4;  // rows of 16 bytes are aligned
  constexpr int AT_ONCE = SHARING > 1 ? 1 : ROWS, BESIDE = LANES / AT_ONCE;
  const int first = STEP * (lane / AT_ONCE);
  const int begin = N_SEEN > BESIDE * STEP ? first : 0;  // addresses of a lane's copies differ by constants
#pragma unroll
  for (int r = 0; r < ROWS; r += AT_ONCE) {
    float* const x = mine + OF_X + stage * ROWS * SX + (r + lane % AT_ONCE) * SX + begin;
    const float* const from = rollout.observations + (SHARING > 1 ? __shfl_sync(~0u, source, r) : source) * N_SEEN + begin;
    copy_row<N_SEEN, BESIDE, STEP>(x, from, begin, first);
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
    const bool needs_value = part.has_policy && !rollout.advantages;  // returns - value
    if (part.has_policy && rollout.advantages)
      wd_copy4(numbers + ADVANTAGE, rollout.advantages + (rollout.is_taken ? row : source));
    if (part.has_value || needs_value) wd_copy4(numbers + RETURN, rollout.returns + source);
    if ((part.has_value && VALUE_CLIPPED) || (!part.has_value && needs_value))
      wd_copy4(numbers + OLD_VALUE, rollout.old_values + source);
  }
}

// Adds the products of d_z1 and x of all rows of SHARING warps, for this warp's features; overwrites h1 in shared memory.
WD_FN void share_first_layer(float* const mine, const float (&d_z1)[T1 / 2][2][4], float* const sums) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, g = lane / 4, t = lane % 4;
  const int group = warp / SHARING, own = warp % SHARING;
  const auto place = [&](const int i, const int r) { return OF_H1 + (2 * i + r) * 128 + 4 * lane; };
  __syncwarp();  // all lanes have loaded h1
#pragma unroll
  for (int i = 0; i < T1 / 2; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float(&d)[4] = d_z1[i][r];
      wd_store<float4>(mine + place(i, r), make_float4(d[0], d[2], d[1], d[3]));  // a left factor
    }
  wd_sync_warps(group, SHARING);
  const float* its = mine - own * WARP_FLOATS;  // the group's first warp's
#pragma unroll 1
  for (int n = 0; n < SHARING; ++n, its += WARP_FLOATS) {
    Left a[T1 / 2][2];
#pragma unroll
    for (int i = 0; i < T1 / 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) a[i][r] = left(wd_load<float4>(its + place(i, r)));
#pragma unroll
    for (int k = 0; k < OWN_KF; ++k) {
      const int tile = own + k * SHARING;
      if (KF % SHARING && tile >= KF) continue;
      const float* const row = its + OF_X + 2 * t * SX + 8 * tile + g;
      const Right b0 = right(row[0], row[SX]), b1 = right(row[8 * SX], row[9 * SX]);
#pragma unroll
      for (int i = 0; i < T1 / 2; ++i) accumulate(sums + (i * OWN_KF + k) * 4, a[i], b0, b1);
    }
  }
  wd_sync_warps(group, SHARING);  // x and d_z1 are overwritten next
}

// Writes a block's sums at their places: gradients, and the terms behind all `n_parameters`.
WD_FN void store_sums(const Part part, const float* const shared, const Places at, float* const to, const int n_parameters) {
  const auto of_warps = [&](const int k, const int lane, const int first = 0, const int step = 1) {
    float sum = 0.f;
    for (int warp = first; warp < HALF; warp += step) sum += shared[(warp * R_ALL + k) * LANES + lane];
    return sum;
  };
  // A tile's sum: row and column of the product whose first sum is `k`.
  const auto of_tile = [&](const int k, const int row, const int column, const int first = 0, const int step = 1) {
    return of_warps(k + row / 8 * 2 + column % 2, row % 8 * 4 + column / 2, first, step);
  };
  const auto of_lanes = [&](const int k, const int first, const int step, const int n) {
    float sum = 0.f;
    for (int m = 0; m < n; ++m) sum += of_warps(k, first + m * step);
    return sum;
  };
  const int me = threadIdx.x;
  constexpr int BY = WARPS * LANES;
#pragma unroll 1
  for (int n = me; n < HIDDEN2 * HIDDEN1; n += BY) {
    const int unit = n / HIDDEN1, from = n % HIDDEN1;
    to[at.w2 + n] = of_tile(R_W2 + (unit / 16 * T1 + from / 8) * 4, unit % 16, from % 8);
  }
#pragma unroll 1
  for (int n = me; n < HIDDEN1 * (N_SEEN + 1); n += BY) {
    const int unit = n / (N_SEEN + 1), k = n % (N_SEEN + 1), tile = k / 8;
    to[k == N_SEEN ? at.b1 + unit : at.w1 + unit * N_SEEN + k] = of_tile(
        R_W1 + (unit / 16 * OWN_KF + tile / SHARING) * 4, unit % 16, k % 8, tile % SHARING, SHARING);
  }
#pragma unroll 1
  for (int n = me; n < part.n_columns() * HIDDEN2; n += BY) {
    const int out = n / HIDDEN2, unit = n % HIDDEN2;
    const bool is_value = part.has_value && out == part.value_column();
    to[is_value ? at.v3 + unit : at.w3 + n] = of_tile(R_W3 + (unit / 16 * TO + out / 8) * 4, unit % 16, out % 8);
  }
#pragma unroll 1
  for (int n = me; n < HIDDEN2; n += BY) to[at.b2 + n] = of_lanes(R_B2 + n / 8, n % 8 * 4, 1, 4);
#pragma unroll 1
  for (int n = me; n < part.n_columns(); n += BY)
    to[part.has_value && n == part.value_column() ? at.c3 : at.b3 + n] = of_lanes(R_B3 + n / 4, n % 4, 4, 8);
#pragma unroll 1
  for (int n = me; n < N_TERMS; n += BY)
    if (n == 1 ? part.has_value : part.has_policy) to[n_parameters + n] = of_lanes(R_TERMS + n, 0, 1, ROWS);
}

// A network's gradients and terms over this block's rows; overwrites `shared`.
WD_FN void learn_network(const Part part, float* const shared, const float* const parameters, const Places at,
                         const Rollout& rollout, const Rule& rule, float* const to, const int n_parameters) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, g = lane / 4, t = lane % 4;
  __syncthreads();
  const auto from = [&](const int first) { return parameters + first; };
  load_weights(part, shared, {from(at.w1), from(at.b1), from(at.w2), from(at.b2),  //
                              from(at.w3), from(at.b3), from(at.v3), from(at.c3)});
  float* const mine = shared + AT_WARPS + warp * WARP_FLOATS;
#pragma unroll 1
  for (int n = lane; n < STAGES * ROWS * SX; n += LANES) mine[OF_X + n] = n % SX == N_SEEN ? 1.f : 0.f;  // 1: biases
  __syncthreads();

  float sums[R_ALL];  // a lane's part of all sums over rows
#pragma unroll
  for (int k = 0; k < R_ALL; ++k) sums[k] = 0.f;

  const int n_tiles = (rollout.n_rows + ROWS - 1) / ROWS, by = gridDim.x * WARPS;
  int tile = warp * gridDim.x + blockIdx.x;
  const auto row_of = [&](const int of_tile) { return rollout.within(of_tile * ROWS + lane % ROWS); };
  const int end = SHARING > 1 ? n_tiles + warp * gridDim.x : n_tiles;  // warps that meet take as many tiles as warp 0
  int next = 0;  // an index as loaded, for arithmetic on it would wait for memory
  if (tile < end) {
    begin_copies(part, mine, 0, rollout, row_of(tile), rollout.source(row_of(tile)), lane);
    if (tile + by < end) next = rollout.index(row_of(tile + by));
  }
  wd_end_copies();
  int stage = 0;
  const auto begin_next = [&, mine] {  // by reference it would cost instructions
    if (const int row = row_of(tile + by); tile + by < end)
      begin_copies(part, mine, stage ^ (STAGES - 1), rollout, row, rollout.source(row, next), lane);
    wd_end_copies();
    if (tile + 2 * by < end) next = rollout.index(row_of(tile + 2 * by));
  };
#pragma unroll 1
  for (; tile < end; tile += by, stage ^= STAGES - 1) {
    if (STAGES == 2) {
      begin_next();
      wd_await_all_but_last();
    } else {
      wd_await_all();
    }
    __syncwarp();
    const float* const x = mine + OF_X + stage * ROWS * SX;
    float* const outputs = mine + OF_OUT;

    float z[T2][4];
    forward(shared, x, outputs, mine, lane, z);
    __syncwarp();
    if (lane < ROWS)  // a lane a row
      loss(part, rollout, rule, tile * ROWS + lane, outputs + lane * SO, shared + AT_B3,
           mine + OF_NUMBERS + stage * N_NUMBERS + lane, sums + R_TERMS);
    __syncwarp();

    float d_out[TO][4];
#pragma unroll
    for (int o = 0; o < TO; ++o) {
      const float* const upper = outputs + g * SO + 8 * o + t;
      d_out[o][0] = upper[0], d_out[o][1] = upper[8 * SO], d_out[o][2] = upper[4], d_out[o][3] = upper[8 * SO + 4];
      sums[R_B3 + 2 * o] += d_out[o][0] + d_out[o][1], sums[R_B3 + 2 * o + 1] += d_out[o][2] + d_out[o][3];
    }
#pragma unroll
    for (int n = 0; n < T2; ++n) {  // from here on z is the gradient before the activation, in order R
      float d_h2[4];
      zero(d_h2);
#pragma unroll
      for (int o = 0; o < TO; ++o) {
        const Weights w = weights(shared + AT_W3R + (o * (T2 / 2) + n / 2) * 128 + 4 * lane);
        const Left a = left(d_out[o][0], d_out[o][1], d_out[o][2], d_out[o][3]);
        multiply(d_h2, a, w.half(n % 2));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) z[n][e] = d_h2[e] * slope(z[n][e]);
    }
    float d_z1[T1 / 2][2][4], h1[T1 / 2][2][4];  // in order T: 16 units of both tiles of 8 rows
#pragma unroll
    for (int i = 0; i < T1 / 2; ++i) zero(d_z1[i][0]), zero(d_z1[i][1]);
#pragma unroll
    for (int k = 0; k < T2; ++k) {
      const Right b[2] = {right(z[k][0], z[k][1]), right(z[k][2], z[k][3])};
#pragma unroll
      for (int i = 0; i < T1 / 2; ++i) {
        const Left a = weights(shared + AT_W2B + (i * T2 + k) * 128 + 4 * lane).all;
        multiply(d_z1[i][0], a, b[0]);
        multiply(d_z1[i][1], a, b[1]);
      }
    }
#pragma unroll
    for (int i = 0; i < T1 / 2; ++i) {  // layer 1
      Left a[2];
      if (KEEPS_H1) transposed<U1>(mine + OF_H1, lane, i, h1[i]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!KEEPS_H1) {
          zero(h1[i][r]);
#pragma unroll
          for (int k = 0; k < KF; ++k) {
            const float* const row = x + (g + 8 * r) * SX + 8 * k + t;
            const Left w = weights(shared + AT_W1T + (i * KF + k) * 128 + 4 * lane).all;
            multiply(h1[i][r], w, right(row[0], row[4]));
          }
          activate(h1[i][r]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) d_z1[i][r][e] *= slope(h1[i][r][e]);
        a[r] = left(d_z1[i][r]);
      }
      if (SHARING > 1) continue;
#pragma unroll
      for (int k = 0; k < KF; ++k) {
        const float* const row = x + 2 * t * SX + 8 * k + g;
        accumulate(sums + R_W1 + (i * KF + k) * 4, a, right(row[0], row[SX]), right(row[8 * SX], row[9 * SX]));
      }
    }
    if (SHARING > 1) {
      share_first_layer(mine, d_z1, sums + R_W1);
      begin_next();
    }
#pragma unroll
    for (int j = 0; j < T2 / 2; ++j) {  // layers 2 and 3, by units of layer 2
      float h2[2][4];
      transposed<U2>(mine, lane, j, h2);
      Left a[2], c[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float d_z2[4];
        zero(d_z2);
#pragma unroll
        for (int o = 0; o < TO; ++o) {
          const Left w = weights(shared + AT_W3T + (o * (T2 / 2) + j) * 128 + 4 * lane).all;
          multiply(d_z2, w, right(d_out[o][r], d_out[o][r + 2]));
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) d_z2[e] *= slope(h2[r][e]);
        sums[R_B2 + 2 * j] += d_z2[0] + d_z2[1], sums[R_B2 + 2 * j + 1] += d_z2[2] + d_z2[3];
        c[r] = left(h2[r]);
        a[r] = left(d_z2);
      }
#pragma unroll
      for (int o = 0; o < TO; ++o) {
        const float* const row = outputs + 2 * t * SO + 8 * o + g;
        accumulate(sums + R_W3 + (j * TO + o) * 4, c, right(row[0], row[SO]), right(row[8 * SO], row[9 * SO]));
      }
#pragma unroll
      for (int n = 0; n < T1; ++n) {
        const int m = 2 * (n % 2);
        const float(&one)[4] = h1[n / 2][0], (&other)[4] = h1[n / 2][1];
        accumulate(sums + R_W2 + (j * T1 + n) * 4, a, right(one[m], one[m + 1]), right(other[m], other[m + 1]));
      }
    }
    __syncwarp();  // h2, outputs and this stage are overwritten next
  }

  // Each warp of the first half adds the sums of one of the second; `store_sums` adds those of all in the first half.
  __syncthreads();
  float* const of_both = shared + warp % HALF * R_ALL * LANES + lane;
  if (warp >= HALF) {
#pragma unroll
    for (int k = 0; k < R_ALL; ++k) of_both[k * LANES] = sums[k];
  }
  __syncthreads();
  if (warp < HALF) {
#pragma unroll
    for (int k = 0; k < R_ALL; ++k) of_both[k * LANES] = warp + HALF < WARPS ? sums[k] + of_both[k * LANES] : sums[k];
  }
  __syncthreads();
  store_sums(part, shared, at, to, n_parameters);
}

// A block's row of `partial`: gradients at their places, then the terms. Blocks (x, member, z): with separate networks and
// a grid of two along z, a block has one network, else both.
WD_FN void learn_part(float* const shared, const float* const parameters, const int* const places, const Rollout& rollout,
                      const Rule& rule, float* const to, const int n_parameters) {
#pragma unroll 1
  for (int network = IS_SHARED ? 1 : blockIdx.z; network < 2; network += gridDim.z) {  // the value's network is first
    const Places at = places_of(places, network);
    const Part part = {IS_SHARED || network == 1, IS_SHARED || network == 0};
    learn_network(part, shared, parameters, at, rollout, rule, to, n_parameters);
  }
}

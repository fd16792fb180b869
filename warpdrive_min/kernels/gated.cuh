// Gated recurrent units on matrix units, as in `torch.nn.GRU`, on one hidden layer: sequences pass forward.
//
// A block takes 32 sequences at a time through all their steps. Each of its warps computes 8 units of the hidden layer and
// of each gate, with the weights in registers: with x the hidden layer's units, h the state,
//   r = sigmoid(x, h), z = sigmoid(x, h), n = tanh(x + r h), h' = n + z (h - n), all in order R of `tiles.cuh`
// Warps exchange x and h through shared memory, with one barrier a step. Each also multiplies its own units of h' by the
// weights of the outputs; the threads add the warps' products.
//
// Constants that come before this header: N_SEEN; HIDDEN1, units of the hidden layer; UNITS, gated units; N_OUTPUTS;
// IS_SHARED, if the value is a further output on the same units; IS_TANH; TF32; N_AGENTS; WARPS, a block's; LEARNS.
#pragma once

#include "tiles.cuh"

constexpr int SEQUENCES = 32, PAIR = 2;  // of a block at a time, and their tiles of 16
// Units rounded up to 16; tiles of 8 units, of 8 features (and 1, with the biases as weights), and of 8 outputs.
constexpr int U = wd_up(HIDDEN1 > UNITS ? HIDDEN1 : UNITS, 16), T = U / 8, KF = wd_up(N_SEEN + 1, 8) / 8;
constexpr int TO = wd_up(N_OUTPUTS + IS_SHARED, 8) / 8;
constexpr int SX = 8 * KF + 4, SU = U + 8, SO = 8 * TO + 4;  // floats of a row: no two lanes in one bank
static_assert(WARPS == T, "a warp for 8 units");

// Where it lies in shared memory, in floats: two stages each, of rows as seen, of x, of h, and of the warps' outputs.
constexpr int OF_SEEN = SEQUENCES * SX, OF_STATE = SEQUENCES * SU, OF_PARTS = WARPS * SEQUENCES * 8 * TO;
constexpr int AT_SEEN = LEARNS ? 6 * U * U : 0, AT_FIRST = AT_SEEN + 2 * OF_SEEN, AT_B3 = AT_FIRST + SEQUENCES;
constexpr int AT_X = AT_B3 + 8 * TO, AT_H = AT_X + 2 * OF_STATE, AT_PARTS = AT_H + 2 * OF_STATE;
constexpr int FORWARD_FLOATS = AT_PARTS + 2 * OF_PARTS;

struct Layers {  // the value's output is `v3` and `c3`; rows of `wi` and `wh` are those of r, z and n
  const float *w1, *b1, *wi, *bi, *wh, *bh, *w3, *b3, *v3, *c3;

  WD_METHOD float first(const int unit, const int k) const {  // of the hidden layer, with its bias
    if (unit >= HIDDEN1 || k > N_SEEN) return 0.f;
    return factor(k == N_SEEN ? b1[unit] : w1[unit * N_SEEN + k]);
  }
  WD_METHOD float input(const int gate, const int unit, const int from) const {
    return unit < UNITS && from < HIDDEN1 ? factor(wi[(gate * UNITS + unit) * HIDDEN1 + from]) : 0.f;
  }
  WD_METHOD float state(const int gate, const int unit, const int from) const {
    return unit < UNITS && from < UNITS ? factor(wh[(gate * UNITS + unit) * UNITS + from]) : 0.f;
  }
  WD_METHOD float output(const Part part, const int out, const int unit) const {
    if (unit >= UNITS) return 0.f;
    if (part.has_policy && out < N_OUTPUTS) return factor(w3[out * UNITS + unit]);
    return part.has_value && out == part.value_column() ? factor(v3[unit]) : 0.f;
  }
};

// A row (step, environment, agent) of the rollout for each step of a sequence.
struct Sequences {
  const float *observations, *states;  // states of all networks, `state_size` a row
  const int *begins, *indices;         // rows (step, environment) by sequence and step; null: one step, rows in order
  int n, length, n_envs, state_size;   // n: sequences of agents

  WD_METHOD int within(const int q) const { return q < n ? q : n - 1; }
  WD_METHOD int first(const int q) const {  // row (step, environment) of the first step
    return indices ? indices[q / N_AGENTS * length] : q / N_AGENTS;
  }
  WD_METHOD long long row(const int first, const int q, const int step) const {
    return (static_cast<long long>(step) * n_envs + first) * N_AGENTS + q % N_AGENTS;
  }
  WD_METHOD long long state_row(const int first, const int q) const {
    const int place = indices ? first / (length * n_envs) * n_envs + first % n_envs : first;
    return static_cast<long long>(place) * N_AGENTS + q % N_AGENTS;
  }
};

// A lane's place in a warp's tiles, and the block's sequences.
struct Place {
  int lane, warp, g, t, tile;

  WD_METHOD int unit() const { return 8 * warp + 2 * t; }  // first of its two in order R
  WD_METHOD int row(const int m, const int half) const { return 16 * m + 8 * half + g; }
};
WD_FN Place place_of(const int tile) {
  const int lane = threadIdx.x % LANES;
  return {lane, static_cast<int>(threadIdx.x) / LANES, lane / 4, lane % 4, tile};
}

// Rows (step, environment) of the first steps of the tile's sequences.
WD_FN const int* firsts(const float* const shared) { return reinterpret_cast<const int*>(shared + AT_FIRST); }

// Finds the tile's sequences, and clears the rows as seen but for a column of 1 for the biases. Barriers must surround it.
WD_FN void begin_tile(float* const shared, const Sequences& of, const int tile) {
  const int me = threadIdx.x;
#pragma unroll 1
  for (int n = me; n < 2 * OF_SEEN; n += WARPS * LANES) shared[AT_SEEN + n] = n % SX == N_SEEN ? 1.f : 0.f;
  if (me < SEQUENCES) reinterpret_cast<int*>(shared + AT_FIRST)[me] = of.first(of.within(tile * SEQUENCES + me));
}

// Starts the copies of a step's observations.
WD_FN void begin_copies(float* const shared, const Sequences& of, const int tile, const int step) {
  float* const to = shared + AT_SEEN + step % 2 * OF_SEEN;
#pragma unroll 1
  for (int n = threadIdx.x; n < SEQUENCES * N_SEEN; n += WARPS * LANES) {
    const int row = n / N_SEEN, k = n % N_SEEN, q = of.within(tile * SEQUENCES + row);
    wd_copy4(to + row * SX + k, of.observations + of.row(firsts(shared)[row], q, step) * N_SEEN + k);
  }
}

// Whether an episode begins with the step, for the lane's rows (2 tiles, halves): the state before it is zero.
struct Begins {
  bool of[PAIR][2];
};
WD_FN Begins begins_of(const float* const shared, const Sequences& of, const Place at, const int step) {
  Begins all;
#pragma unroll
  for (int k = 0; k < 2 * PAIR; ++k)
    all.of[k / 2][k % 2] =
        of.begins && step < of.length && of.begins[firsts(shared)[at.row(k / 2, k % 2)] + step * of.n_envs];
  return all;
}
WD_FN void forget(float (&tiles)[PAIR][4], const Begins& begins) {
#pragma unroll
  for (int k = 0; k < 4 * PAIR; ++k)
    if (begins.of[k / 4][k / 2 % 2]) tiles[k / 4][k % 4] = 0.f;
}

// A lane's tiles from and to rows of shared memory.
WD_FN void store_tiles(float* const rows, const int stride, const int column, const Place at,
                       const float (&tiles)[PAIR][4]) {
#pragma unroll
  for (int k = 0; k < 2 * PAIR; ++k) {
    const float* const two = tiles[k / 2] + k % 2 * 2;
    wd_store<float2>(rows + at.row(k / 2, k % 2) * stride + column, make_float2(two[0], two[1]));
  }
}

// Left factor of 16 rows, and columns 2 t and 2 t + 1 of 8.
WD_FN Left left_of(const float* const rows, const int stride, const int column, const Place at, const int m) {
  const float2 upper = wd_load<float2>(rows + at.row(m, 0) * stride + column + 2 * at.t);
  const float2 lower = wd_load<float2>(rows + at.row(m, 1) * stride + column + 2 * at.t);
  return left(upper.x, lower.x, upper.y, lower.y);
}

// A lane's weights: of its warp's 8 units by tiles of 8 inputs.
struct Weights {
  float first[KF][2], gates[3][2 * T][2], biases[4][2], outputs[TO][2];
};
WD_FN void load(Weights& all, const Part part, const Layers& of, const Place at) {
  const int unit = 8 * at.warp + at.g;
#pragma unroll
  for (int k = 0; k < 2 * KF; ++k) all.first[k / 2][k % 2] = of.first(unit, 8 * (k / 2) + at.t + 4 * (k % 2));
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
#pragma unroll
    for (int k = 0; k < 2 * T; ++k) {
      const int from = 8 * (k / 2) + 2 * at.t + k % 2;
      all.gates[gate][k / 2][k % 2] = of.input(gate, unit, from);
      all.gates[gate][T + k / 2][k % 2] = of.state(gate, unit, from);
    }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int mine = at.unit() + k;
    const bool is_unit = mine < UNITS;
#pragma unroll
    for (int gate = 0; gate < 2; ++gate)
      all.biases[gate][k] = is_unit ? of.bi[gate * UNITS + mine] + of.bh[gate * UNITS + mine] : 0.f;
    all.biases[2][k] = is_unit ? of.bi[2 * UNITS + mine] : 0.f;
    all.biases[3][k] = is_unit ? of.bh[2 * UNITS + mine] : 0.f;
  }
#pragma unroll
  for (int k = 0; k < 2 * TO; ++k) all.outputs[k / 2][k % 2] = of.output(part, 8 * (k / 2) + at.g, at.unit() + k % 2);
}

WD_FN float wd_sigmoid(const float x) {
  if (TF32) return fmaf(0.5f, wd_rough_tanh(0.5f * x), 0.5f);
  return wd_reciprocal(1.f + wd_power_of_two(-1.44269504f * x));
}

// A step's units of the hidden layer, 8 of each row.
WD_FN void hidden(const float* const seen, const float (&weights)[KF][2], const Place at, float (&x)[PAIR][4]) {
#pragma unroll
  for (int m = 0; m < PAIR; ++m) {
    zero(x[m]);
#pragma unroll
    for (int k = 0; k < KF; ++k) {
      const float* const upper = seen + at.row(m, 0) * SX + 8 * k + at.t;
      const float* const lower = upper + 8 * SX;
      multiply(x[m], left(upper[0], lower[0], upper[4], lower[4]), right(weights[k][0], weights[k][1]));
    }
    activate(x[m]);
  }
}

// A lane's tiles of the state before the first step: row and offset as in `states`.
WD_FN void load_state(const float* const shared, const Sequences& of, const Place at, float (&h)[PAIR][4]) {
#pragma unroll
  for (int k = 0; k < 4 * PAIR; ++k) {
    const int row = at.row(k / 4, k / 2 % 2), unit = at.unit() + k % 2, q = of.within(at.tile * SEQUENCES + row);
    const int first = firsts(shared)[row];
    h[k / 4][k % 4] = unit < UNITS ? of.states[of.state_row(first, q) * of.state_size + unit] : 0.f;
  }
}

// Passes a tile of sequences forward. `to.keep` gets the lane's tiles of r, z, n, the state's part of n, and h'; `to.output`
// a number of a row, without its bias.
template <class To>
WD_FN void pass_forward(float* const shared, const Weights& weights, const Sequences& of, const int tile, const To& to) {
  const Place at = place_of(tile);
  const int column = at.unit();
  __syncthreads();
  begin_tile(shared, of, tile);
  __syncthreads();
  begin_copies(shared, of, tile, 0);
  if (of.length > 1) begin_copies(shared, of, tile, 1);
  wd_end_copies();
  float h[PAIR][4];
  load_state(shared, of, at, h);
  forget(h, begins_of(shared, of, at, 0));
  store_tiles(shared + AT_H, SU, column, at, h);
  wd_await_all();
  __syncthreads();
  float x[PAIR][4];
  hidden(shared + AT_SEEN, weights.first, at, x);
  store_tiles(shared + AT_X, SU, column, at, x);
  __syncthreads();
#pragma unroll 1
  for (int step = 0; step < of.length; ++step) {
    const int stage = step % 2;
    if (step + 2 < of.length) begin_copies(shared, of, tile, step + 2);
    wd_end_copies();
    const Begins next = begins_of(shared, of, at, step + 1);
    float sums[4][PAIR][4];  // of r, z, and the two parts of n
#pragma unroll
    for (int k = 0; k < 16 * PAIR; ++k) sums[k / (4 * PAIR)][k / 4 % PAIR][k % 4] = weights.biases[k / (4 * PAIR)][k % 2];
#pragma unroll
    for (int k = 0; k < 2 * T; ++k)
#pragma unroll
      for (int m = 0; m < PAIR; ++m) {
        const float* const rows = shared + (k < T ? AT_X : AT_H) + stage * OF_STATE;
        const Left a = left_of(rows, SU, 8 * (k % T), at, m);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate)
          multiply(sums[gate == 2 && k >= T ? 3 : gate][m], a, right(weights.gates[gate][k][0], weights.gates[gate][k][1]));
      }
#pragma unroll
    for (int m = 0; m < PAIR; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float reset = wd_sigmoid(sums[0][m][e]), update = wd_sigmoid(sums[1][m][e]);
        const float candidate = wd_curve(fmaf(reset, sums[3][m][e], sums[2][m][e]));
        sums[0][m][e] = reset, sums[1][m][e] = update, sums[2][m][e] = candidate;
        h[m][e] = fmaf(update, h[m][e] - candidate, candidate);
      }
    to.keep(at, step, sums, h);
    float* const parts = shared + AT_PARTS + stage * OF_PARTS;
#pragma unroll
    for (int o = 0; o < TO; ++o) {
      float out[PAIR][4];
#pragma unroll
      for (int m = 0; m < PAIR; ++m) {
        zero(out[m]);
        multiply(out[m], left(h[m]), right(weights.outputs[o][0], weights.outputs[o][1]));
      }
      store_tiles(parts + at.warp * SEQUENCES * 8 * TO, 8 * TO, 8 * o + 2 * at.t, at, out);
    }
    if (step + 1 < of.length) {
      forget(h, next);
      store_tiles(shared + AT_H + (stage ^ 1) * OF_STATE, SU, column, at, h);
      hidden(shared + AT_SEEN + (stage ^ 1) * OF_SEEN, weights.first, at, x);
      store_tiles(shared + AT_X + (stage ^ 1) * OF_STATE, SU, column, at, x);
    }
    wd_await_all();
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < SEQUENCES * 8 * TO; n += WARPS * LANES) {
      float sum = 0.f;
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) sum += parts[warp * SEQUENCES * 8 * TO + n];
      to.output(step, n / (8 * TO), n % (8 * TO), sum);
    }
  }
}

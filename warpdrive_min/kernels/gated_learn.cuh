// A2C's and PPO's loss of a minibatch of sequences and its gradients, by gated units on matrix units.
//
// A block passes 32 sequences forward (`gated.cuh`) and keeps the gates and states of all steps in `kept`. Its threads then
// take a row each to the loss, and the block goes back through time: a warp computes the derivatives of its 8 units' gates,
//   d_r, d_z, d_n (before their activations), and r d_n, the derivative of the state's part of n
// which all warps share. From them it computes the derivatives of 8 of the hidden layer's units and 8 of the state before.
// The sums of all gradients stay in registers through time: warp 2 a + b has those of units 16 a to 16 a + 15 of all gates
// by the b-th half of the inputs and of the state's units.
//
// Constants that come before this header: those of `gated.cuh` and `loss.cuh`.
#pragma once

#include "gated.cuh"
//
#include "loss.cuh"

constexpr int GATES = 4, KEPT = GATES + 1;  // kept of a unit: r, z, n, the state's part of n, and h
constexpr int SD = GATES * U + 8, SS = 12, KM = (KF + 1) / 2, OM = (TO + 1) / 2;  // tiles of 16 features and outputs
// Behind the rows as seen: derivatives of gates, x, the state before, two stages of derivatives of outputs, and 8 columns of
// 32 rows for each warp. The loss has the numbers of its rows there, and the sums over threads.
constexpr int AT_D = AT_X, AT_X1 = AT_D + SEQUENCES * SD, AT_H0 = AT_X1 + OF_STATE, AT_D_OUT = AT_H0 + OF_STATE;
constexpr int AT_COLUMNS = AT_D_OUT + 2 * SEQUENCES * SO, BACKWARD_FLOATS = AT_COLUMNS + WARPS * SEQUENCES * SS;
constexpr int N_NUMBERS = (5 + N_TYPES) * ROWS, N_SUMS = 8 * TO + N_TERMS;
constexpr int LOSS_FLOATS = AT_X + WARPS * (PAIR * N_NUMBERS > N_SUMS ? PAIR * N_NUMBERS : N_SUMS);
constexpr int LARGER_FLOATS = FORWARD_FLOATS > BACKWARD_FLOATS ? FORWARD_FLOATS : BACKWARD_FLOATS;
constexpr int SHARED_FLOATS = LARGER_FLOATS > LOSS_FLOATS ? LARGER_FLOATS : LOSS_FLOATS;
// Floats that a block keeps of a step.
constexpr int STEP_FLOATS = KEPT * SEQUENCES * U + SEQUENCES * 8 * TO;

struct Places {  // first number of each layer in the vector of parameters
  int w1, b1, wi, bi, wh, bh, w3, b3, v3, c3;
};

// What a block keeps of a step: tiles in the order of the lanes, and rows of outputs, later their derivatives.
struct Kept {
  float* kept;

  WD_METHOD float* tiles(const Place at, const int step, const int what) const {
    return kept + static_cast<long long>(step) * STEP_FLOATS + ((at.warp * KEPT + what) * PAIR * LANES + at.lane) * 4;
  }
  WD_METHOD float* outputs(const int step, const int row) const {
    return kept + static_cast<long long>(step) * STEP_FLOATS + KEPT * SEQUENCES * U + row * 8 * TO;
  }
  WD_METHOD void keep(const Place at, const int step, const float (&gates)[4][PAIR][4], const float (&h)[PAIR][4]) const {
#pragma unroll
    for (int k = 0; k < KEPT * PAIR; ++k) {
      const float* const from = k / PAIR < GATES ? gates[k / PAIR % GATES][k % PAIR] : h[k % PAIR];
      wd_store<float4>(tiles(at, step, k / PAIR) + k % PAIR * LANES * 4, make_float4(from[0], from[1], from[2], from[3]));
    }
  }
  WD_METHOD void load(const Place at, const int step, const int what, float (&to)[PAIR][4]) const {
#pragma unroll
    for (int m = 0; m < PAIR; ++m) {
      const float4 from = wd_load<float4>(tiles(at, step, what) + m * LANES * 4);
      to[m][0] = from.x, to[m][1] = from.y, to[m][2] = from.z, to[m][3] = from.w;
    }
  }
  WD_METHOD void output(const int step, const int row, const int column, const float sum) const {
    outputs(step, row)[column] = sum;
  }
};

// The loss of a tile's rows: replaces their outputs by derivatives, and adds the sums over rows to `sums`, which are terms
// and then derivatives of the outputs' biases.
WD_FN void tile_loss(const Part part, float* const shared, const Kept& kept, const Sequences& of, const Rollout& rollout,
                     const Rule& rule, const int tile) {
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, q = tile * SEQUENCES + lane, agent = q % N_AGENTS;
  float* const mine = shared + AT_X + warp * PAIR * N_NUMBERS;
  float* const numbers = mine + lane / ROWS * N_NUMBERS + lane % ROWS;
  float terms[N_TERMS], biases[8 * TO];
#pragma unroll
  for (int k = 0; k < N_TERMS; ++k) terms[k] = 0.f;
#pragma unroll
  for (int k = 0; k < 8 * TO; ++k) biases[k] = 0.f;
#pragma unroll 1
  for (int step = warp; step < of.length; step += WARPS) {
    const int row = (q / N_AGENTS * of.length + step) * N_AGENTS + agent;  // of the minibatch
    const int within = q < of.n ? row : rollout.n_rows - 1;
    const long long source = rollout.source(within);
    if (part.has_policy) {
      numbers[LOG_PROB] = rollout.log_probs[source];
      numbers[ADVANTAGE] = rollout.advantages[rollout.is_taken ? within : source];
#pragma unroll 1
      for (int type = 0; type < N_TYPES; ++type)
        numbers[ACTIONS + ROWS * type] = wd_float(static_cast<unsigned>(rollout.actions[source * N_TYPES + type]));
    }
    if (part.has_value) {
      numbers[RETURN] = rollout.returns[source];
      if (VALUE_CLIPPED) numbers[OLD_VALUE] = rollout.old_values[source];
    }
    if (rollout.weights) numbers[WEIGHT] = rollout.weights[within / N_AGENTS];
    float* const outputs = kept.outputs(step, lane);
    loss(part, rollout, rule, q < of.n ? row : rollout.n_rows, outputs, shared + AT_B3, numbers, terms);
#pragma unroll
    for (int k = 0; k < 8 * TO; ++k) biases[k] += outputs[k];
  }
  __syncthreads();  // the numbers' place gets the sums over lanes
  const auto add = [&](const int k, float sum) {
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0) shared[AT_X + warp * N_SUMS + k] = sum;
  };
#pragma unroll
  for (int k = 0; k < N_TERMS; ++k) add(k, terms[k]);
#pragma unroll
  for (int k = 0; k < 8 * TO; ++k) add(N_TERMS + k, biases[k]);
  __syncthreads();
}

// Adds a number of the gradient of a block.
struct Gradient {
  float* to;
  bool is_first;  // of the block's tiles

  WD_METHOD void add(const int at, const float sum) const { to[at] = is_first ? sum : to[at] + sum; }
};

WD_FN void store_loss(const Part part, const float* const shared, const Places at, const Gradient& to,
                      const int n_parameters) {
#pragma unroll 1
  for (int k = threadIdx.x; k < N_SUMS; k += WARPS * LANES) {
    float sum = 0.f;
    for (int warp = 0; warp < WARPS; ++warp) sum += shared[AT_X + warp * N_SUMS + k];
    const int column = k - N_TERMS;
    if (column < 0) {
      if (k == 1 ? part.has_value : part.has_policy) to.add(n_parameters + k, sum);
    } else if (column < part.n_columns()) {
      to.add(part.has_value && column == part.value_column() ? at.c3 : at.b3 + column, sum);
    }
  }
}

// ---- back through time

// Fills the block's weights: for each warp's 8 units of x and of the state before, by 8 units of a gate.
WD_FN void load_weights(float* const shared, const Layers& of) {
#pragma unroll 2
  for (int n = threadIdx.x; n < 6 * U * U / 4; n += WARPS * LANES) {
    const int lane = n % LANES, gate = n / LANES % 3, to = 8 * (n / LANES / 3 % WARPS) + lane / 4;
    const int from = 8 * (n / LANES / 3 / WARPS) + 2 * (lane % 4);
    wd_store<float4>(shared + 4 * n, make_float4(of.input(gate, from, to), of.input(gate, from + 1, to),
                                                 of.state(gate, from, to), of.state(gate, from + 1, to)));
  }
}

// As `multiply`, to a sum over all rows and steps; see `accumulate`.
WD_FN void add_product(float* const sum, const Left& a, const Right& b) {
  if (TF32) {
    multiply(sum, a, b);
    return;
  }
  float some[4];
  zero(some);
  multiply(some, a, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += some[i];
}

// Left factor whose columns are 8 rows of `rows`, and whose rows are 16 of their columns; the upper 8 may be missing.
WD_FN Left transposed(const float* const rows, const int stride, const int first, const int second, const bool has_upper) {
  const float* const one = rows + first * stride;
  const float* const other = rows + second * stride;
  return left(one[0], has_upper ? one[8] : 0.f, other[0], has_upper ? other[8] : 0.f);
}

// What a step needs of the forward pass.
struct Step {
  float gates[GATES][PAIR][4], before[PAIR][4];
  Begins begins;
};
WD_FN void load(Step& all, const float* const shared, const Kept& kept, const Sequences& of, const Place at,
                const int step) {
#pragma unroll
  for (int gate = 0; gate < GATES; ++gate) kept.load(at, step, gate, all.gates[gate]);
  if (step > 0)
    kept.load(at, step - 1, GATES, all.before);
  else
    load_state(shared, of, at, all.before);
  all.begins = begins_of(shared, of, at, step);
}

WD_FN void begin_copies_back(float* const shared, const Kept& kept, const Sequences& of, const int tile, const int step) {
  begin_copies(shared, of, tile, step);
  float* const to = shared + AT_D_OUT + step % 2 * SEQUENCES * SO;
#pragma unroll 1
  for (int n = threadIdx.x; n < SEQUENCES * 2 * TO; n += WARPS * LANES)
    wd_copy16(to + n / (2 * TO) * SO + n % (2 * TO) * 4, kept.outputs(step, 0) + 4 * n);
}

// Passes a tile back through time, and adds to the gradient.
WD_FN void pass_back(const Part part, float* const shared, const Kept& kept, const Layers& layers, const Sequences& of,
                     const int tile, const Places places, const Gradient& to) {
  const Place at = place_of(tile);
  const int column = at.unit(), g = at.g, t = at.t, group = at.warp / 2 * 16, inputs = at.warp % 2 * (U / 2);
  float* const d = shared + AT_D;
  float* const columns = shared + AT_COLUMNS + at.warp * SEQUENCES * SS;
  float first[KF][2], w3[TO][2];
#pragma unroll
  for (int k = 0; k < 2 * KF; ++k) first[k / 2][k % 2] = layers.first(8 * at.warp + g, 8 * (k / 2) + t + 4 * (k % 2));
#pragma unroll
  for (int k = 0; k < 2 * TO; ++k)
    w3[k / 2][k % 2] = layers.output(part, 8 * (k / 2) + t + 4 * (k % 2), 8 * at.warp + g);

  // A lane's part of the sums: of weights by gate, input or state; of the first and the last layer; of biases.
  float of_gates[3][2][T / 2][4], of_first[KM][4], of_last[OM][4], of_biases[GATES][2];
#pragma unroll
  for (int k = 0; k < 6 * T / 2; ++k) zero(of_gates[k / T][k / (T / 2) % 2][k % (T / 2)]);
#pragma unroll
  for (int k = 0; k < KM; ++k) zero(of_first[k]);
#pragma unroll
  for (int k = 0; k < OM; ++k) zero(of_last[k]);
#pragma unroll
  for (int k = 0; k < 2 * GATES; ++k) of_biases[k / 2][k % 2] = 0.f;

  float after[PAIR][4], d_h[PAIR][4];  // the state, and its derivative by later steps
  kept.load(at, of.length - 1, GATES, after);
#pragma unroll
  for (int m = 0; m < PAIR; ++m) zero(d_h[m]);
  Step now;
  load(now, shared, kept, of, at, of.length - 1);
  begin_copies_back(shared, kept, of, tile, of.length - 1);
  wd_end_copies();
#pragma unroll 1
  for (int step = of.length - 1; step >= 0; --step) {
    wd_await_all();
    __syncthreads();
    if (step > 0) begin_copies_back(shared, kept, of, tile, step - 1);
    wd_end_copies();
    const float* const seen = shared + AT_SEEN + step % 2 * OF_SEEN;
    const float* const d_out = shared + AT_D_OUT + step % 2 * SEQUENCES * SO;
    float x[PAIR][4];
    hidden(seen, first, at, x);
    store_tiles(shared + AT_X1, SU, column, at, x);
    store_tiles(columns, SS, 2 * t, at, after);
#pragma unroll
    for (int k = 0; k < 4 * PAIR; ++k) after[k / 4][k % 4] = now.before[k / 4][k % 4];
    forget(now.before, now.begins);
    store_tiles(shared + AT_H0, SU, column, at, now.before);
#pragma unroll
    for (int m = 0; m < PAIR; ++m) {
#pragma unroll
      for (int o = 0; o < TO; ++o) {
        const float* const upper = d_out + at.row(m, 0) * SO + 8 * o + t;
        const float* const lower = upper + 8 * SO;
        multiply(d_h[m], left(upper[0], lower[0], upper[4], lower[4]), right(w3[o][0], w3[o][1]));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float r = now.gates[0][m][e], z = now.gates[1][m][e], n = now.gates[2][m][e];
        const float d_n = d_h[m][e] * (1.f - z) * fmaf(-n, n, 1.f);
        now.gates[0][m][e] = d_n * now.gates[3][m][e] * r * (1.f - r);
        now.gates[1][m][e] = d_h[m][e] * (now.before[m][e] - n) * z * (1.f - z);
        now.gates[2][m][e] = d_n;
        now.gates[3][m][e] = d_n * r;
        d_h[m][e] *= z;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) of_biases[gate][e % 2] += now.gates[gate][m][e];
      }
    }
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) store_tiles(d, SD, gate * U + column, at, now.gates[gate]);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // the last layer, by 8 rows
      const int row = 8 * k + 2 * t;
      const Right b = right(columns[row * SS + g], columns[(row + 1) * SS + g]);
#pragma unroll
      for (int o = 0; o < OM; ++o)
        add_product(of_last[o], transposed(d_out + 16 * o + g, SO, row, row + 1, 2 * o + 1 < TO), b);
    }
    const Begins begins = now.begins;
    __syncthreads();

    if (step > 0) load(now, shared, kept, of, at, step - 1);
    float d_x[PAIR][4];
#pragma unroll
    for (int m = 0; m < PAIR; ++m) zero(d_x[m]);
#pragma unroll 2
    for (int k = 0; k < T; ++k) {
      float4 w[3];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate)
        w[gate] = wd_load<float4>(shared + ((k * WARPS + at.warp) * 3 + gate) * LANES * 4 + 4 * at.lane);
#pragma unroll
      for (int m = 0; m < PAIR; ++m)
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
          const Left a = left_of(d, SD, gate * U + 8 * k, at, m);
          if (gate < 3) multiply(d_x[m], a, right(w[gate % 3].x, w[gate % 3].y));
          if (gate != 2) multiply(d_h[m], a, right(w[gate == 3 ? 2 : gate].z, w[gate == 3 ? 2 : gate].w));
        }
    }
    forget(d_h, begins);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4 * PAIR; ++k) d_x[k / 4][k % 4] *= slope(x[k / 4][k % 4]);
    store_tiles(columns, SS, 2 * t, at, d_x);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = 8 * k + 2 * t;
      const Right of_x = right(columns[row * SS + g], columns[(row + 1) * SS + g]);
#pragma unroll
      for (int m = 0; m < KM; ++m)
        add_product(of_first[m], transposed(seen + 16 * m + g, SX, row, row + 1, 2 * m + 1 < KF), of_x);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // rows 8 k + t and 8 k + t + 4
      const int row = 8 * k + t;
      Left a[GATES];
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) a[gate] = transposed(d + gate * U + group + g, SD, row, row + 4, true);
#pragma unroll
      for (int j = 0; j < T / 2; ++j) {
        const float* const of_x = shared + AT_X1 + row * SU + inputs + 8 * j + g;
        const float* const of_h = shared + AT_H0 + row * SU + inputs + 8 * j + g;
        const Right input = right(of_x[0], of_x[4 * SU]), state = right(of_h[0], of_h[4 * SU]);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          add_product(of_gates[gate][0][j], a[gate], input);
          add_product(of_gates[gate][1][j], a[gate == 2 ? 3 : gate], state);
        }
      }
    }
  }

  // Each number of the gradient is one lane's, but for the biases, whose rows are those of 8 lanes.
#pragma unroll
  for (int k = 0; k < 6 * T / 2 * 4; ++k) {
    const int e = k % 4, j = k / 4 % (T / 2), part_of = k / 4 / (T / 2) % 2, gate = k / 4 / T;
    const int unit = group + g + e / 2 * 8, from = inputs + 8 * j + 2 * t + e % 2, width = part_of ? UNITS : HIDDEN1;
    if (unit < UNITS && from < width)
      to.add((part_of ? places.wh : places.wi) + (gate * UNITS + unit) * width + from, of_gates[gate][part_of][j][e]);
  }
#pragma unroll
  for (int k = 0; k < 4 * KM; ++k) {
    const int seen = k / 4 * 16 + g + k % 4 / 2 * 8, unit = column + k % 2;
    if (unit < HIDDEN1 && seen <= N_SEEN)
      to.add(seen == N_SEEN ? places.b1 + unit : places.w1 + unit * N_SEEN + seen, of_first[k / 4][k % 4]);
  }
#pragma unroll
  for (int k = 0; k < 4 * OM; ++k) {
    const int out = k / 4 * 16 + g + k % 4 / 2 * 8, unit = column + k % 2;
    const bool is_value = part.has_value && out == part.value_column();
    if (unit < UNITS && out < part.n_columns())
      to.add(is_value ? places.v3 + unit : places.w3 + out * UNITS + unit, of_last[k / 4][k % 4]);
  }
#pragma unroll
  for (int k = 0; k < 2 * GATES; ++k) {
    float sum = of_biases[k / 2][k % 2];
#pragma unroll
    for (int by = 4; by < LANES; by *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    const int gate = k / 2, unit = column + k % 2;
    if (g > 0 || unit >= UNITS) continue;
    if (gate < 3) to.add(places.bi + gate * UNITS + unit, sum);
    if (gate != 2) to.add(places.bh + (gate == 3 ? 2 : gate) * UNITS + unit, sum);
  }
}

// A network's gradients and terms over this block's sequences.
WD_FN void learn_network(const Part part, float* const shared, const float* const parameters, const Places at,
                         const Sequences& of, const Rollout& rollout, const Rule& rule, const Kept& kept, float* const to,
                         const int n_parameters) {
  const auto from = [&](const int first) { return parameters + first; };
  const Layers layers = {from(at.w1), from(at.b1), from(at.wi), from(at.bi), from(at.wh),
                         from(at.bh), from(at.w3), from(at.b3), from(at.v3), from(at.c3)};
  __syncthreads();
  load_weights(shared, layers);
  for (int n = threadIdx.x; n < 8 * TO; n += WARPS * LANES)
    shared[AT_B3 + n] = part.has_policy && n < N_OUTPUTS             ? layers.b3[n]
                        : part.has_value && n == part.value_column() ? *layers.c3
                                                                     : 0.f;
#pragma unroll 1
  for (int tile = blockIdx.x; tile * SEQUENCES < of.n; tile += gridDim.x) {
    const Gradient gradient = {to, tile == static_cast<int>(blockIdx.x)};
    {
      Weights weights;
      load(weights, part, layers, place_of(tile));
      pass_forward(shared, weights, of, tile, kept);
    }
    __syncthreads();
    tile_loss(part, shared, kept, of, rollout, rule, tile);
    store_loss(part, shared, at, gradient, n_parameters);
    __syncthreads();
    pass_back(part, shared, kept, layers, of, tile, at, gradient);
  }
}

// A block's row of `partial`: gradients at their places, then the terms. Of separate networks, the value's has number 0.
WD_FN void learn_part(float* const shared, const int network, const float* const parameters, const int* const places,
                      const Sequences& all, const Rollout& rollout, const Rule& rule, float* const kept, float* const to,
                      const int n_parameters) {
  const int* const of = places + 10 * network;
  const Places at = {of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7], of[8], of[9]};
  const Part part = {IS_SHARED || network == 1, IS_SHARED || network == 0};
  Sequences sequences = all;
  if (!IS_SHARED && network == 0) sequences.states += UNITS;
  learn_network(part, shared, parameters, at, sequences, rollout, rule, {kept}, to, n_parameters);
}

// A policy within a kernel: a perceptron of one or two hidden layers, and a choice that is drawn from what it puts out.
//
// Constants that come before this header: those of `choice.cuh`, of one type; N_FEATURES; HIDDEN1, HIDDEN2, units of the
// hidden layers, the latter 0 if there is one; IS_TANH, else relu; TF32, which matrix units then take products in; HAS_VALUE; IS_SHARED, if the value is a further output on
// the same hidden layers; N_WEIGHTS, floats of the weights, whose order is that of `warpdrive_min.perceptron`.
#pragma once

#include "choice.cuh"

constexpr int N_HEAD = N_CATEGORIES + (HAS_VALUE && IS_SHARED ? 1 : 0);  // outputs of the network that acts
constexpr bool HAS_CRITIC = HAS_VALUE && !IS_SHARED;                      // a network of its own, behind the other one

#if defined(__CUDACC__)

#include "perceptron_warp.cuh"

// Three blocks on a multiprocessor: fewer warps would wait for the matrix units' results.
#undef WD_KERNEL
#define WD_KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, 3) name

constexpr int VALUE_COLUMN = IS_SHARED ? N_CATEGORIES : 8 * wd_tiles(N_HEAD);
// Rows are a pair longer than they must be: neighbours begin in other banks.
constexpr int SEEN_ROW = 8 * WD_TILES_IN + 2, OUT_ROW = 8 * (wd_tiles(N_HEAD) + (HAS_CRITIC ? 1 : 0)) + 2;
constexpr int ROOM_FLOATS = THREADS * (SEEN_ROW + OUT_ROW);
constexpr bool ARE_STAGED = 4 * (N_WEIGHTS + ROOM_FLOATS) <= 48 * 1024;  // else they come from the first cache

// What a block works on: a row for each thread, and the weights.
struct WD_ALIGN(16) wd_policy {
  float weights[ARE_STAGED ? N_WEIGHTS : 4];
  float seen[THREADS][SEEN_ROW];
  float out[THREADS][OUT_ROW];

  // All threads of a block call it first, and then wait.
  __device__ __forceinline__ void begin(const float* const given) {
    for (int i = 4 * WD_THREAD; ARE_STAGED && i < N_WEIGHTS; i += 4 * THREADS)
      *reinterpret_cast<float4*>(weights + i) = *reinterpret_cast<const float4*>(given + i);
    for (int i = N_FEATURES; i < SEEN_ROW; ++i) seen[WD_THREAD][i] = 0.f;
  }

  // Fills this thread's row of `out`; all threads of a warp call it.
  template <class Seen>
  __device__ __forceinline__ void evaluate(const Seen& s, const float* const given) {
    const int lane = WD_THREAD % 32, first = WD_THREAD - lane;
    const float* const from = ARE_STAGED ? weights : given;
    for (int i = 0; i < N_FEATURES; ++i) seen[WD_THREAD][i] = reinterpret_cast<const float*>(&s)[i];
    __syncwarp();
    wd_evaluate<N_HEAD, SEEN_ROW, OUT_ROW>(from, seen + first, out + first, lane);
    if constexpr (HAS_CRITIC) {
      constexpr int N_ACTOR = WD_FIRST_FLOATS + WD_SECOND_FLOATS + wd_layer_floats(WD_LAST_HIDDEN, N_HEAD);
      wd_evaluate<1, SEEN_ROW, OUT_ROW>(from + N_ACTOR, seen + first, reinterpret_cast<float (*)[OUT_ROW]>(&out[first][VALUE_COLUMN]), lane);
    }
    __syncwarp();
  }
};

#else

constexpr int WD_ROWS = 64;  // rows that are passed through the network at a time: lanes of SIMD
typedef float wd_floats __attribute__((vector_size(64)));
constexpr int WD_FLOATS = sizeof(wd_floats) / sizeof(float);

// N units of a layer for all rows: numbers lie row by row, units apart from each other.
template <int N, int N_INPUTS>
WD_FN void wd_units(float (*const out)[WD_ROWS], const float (*const in)[WD_ROWS], const float* const weights,
                    const float* const biases) {
  for (int first = 0; first < WD_ROWS; first += WD_FLOATS) {
    wd_floats sums[N];  // in registers
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[n] = wd_floats{} + biases[n];
    for (int k = 0; k < N_INPUTS; ++k) {
      wd_floats row;
      std::memcpy(&row, in[k] + first, sizeof row);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[n] += weights[n * N_INPUTS + k] * row;
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) std::memcpy(out[n] + first, &sums[n], sizeof sums[n]);
  }
}

// A layer, whose weights are those of `torch.nn.Linear`, (outputs, inputs), with the biases behind them; returns what comes
// after these.
template <int N_INPUTS, int N_OUTPUTS>
static const float* wd_layer(float (*const out)[WD_ROWS], const float (*const in)[WD_ROWS], const float* const weights) {
  const float* const biases = weights + N_OUTPUTS * N_INPUTS;
  int n = 0;
  for (; n + 8 <= N_OUTPUTS; n += 8) wd_units<8, N_INPUTS>(out + n, in, weights + n * N_INPUTS, biases + n);
  for (; n < N_OUTPUTS; ++n) wd_units<1, N_INPUTS>(out + n, in, weights + n * N_INPUTS, biases + n);
  return biases + N_OUTPUTS;
}

static void wd_activate(float* const numbers, const int n) {
  if (IS_TANH)
    WD_INDEPENDENT for (int i = 0; i < n; ++i) numbers[i] = wd_tanh(numbers[i]);
  else
    WD_INDEPENDENT for (int i = 0; i < n; ++i) numbers[i] = numbers[i] < 0.f ? 0.f : numbers[i];
}

// What a thread works on: a row for each feature, unit and output.
struct wd_policy {
  float seen[N_FEATURES][WD_ROWS], hidden1[HIDDEN1][WD_ROWS], hidden2[HIDDEN2 + 1][WD_ROWS];
  float out[N_HEAD][WD_ROWS], value[1][WD_ROWS];

  template <int N_OUTPUTS>
  const float* pass(float (*const to)[WD_ROWS], const float* weights) {
    weights = wd_layer<N_FEATURES, HIDDEN1>(hidden1, seen, weights);
    wd_activate(hidden1[0], HIDDEN1 * WD_ROWS);
    if constexpr (HIDDEN2 == 0) return wd_layer<HIDDEN1, N_OUTPUTS>(to, hidden1, weights);
    weights = wd_layer<HIDDEN1, HIDDEN2>(hidden2, hidden1, weights);
    wd_activate(hidden2[0], HIDDEN2 * WD_ROWS);
    return wd_layer<HIDDEN2, N_OUTPUTS>(to, hidden2, weights);
  }

  // Draws the actions of up to WD_ROWS environments of one agent from what they observe, by a uniform word of each.
  void act(const float (*const observations)[N_FEATURES], const float* const weights, const unsigned* const words,
           int* const actions, float* const log_probs, float* const values, const int n) {
    for (int row = 0; row < WD_ROWS; ++row)
      for (int i = 0; i < N_FEATURES; ++i) seen[i][row] = observations[wd_min(row, n - 1)][i];
    const float* const of_critic = pass<N_HEAD>(out, weights);
    if constexpr (HAS_CRITIC) pass<1>(value, of_critic);
    const float* const valued = HAS_CRITIC ? value[0] : out[N_HEAD - 1];
    wd_drawn<WD_ROWS> drawn;
    wd_draw(drawn, out, N_CATEGORIES, WD_ROWS, words);
    WD_EACH_ROW(row, n) {
      actions[row] = drawn.action[row] < 0 ? 0 : drawn.action[row];
      log_probs[row] = drawn.log_prob[row];
      if (HAS_VALUE) values[row] = valued[row];
    }
  }
};

#endif

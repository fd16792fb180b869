// A policy within a kernel: a perceptron of one or two hidden layers, and a choice drawn from its outputs.
//
// Constants that come before this header: those of `choice.cuh`, of one type; N_SEEN; HIDDEN1, HIDDEN2, units of the
// hidden layers, the latter 0 if there is one; IS_TANH, else relu; TF32, which matrix units then take products in; HAS_VALUE;
// IS_SHARED, if the value is a further output on the same hidden layers; N_WEIGHTS, floats of the weights, whose order is
// that of `warpdrive_min.perceptron`; IN_ORDER, without TF32: outputs are bit-identical to `linear` in exact.cu.
#pragma once

#include "choice.cuh"

constexpr int N_HEAD = N_CATEGORIES + (HAS_VALUE && IS_SHARED ? 1 : 0);  // outputs of the network that acts
constexpr bool HAS_CRITIC = HAS_VALUE && !IS_SHARED;                      // a network of its own, behind the other one

#if defined(__CUDACC__)

#include "perceptron_lane.cuh"
#include "perceptron_warp.cuh"

// Small blocks on a multiprocessor: fewer warps would wait for the matrix units' results. Two parts of factors take more
// registers.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 1 : TF32 ? 4 : 3) name

constexpr int VALUE_COLUMN = IS_SHARED ? N_CATEGORIES : 8 * wd_tiles(N_HEAD);
// Rows are padded by a pair, so that neighbours start in different banks.
constexpr int SEEN_ROW = 8 * WD_TILES_IN + 2, OUT_ROW = 8 * (wd_tiles(N_HEAD) + (HAS_CRITIC ? 1 : 0)) + 2;
constexpr int WD_ROW_BYTES = 4 * (SEEN_ROW + OUT_ROW), WD_SHARED_BYTES = 48 * 1024;
// Rows that a warp passes through the network in blocks with several agents per environment: fewer if there are enough
// warps, for lower latency. And rows of a block: all that fit into a quarter of its shared memory; the rest is for other
// arrays.
constexpr int WD_AGENT_ROWS = ENVS_PER_BLOCK * N_AGENTS, WD_WARP_ROWS = WD_AGENT_ROWS <= THREADS / 2 ? 16 : 32;
constexpr int WD_ACTING_WARPS = wd_min(wd_min(THREADS / 32, (WD_AGENT_ROWS + WD_WARP_ROWS - 1) / WD_WARP_ROWS),
                                       1 + WD_SHARED_BYTES / 4 / (WD_WARP_ROWS * WD_ROW_BYTES));

// Blocks of one warp: with this limit a multiprocessor has shared memory for eight. More weights come from the first cache.
constexpr bool WD_IS_ONE_WARP = THREADS == 32 && N_AGENTS > 1;
constexpr int WD_POLICY_BYTES = WD_IS_ONE_WARP ? WD_SHARED_BYTES / 3 : WD_SHARED_BYTES * 5 / 8;
// Tiles of the second layer that a warp computes side by side, so that their sums do not wait for each other: as many as its
// registers hold, and fewer if a multiprocessor has many warps.
constexpr int WD_MOST_TILES = N_AGENTS == 1 ? (THREADS <= 64 ? 4 : 1) : WD_WARP_ROWS > 16 ? 1 : THREADS <= 32 ? 4 : 2;
constexpr int WD_SIDE_BY_SIDE =
    HIDDEN1 > 64 ? 1 : wd_min(WD_MOST_TILES, WD_TILES2 % 4 == 0 ? 4 : WD_TILES2 % 2 == 0 ? 2 : 1);

// Shared memory of a block: the weights, if they fit, and the rows of its first warps.
template <int WARPS, int WARP_ROWS, int BYTES>
struct WD_ALIGN(16) wd_policy_of {
  static constexpr int ROWS = WARPS * WARP_ROWS;
  static constexpr bool ARE_STAGED = 4 * N_WEIGHTS + ROWS * WD_ROW_BYTES <= BYTES;  // else they come from the first cache
  float weights[ARE_STAGED ? N_WEIGHTS : 4];
  float seen[ROWS][SEEN_ROW];
  float out[ROWS][OUT_ROW];

  // All threads of a block must call it first, and then synchronise.
  __device__ __forceinline__ void begin(const float* const given) {
    for (int i = 4 * WD_THREAD; ARE_STAGED && i < N_WEIGHTS; i += 4 * THREADS)
      *reinterpret_cast<float4*>(weights + i) = *reinterpret_cast<const float4*>(given + i);
    for (int i = N_SEEN; i < SEEN_ROW && WD_THREAD < ROWS; ++i) seen[WD_THREAD][i] = 0.f;
  }

  // Fills a warp's rows of `out` from those of `seen`; all its threads call it.
  __device__ __forceinline__ void evaluate(const float* const given) {
    const int lane = WD_THREAD % 32, first = WD_THREAD / 32 * WARP_ROWS;
    __syncwarp();
    if constexpr (IN_ORDER) {
      const float* const from = ARE_STAGED ? weights : given;
      if (lane < WARP_ROWS) {
        wd_evaluate_row<N_HEAD>(from, seen[first + lane], out[first + lane]);
        if constexpr (HAS_CRITIC)
          wd_evaluate_row<1>(from + wd_network_floats(N_HEAD), seen[first + lane], out[first + lane] + VALUE_COLUMN);
      }
      __syncwarp();
      return;
    }
    evaluate_tiles(given, [&](const int row, const int column) { return wd_load<wd_pair>(seen[first + row] + column); });
  }

  // The same on the matrix units, from inputs as in `wd_evaluate`; call it after a barrier.
  template <class In>
  __device__ __forceinline__ void evaluate_tiles(const float* const given, const In in) {
    const int lane = WD_THREAD % 32, first = WD_THREAD / 32 * WARP_ROWS;
    const float* const from = ARE_STAGED ? weights : given;
    wd_evaluate<N_HEAD, OUT_ROW, WARP_ROWS, WD_SIDE_BY_SIDE>(from, in, out + first, lane);
    if constexpr (HAS_CRITIC) {
      constexpr int N_ACTOR = WD_FIRST_FLOATS + WD_SECOND_FLOATS + wd_layer_floats(WD_LAST_HIDDEN, N_HEAD);
      auto* const values = reinterpret_cast<float (*)[OUT_ROW]>(&out[first][VALUE_COLUMN]);
      wd_evaluate<1, OUT_ROW, WARP_ROWS, WD_SIDE_BY_SIDE>(from + N_ACTOR, in, values, lane);
    }
    __syncwarp();
  }

  // The same for warps with one row per thread, or a block of one warp with fewer, from this thread's observation.
  template <class Seen>
  __device__ __forceinline__ void evaluate(const Seen& s, const float* const given) {
    for (int i = 0; i < N_SEEN && WD_THREAD < ROWS; ++i) seen[WD_THREAD][i] = reinterpret_cast<const float*>(&s)[i];
    evaluate(given);
  }
};

using wd_policy = wd_policy_of<THREADS / 32, wd_min(32, ENVS_PER_BLOCK), WD_SHARED_BYTES>;  // a thread acts for its environment
using wd_policy_of_block = wd_policy_of<WD_ACTING_WARPS, WD_WARP_ROWS, WD_POLICY_BYTES>;     // for all of a block

// Draws the actions of a launch's step for this block's agents from their observations, (n_envs, N_AGENTS, N_SEEN), and
// counts impossible rows. `supply` and `kept` are as in `wd_draw_actions`; the caller must then synchronise the block.
WD_FN void wd_act(wd_policy_of_block& policy, const float* const seen, const float* const weights, wd_supply& supply,
                  const int step, const int* const draws, const int* const seed, const int stream, int* const impossible,
                  int* const actions, int* const kept, float (*const log_probs)[N_AGENTS],
                  float (*const values)[N_AGENTS], const int n_envs) {
  constexpr bool IS_ALONE = WD_AGENT_ROWS <= WD_ACTING_WARPS * WD_WARP_ROWS;
  const int warp = WD_THREAD / 32, lane = WD_THREAD % 32;
  const int n_rows = wd_min(ENVS_PER_BLOCK, n_envs - WD_FIRST_ENV) * N_AGENTS;
  const long long first_row = static_cast<long long>(WD_FIRST_ENV) * N_AGENTS;
  if (warp >= WD_ACTING_WARPS) return;
  constexpr int STEP = WD_ACTING_WARPS * WD_WARP_ROWS;
  for (int first = warp * WD_WARP_ROWS; first < n_rows; first = IS_ALONE ? n_rows : first + STEP) {
    const float* const from = seen + (first_row + first) * N_SEEN;
    const int n = wd_min(WD_WARP_ROWS, n_rows - first);
    if constexpr (WD_IS_ONE_WARP && !IN_ORDER) {  // few loads, so a copy would take longer
      policy.evaluate_tiles(weights, [&](const int row, const int column) {
        const float* const at = from + wd_min(row, n - 1) * N_SEEN;
        return wd_pair{column < N_SEEN ? at[column] : 0.f, column + 1 < N_SEEN ? at[column + 1] : 0.f};
      });
    } else {
      float(*const to)[SEEN_ROW] = policy.seen + warp * WD_WARP_ROWS;
      wd_move<WD_WARP_ROWS * N_SEEN, 32, 8>(
          lane, n * N_SEEN - 1, [&](const int i) { return from[i]; },
          [&](const int i, const float number) { to[i / N_SEEN][i % N_SEEN] = number; });
      policy.evaluate(weights);
    }
    const int row = first + lane, env = WD_FIRST_ENV + row / N_AGENTS, agent = row % N_AGENTS;
    if (lane >= WD_WARP_ROWS || row >= n_rows) continue;
    const bool is_first = step == 0 || !IS_ALONE;
    if (is_first) supply.next = static_cast<unsigned>(draws[env]) + step;
    float* const out = policy.out[warp * WD_WARP_ROWS + lane];
    if (HAS_VALUE) values[env][agent] = out[VALUE_COLUMN];
    const unsigned word = wd_take(supply, !is_first, env, agent, stream, seed);
    const wd_drawn drawn = wd_draw(out, nullptr, N_CATEGORIES, wd_uniform(word));
    actions[first_row + row] = kept[first_row + row] = drawn.action;
    if (drawn.is_impossible) impossible[first_row + row] += 1;
    log_probs[env][agent] = drawn.log_prob;
  }
}

#else

#include "float_lanes.cuh"
#include "units.cuh"

constexpr int WD_ROWS = 64;  // rows that are passed through the network at a time: lanes of SIMD

// N units of a layer for all rows: numbers lie row by row, units apart from each other.
template <int N, int N_INPUTS>
WD_FN void wd_units(float (*const out)[WD_ROWS], const float (*const in)[WD_ROWS], const float* const weights,
                    const float* const biases) {
  for (int first = 0; first < WD_ROWS; first += WD_FLOATS) {
    wd_floats sums[N];  // in registers
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[n] = wd_all_lanes(biases[n]);
    for (int k = 0; k < N_INPUTS; ++k) {
      wd_floats row;
      std::memcpy(&row, in[k] + first, sizeof row);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        if constexpr (IN_ORDER)
          wd_add_product(sums[n], weights[n * N_INPUTS + k], row);
        else
          sums[n] += weights[n * N_INPUTS + k] * row;
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) std::memcpy(out[n] + first, &sums[n], sizeof sums[n]);
  }
}

// A layer with weights as in `torch.nn.Linear`, (outputs, inputs), followed by biases; returns the pointer after these.
template <int N_INPUTS, int N_OUTPUTS>
static const float* wd_layer(float (*const out)[WD_ROWS], const float (*const in)[WD_ROWS], const float* const weights) {
  const float* const biases = weights + N_OUTPUTS * N_INPUTS;
  int n = 0;
  for (; n + 8 <= N_OUTPUTS; n += 8) wd_units<8, N_INPUTS>(out + n, in, weights + n * N_INPUTS, biases + n);
  for (; n < N_OUTPUTS; ++n) wd_units<1, N_INPUTS>(out + n, in, weights + n * N_INPUTS, biases + n);
  return biases + N_OUTPUTS;
}

static void wd_activate(float* const numbers, const int n) {
  WD_INDEPENDENT for (int i = 0; i < n; ++i) numbers[i] = wd_unit(numbers[i]);
}

// Working memory of a thread: a row for each feature, unit and output.
struct wd_policy {
  float seen[N_SEEN][WD_ROWS], hidden1[HIDDEN1][WD_ROWS], hidden2[HIDDEN2 + 1][WD_ROWS];
  float out[N_HEAD][WD_ROWS], value[1][WD_ROWS];

  void begin(const float*) {}

  template <int N_OUTPUTS>
  const float* pass(float (*const to)[WD_ROWS], const float* weights) {
    weights = wd_layer<N_SEEN, HIDDEN1>(hidden1, seen, weights);
    wd_activate(hidden1[0], HIDDEN1 * WD_ROWS);
    if constexpr (HIDDEN2 == 0) return wd_layer<HIDDEN1, N_OUTPUTS>(to, hidden1, weights);
    weights = wd_layer<HIDDEN1, HIDDEN2>(hidden2, hidden1, weights);
    wd_activate(hidden2[0], HIDDEN2 * WD_ROWS);
    return wd_layer<HIDDEN2, N_OUTPUTS>(to, hidden2, weights);
  }

  // Draws the actions of up to WD_ROWS agents from what they observe, by a uniform word of each.
  void act(const float (*const observations)[N_SEEN], const float* const weights, const unsigned* const words,
           int* const impossible, int* const actions, float* const log_probs, float* const values, const int n) {
    for (int row = 0; row < WD_ROWS; ++row)
      for (int i = 0; i < N_SEEN; ++i) seen[i][row] = observations[wd_min(row, n - 1)][i];
    const float* const of_critic = pass<N_HEAD>(out, weights);
    if constexpr (HAS_CRITIC) pass<1>(value, of_critic);
    const float* const valued = HAS_CRITIC ? value[0] : out[N_HEAD - 1];
    wd_drawn<WD_ROWS> drawn;
    wd_draw(drawn, out, N_CATEGORIES, WD_ROWS, words);
    for (int row = 0; row < n; ++row)
      if (drawn.is_impossible[row]) impossible[row] += 1;
    WD_EACH_ROW(row, n) {
      actions[row] = drawn.is_impossible[row] ? 0 : drawn.action[row];
      log_probs[row] = drawn.log_prob[row];
      if (HAS_VALUE) values[row] = valued[row];
    }
  }
};

typedef wd_policy wd_policy_of_block;

WD_FN void wd_act(wd_policy& policy, const float* const seen, const float* const weights, wd_supply&, const int step,
                  const int* const draws, const int* const seed, const int stream, int* const impossible,
                  int* const actions, int*, float (*const log_probs)[N_AGENTS], float (*const values)[N_AGENTS],
                  const int n_envs) {
  const int end_row = wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs) * N_AGENTS;
  for (int row = WD_FIRST_ENV * N_AGENTS; row < end_row; row += WD_ROWS) {
    const int n = wd_min(WD_ROWS, end_row - row);
    wd_drawn_words<1> words;
    words.draw(row / WD_ROWS, row, n, draws, stream, seed, step);
    policy.act(reinterpret_cast<const float (*)[N_SEEN]>(seen) + row, weights, words.of[0],
               impossible + row, actions + row, &log_probs[0][0] + row, &values[0][0] + (HAS_VALUE ? row : 0), n);
  }
}

#endif

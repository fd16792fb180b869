// A part of the rows that a thread of the CPU learns from. See exact_learn.cu.
//
// Of each row of a tile the features, units and outputs lie side by side, in SIMD, with zeros up to a multiple of its
// lanes.
#pragma once

#include "float_lanes.cuh"

constexpr int TILE = 64, AT_ONCE = 4;  // rows of a tile; rows, or outputs, whose sums are in registers together

constexpr int padded(const int n) { return (n + WD_FLOATS - 1) / WD_FLOATS * WD_FLOATS; }
constexpr int up4(const int n) { return (n + 3) / 4 * 4; }
// Vectors of a row of n numbers that are in registers together.
constexpr int chunk(const int n) {
  const int vectors = padded(n) / WD_FLOATS;
  return vectors % 4 == 0 ? 4 : vectors % 3 == 0 ? 3 : vectors % 2 == 0 ? 2 : 1;
}

WD_FN wd_floats lanes_at(const float* const from) {
  wd_floats lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
WD_FN void put(float* const to, const wd_floats& lanes) { std::memcpy(to, &lanes, sizeof lanes); }

// Adds the products of AT_ONCE factors, `step` apart, with the numbers at `from`.
template <int VECTORS>
WD_FN void add_products(wd_floats (&sums)[AT_ONCE][VECTORS], const float* const factors, const int step,
                        const float* const from) {
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; ++v) {
    const wd_floats row = lanes_at(from + v * WD_FLOATS);
#pragma GCC unroll 8
    for (int n = 0; n < AT_ONCE; ++n) wd_add_product(sums[n][v], factors[n * step], row);
  }
}

template <int N_IN, int N_OUT>
struct Layer {
  float by_input[N_IN][padded(N_OUT)], biases[padded(N_OUT)], by_output[N_OUT][padded(N_IN)];

  // Rows of sums of K products, which begin with `begin`, or with zeros.
  template <int K, int N>
  static void multiply(const float (*const in)[padded(K)], const float (*const weights)[padded(N)],
                       const float* const begin, float (*const out)[padded(N)]) {
    constexpr int VECTORS = chunk(N);
    for (int first = 0; first < padded(N); first += VECTORS * WD_FLOATS)
      for (int row = 0; row < TILE; row += AT_ONCE) {
        wd_floats sums[AT_ONCE][VECTORS];
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v)
            sums[n][v] = begin == nullptr ? wd_floats{} : lanes_at(begin + first + v * WD_FLOATS);
        for (int k = 0; k < K; ++k) add_products<VECTORS>(sums, &in[row][k], padded(K), weights[k] + first);
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v) put(out[row + n] + first + v * WD_FLOATS, sums[n][v]);
      }
  }

  // out = act(biases + weights in)
  template <bool IS_HIDDEN>
  void forward(const float (*const in)[padded(N_IN)], float (*const out)[padded(N_OUT)]) const {
    multiply<N_IN, N_OUT>(in, by_input, biases, out);
    if (IS_HIDDEN) WD_INDEPENDENT for (int i = 0; i < TILE * padded(N_OUT); ++i) out[0][i] = unit(out[0][i]);
  }

  // in = (weights^T d_out) slope(in)
  void backward(const float (*const d_out)[padded(N_OUT)], float (*const in)[padded(N_IN)]) const {
    float sums[TILE][padded(N_IN)];
    multiply<N_OUT, N_IN>(d_out, by_output, nullptr, sums);
    WD_INDEPENDENT for (int i = 0; i < TILE * padded(N_IN); ++i) in[0][i] = sums[0][i] * unit_slope(in[0][i]);
  }
};

// Sums of a layer's gradient over the rows.
template <int N_IN, int N_OUT>
struct Gradient {
  float sums[up4(N_OUT)][padded(N_IN)] = {}, bias[padded(N_OUT)] = {};

  void add(const float (*const d_out)[padded(N_OUT)], const float (*const in)[padded(N_IN)]) {
    constexpr int VECTORS = chunk(N_IN);
    for (int o = 0; o < N_OUT; o += AT_ONCE)
      for (int first = 0; first < padded(N_IN); first += VECTORS * WD_FLOATS) {
        wd_floats own[AT_ONCE][VECTORS];
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v) own[n][v] = lanes_at(sums[o + n] + first + v * WD_FLOATS);
        for (int r = 0; r < TILE; ++r) add_products<VECTORS>(own, d_out[r] + o, 1, in[r] + first);
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v) put(sums[o + n] + first + v * WD_FLOATS, own[n][v]);
      }
    for (int first = 0; first < padded(N_OUT); first += WD_FLOATS) {
      wd_floats own = lanes_at(bias + first);
      for (int r = 0; r < TILE; ++r) own += lanes_at(d_out[r] + first);
      put(bias + first, own);
    }
  }

  template <class Place, class PlaceOfBias>
  void store(float* const part, const Place place, const PlaceOfBias place_of_bias) const {
    for (int o = 0; o < N_OUT; ++o) {
      std::memcpy(part + place(o, 0), sums[o], N_IN * sizeof(float));
      part[place_of_bias(o)] = bias[o];
    }
  }
};

constexpr int UNITS2 = HIDDEN2 ? HIDDEN2 : 1;

struct Weights {  // as `weights` has them
  Layer<N_SEEN, HIDDEN1> first;
  Layer<HIDDEN1, UNITS2> second;  // of zeros if HIDDEN2 is 0
  Layer<LAST_UNITS, N_LAST> last;
};

static void learn_part(const Rollout& rollout, const Scale& scale, const float* const packed, const int begin,
                       const int end, float* const part) {
  const Weights& weights = *reinterpret_cast<const Weights*>(packed);
  Gradient<N_SEEN, HIDDEN1> of_first;
  Gradient<HIDDEN1, UNITS2> of_second;
  Gradient<LAST_UNITS, N_LAST> of_last;
  float sums[N_TERMS] = {};
  float seen[TILE][padded(N_SEEN)] = {}, hidden1[TILE][padded(HIDDEN1)], hidden2[TILE][padded(UNITS2)];
  auto* const below = reinterpret_cast<float (*)[padded(LAST_UNITS)]>(HIDDEN2 > 0 ? hidden2[0] : hidden1[0]);
  float out[TILE][padded(N_LAST)];
  for (int start = begin; start < end; start += TILE) {
    const int n = wd_min(TILE, end - start);
    for (int r = 0; r < n; ++r)
      std::memcpy(seen[r], rollout.observations + rollout.row(start + r) * N_SEEN, N_SEEN * sizeof(float));
    weights.first.template forward<true>(seen, hidden1);
    if constexpr (HIDDEN2 > 0) weights.second.template forward<true>(hidden1, hidden2);
    float d_out[TILE][padded(N_LAST)] = {}, terms[TILE][N_TERMS] = {};  // rows beyond the last add zeros to each sum
    weights.last.template forward<false>(below, out);
    for (int r = 0; r < n; ++r) rollout.learn(start + r, scale, out[r], d_out[r], terms[r]);
    of_last.add(d_out, below);
    weights.last.backward(d_out, below);
    if constexpr (HIDDEN2 > 0) {
      of_second.add(hidden2, hidden1);
      weights.second.backward(hidden2, hidden1);
    }
    of_first.add(hidden1, seen);
    for (int r = 0; r < n; ++r)
      for (int term = 0; term < N_TERMS; ++term) sums[term] += terms[r][term];
  }
  of_first.store(part, [](int o, int i) { return PLACE_W1 + o * N_SEEN + i; }, [](int o) { return PLACE_B1 + o; });
  if constexpr (HIDDEN2 > 0)
    of_second.store(part, [](int o, int i) { return PLACE_W2 + o * HIDDEN1 + i; }, [](int o) { return PLACE_B2 + o; });
  of_last.store(part, [](int o, int i) { return place_of_last(o, i); }, [](int o) { return place_of_last_bias(o); });
  for (int term = 0; term < N_TERMS; ++term)
    if (is_own_term(term)) part[N_COLUMNS - N_TERMS + term] = sums[term];
}

// Layers on a CPU thread, see exact_layers.cuh. Features, units and outputs of a row are contiguous for SIMD, with zeros up
// to a multiple of the lanes.
#pragma once

#include "float_lanes.cuh"

constexpr int N_THREADS = 1;
constexpr int TILE = 64, AT_ONCE = 4;  // rows of a tile; rows, or outputs, whose sums are in registers together

#define THREAD 0
#define MEET() ((void)0)
#define OF_BLOCK

constexpr int padded(const int n) { return (n + WD_FLOATS - 1) / WD_FLOATS * WD_FLOATS; }

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

template <int N>
struct Numbers {
  float of[TILE][padded(N)];

  WD_METHOD float& at(const int row, const int i) { return of[row][i]; }
};

template <int N_IN, int N_OUT>
struct Layer {
  float by_input[N_IN][padded(N_OUT)], biases[padded(N_OUT)], by_output[N_OUT][padded(N_IN)];

  // Rows of sums of K products, which begin with `begin`, or with zeros.
  template <int K, int N>
  static void multiply(const Numbers<K>& in, const float (*const weights)[padded(N)], const float* const begin,
                       Numbers<N>& out) {
    constexpr int VECTORS = chunk(N);
    for (int first = 0; first < padded(N); first += VECTORS * WD_FLOATS)
      for (int row = 0; row < TILE; row += AT_ONCE) {
        wd_floats sums[AT_ONCE][VECTORS];
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v)
            sums[n][v] = begin == nullptr ? wd_floats{} : lanes_at(begin + first + v * WD_FLOATS);
        for (int k = 0; k < K; ++k) add_products<VECTORS>(sums, &in.of[row][k], padded(K), weights[k] + first);
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v) put(out.of[row + n] + first + v * WD_FLOATS, sums[n][v]);
      }
  }

  // out = act(biases + weights in)
  template <bool IS_HIDDEN>
  void forward(const Numbers<N_IN>& in, Numbers<N_OUT>& out) const {
    multiply<N_IN, N_OUT>(in, by_input, biases, out);
    float* const numbers = out.of[0];
    if (IS_HIDDEN) WD_INDEPENDENT for (int i = 0; i < TILE * padded(N_OUT); ++i) numbers[i] = wd_unit(numbers[i]);
  }

  // in = (weights^T d_out) slope(in), or without the slope.
  template <bool IS_HIDDEN>
  void backward(const Numbers<N_OUT>& d_out, Numbers<N_IN>& in) const {
    Numbers<N_IN> sums;
    multiply<N_OUT, N_IN>(d_out, by_output, nullptr, sums);
    float *const from = sums.of[0], *const to = in.of[0];
    WD_INDEPENDENT for (int i = 0; i < TILE * padded(N_IN); ++i)
      to[i] = IS_HIDDEN ? from[i] * wd_unit_slope(to[i]) : from[i];
  }
};

// Sums of a layer's gradient over the rows.
template <int N_IN, int N_OUT>
struct Gradient {
  float sums[padded(N_OUT)][padded(N_IN)] = {}, bias[padded(N_OUT)] = {};

  void add(const Numbers<N_OUT>& d_out, const Numbers<N_IN>& in) {
    constexpr int VECTORS = chunk(N_IN);
    for (int o = 0; o < N_OUT; o += AT_ONCE)
      for (int first = 0; first < padded(N_IN); first += VECTORS * WD_FLOATS) {
        wd_floats own[AT_ONCE][VECTORS];
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v) own[n][v] = lanes_at(sums[o + n] + first + v * WD_FLOATS);
        for (int r = 0; r < TILE; ++r) add_products<VECTORS>(own, d_out.of[r] + o, 1, in.of[r] + first);
#pragma GCC unroll 8
        for (int n = 0; n < AT_ONCE; ++n)
#pragma GCC unroll 8
          for (int v = 0; v < VECTORS; ++v) put(sums[o + n] + first + v * WD_FLOATS, own[n][v]);
      }
    for (int first = 0; first < padded(N_OUT); first += WD_FLOATS) {
      wd_floats own = lanes_at(bias + first);
      for (int r = 0; r < TILE; ++r) own += lanes_at(d_out.of[r] + first);
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

// Copies rows to a tile; `row` returns the first number of each. Rows from n on are zeros.
template <int N, class RowOf>
WD_FN void bring(Numbers<N>& to, const int n, const RowOf row) {
  for (int r = 0; r < TILE; ++r) {
    for (int i = 0; i < padded(N); ++i) to.of[r][i] = 0.f;
    if (r < n) std::memcpy(to.of[r], row(r), N * sizeof(float));
  }
}

// Copies the first n rows of a tile to the addresses that `row` returns.
template <int N, class RowOf>
WD_FN void take(const Numbers<N>& from, const int n, const RowOf row) {
  for (int r = 0; r < n; ++r) std::memcpy(row(r), from.of[r], N * sizeof(float));
}

// The weights in the fastest memory; needs a barrier first.
template <class Of>
WD_FN const Of& near(Of&, const float* const given) {
  return *reinterpret_cast<const Of*>(given);
}

// Layers on a GPU block, see exact_layers.cuh. Each feature, unit and output has the numbers of all rows next to each other.
// A thread computes a few of them for four rows at a time, or sums the gradient of a few weights. Rows of weights are
// padded, so that neighbours start in different banks.
#pragma once

constexpr int N_THREADS = THREADS;
constexpr int TILE = 32, ROW = TILE + 4;  // rows of a tile, and floats of its rows in shared memory
constexpr int OVER_ROWS = TILE / 4, OVER_UNITS = N_THREADS / OVER_ROWS;  // threads side by side, with four rows each

#define THREAD static_cast<int>(threadIdx.x)
#define MEET() __syncthreads()
#define OF_BLOCK __shared__

struct WD_ALIGN(16) Four {
  float of[4];
};

WD_FN Four four(const float* const from) { return wd_load<Four>(from); }
constexpr int up4(const int n) { return (n + 3) / 4 * 4; }

template <int N>
struct WD_ALIGN(16) Numbers {
  float of[N][ROW];

  WD_METHOD float& at(const int row, const int i) { return of[i][row]; }
};

template <int N_IN, int N_OUT>
struct WD_ALIGN(16) Layer {
  float weights[N_OUT][up4(N_IN) + 4];
  float biases[up4(N_OUT)];

  // out = act(biases + weights in)
  template <bool IS_HIDDEN>
  WD_METHOD void forward(const Numbers<N_IN>& in, Numbers<N_OUT>& out) const {
    constexpr int EACH = (N_OUT + OVER_UNITS - 1) / OVER_UNITS;
    const int rows = THREAD % OVER_ROWS * 4, first = THREAD / OVER_ROWS;
    float sums[EACH][4];
    int own[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      own[j] = wd_min(first + j * OVER_UNITS, N_OUT - 1);
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[j][r] = biases[own[j]];
    }
#pragma unroll 2
    for (int i = 0; i + 4 <= N_IN; i += 4) {
      Four numbers[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) numbers[k] = four(in.of[i + k] + rows);
#pragma unroll
      for (int j = 0; j < EACH; ++j) {
        const Four weight = four(weights[own[j]] + i);
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int r = 0; r < 4; ++r) sums[j][r] = fmaf(numbers[k].of[r], weight.of[k], sums[j][r]);
      }
    }
#pragma unroll
    for (int i = N_IN / 4 * 4; i < N_IN; ++i) {
      const Four numbers = four(in.of[i] + rows);
#pragma unroll
      for (int j = 0; j < EACH; ++j)
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[j][r] = fmaf(numbers.of[r], weights[own[j]][i], sums[j][r]);
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      if (first + j * OVER_UNITS >= N_OUT) continue;
      Four done;
#pragma unroll
      for (int r = 0; r < 4; ++r) done.of[r] = IS_HIDDEN ? wd_unit(sums[j][r]) : sums[j][r];
      wd_store(out.of[own[j]] + rows, done);
    }
  }

  // in = (weights^T d_out) slope(in), or without the slope.
  template <bool IS_HIDDEN>
  WD_METHOD void backward(const Numbers<N_OUT>& d_out, Numbers<N_IN>& in) const {
    constexpr int SIDE = N_IN % 4 == 0 && N_IN >= 4 * OVER_UNITS ? 4 : N_IN % 2 == 0 && N_IN >= 2 * OVER_UNITS ? 2 : 1;
    const int rows = THREAD % OVER_ROWS * 4;
#pragma unroll 1
    for (int first = THREAD / OVER_ROWS * SIDE; first < N_IN; first += OVER_UNITS * SIDE) {
      float sums[SIDE][4] = {};
#pragma unroll 4
      for (int o = 0; o < N_OUT; ++o) {
        const Four d = four(d_out.of[o] + rows);
#pragma unroll
        for (int k = 0; k < SIDE; ++k) {
          const float weight = weights[o][first + k];
#pragma unroll
          for (int r = 0; r < 4; ++r) sums[k][r] = fmaf(d.of[r], weight, sums[k][r]);
        }
      }
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
        Four done = four(in.of[first + k] + rows);
#pragma unroll
        for (int r = 0; r < 4; ++r) done.of[r] = IS_HIDDEN ? sums[k][r] * wd_unit_slope(done.of[r]) : sums[k][r];
        wd_store(in.of[first + k] + rows, done);
      }
    }
  }
};

// Sums of a layer's gradient over the rows, of which each thread has some.
template <int N_IN, int N_OUT>
struct Gradient {
  static constexpr int OVER_IN = N_IN >= 16 ? 16 : N_IN >= 8 ? 8 : N_IN >= 4 ? 4 : 1, OVER_OUT = N_THREADS / OVER_IN;
  static constexpr int EACH_IN = (N_IN + OVER_IN - 1) / OVER_IN, EACH_OUT = (N_OUT + OVER_OUT - 1) / OVER_OUT;
  static_assert(N_OUT <= N_THREADS, "a thread has the bias of one output");
  float sums[EACH_OUT][EACH_IN] = {};
  float bias = 0.f;

  WD_METHOD static int input(const int k) { return THREAD % OVER_IN + k * OVER_IN; }
  WD_METHOD static int output(const int j) { return THREAD / OVER_IN + j * OVER_OUT; }

  WD_METHOD void add(const Numbers<N_OUT>& d_out, const Numbers<N_IN>& in) {
    if (output(0) < N_OUT) {
#pragma unroll 2
      for (int r = 0; r < TILE; r += 4) {
        Four d[EACH_OUT], x[EACH_IN];
#pragma unroll
        for (int j = 0; j < EACH_OUT; ++j) d[j] = four(d_out.of[wd_min(output(j), N_OUT - 1)] + r);
#pragma unroll
        for (int k = 0; k < EACH_IN; ++k) x[k] = four(in.of[wd_min(input(k), N_IN - 1)] + r);
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
          for (int j = 0; j < EACH_OUT; ++j)
#pragma unroll
            for (int k = 0; k < EACH_IN; ++k) sums[j][k] = fmaf(d[j].of[s], x[k].of[s], sums[j][k]);
      }
    }
    if (THREAD < N_OUT) {
#pragma unroll
      for (int r = 0; r < TILE; r += 4) {
        const Four d = four(d_out.of[THREAD] + r);
#pragma unroll
        for (int s = 0; s < 4; ++s) bias += d.of[s];
      }
    }
  }

  template <class Place, class PlaceOfBias>
  WD_METHOD void store(float* const part, const Place place, const PlaceOfBias place_of_bias) const {
#pragma unroll
    for (int j = 0; j < EACH_OUT; ++j)
#pragma unroll
      for (int k = 0; k < EACH_IN; ++k)
        if (output(j) < N_OUT && input(k) < N_IN) part[place(output(j), input(k))] = sums[j][k];
    if (THREAD < N_OUT) part[place_of_bias(THREAD)] = bias;
  }
};

// Copies rows to a tile; `row` returns the first number of each. Rows from n on are zeros.
template <int N, class RowOf>
WD_FN void bring(Numbers<N>& to, const int n, const RowOf row) {
  for (int i = THREAD; i < TILE * N; i += N_THREADS) to.at(i / N, i % N) = i / N < n ? row(i / N)[i % N] : 0.f;
}

// Copies the first n rows of a tile to the addresses that `row` returns.
template <int N, class RowOf>
WD_FN void take(const Numbers<N>& from, const int n, const RowOf row) {
  for (int i = THREAD; i < n * N; i += N_THREADS) row(i / N)[i % N] = from.of[i % N][i / N];
}

// The weights in the fastest memory; needs a barrier first.
template <class Of>
WD_FN const Of& near(Of& room, const float* const given) {
  for (int i = 4 * THREAD; i < static_cast<int>(sizeof(Of) / sizeof(float)); i += 4 * N_THREADS)
    wd_store(reinterpret_cast<float*>(&room) + i, four(given + i));
  return room;
}

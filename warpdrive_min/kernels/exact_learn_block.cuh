// A block that learns from a part of the rows, on the GPU. See exact_learn.cu.
//
// Numbers of a tile lie row by row for each feature, unit and output. A thread computes a few of them for four rows at
// a time, or adds up the gradient of a few weights. Rows of weights are longer than they must be: neighbours begin in
// other banks.
#pragma once

constexpr int BLOCK = 128;                 // threads
constexpr int TILE = 32, ROW = TILE + 4;   // rows of a tile, and floats of its rows in shared memory
constexpr int OVER_ROWS = TILE / 4, OVER_UNITS = BLOCK / OVER_ROWS;  // threads side by side, with four rows each

struct WD_ALIGN(16) Four {
  float of[4];
};

WD_FN Four four(const float* const from) { return wd_load<Four>(from); }
constexpr int up4(const int n) { return (n + 3) / 4 * 4; }
constexpr int weight_row(const int n_in) { return up4(n_in) + 4; }

WD_FN int lane_of_rows() { return static_cast<int>(threadIdx.x) % OVER_ROWS * 4; }
WD_FN int lane_of_units() { return static_cast<int>(threadIdx.x) / OVER_ROWS; }

template <int N_IN, int N_OUT>
struct Layer {
  static constexpr int WIDTH = weight_row(N_IN);
  float weights[N_OUT][WIDTH];
  float biases[up4(N_OUT)];

  // out = act(biases + weights in)
  template <bool IS_HIDDEN>
  WD_METHOD void forward(const float (*const in)[ROW], float (*const out)[ROW]) const {
    constexpr int EACH = (N_OUT + OVER_UNITS - 1) / OVER_UNITS;
    const int rows = lane_of_rows(), first = lane_of_units();
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
      for (int k = 0; k < 4; ++k) numbers[k] = four(in[i + k] + rows);
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
      const Four numbers = four(in[i] + rows);
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
      for (int r = 0; r < 4; ++r) done.of[r] = IS_HIDDEN ? unit(sums[j][r]) : sums[j][r];
      wd_store(out[own[j]] + rows, done);
    }
  }

  // in = (weights^T d_out) slope(in)
  WD_METHOD void backward(const float (*const d_out)[ROW], float (*const in)[ROW]) const {
    constexpr int SIDE = N_IN % 4 == 0 && N_IN >= 4 * OVER_UNITS ? 4 : N_IN % 2 == 0 && N_IN >= 2 * OVER_UNITS ? 2 : 1;
    const int rows = lane_of_rows();
#pragma unroll 1
    for (int first = lane_of_units() * SIDE; first < N_IN; first += OVER_UNITS * SIDE) {
      float sums[SIDE][4] = {};
#pragma unroll 4
      for (int o = 0; o < N_OUT; ++o) {
        const Four d = four(d_out[o] + rows);
#pragma unroll
        for (int k = 0; k < SIDE; ++k) {
          const float weight = weights[o][first + k];
#pragma unroll
          for (int r = 0; r < 4; ++r) sums[k][r] = fmaf(d.of[r], weight, sums[k][r]);
        }
      }
#pragma unroll
      for (int k = 0; k < SIDE; ++k) {
        const Four y = four(in[first + k] + rows);
        Four done;
#pragma unroll
        for (int r = 0; r < 4; ++r) done.of[r] = sums[k][r] * unit_slope(y.of[r]);
        wd_store(in[first + k] + rows, done);
      }
    }
  }
};

// Sums of a layer's gradient over the rows, of which each thread has some.
template <int N_IN, int N_OUT>
struct Gradient {
  static constexpr int OVER_IN = N_IN >= 16 ? 16 : N_IN >= 8 ? 8 : N_IN >= 4 ? 4 : 1, OVER_OUT = BLOCK / OVER_IN;
  static constexpr int EACH_IN = (N_IN + OVER_IN - 1) / OVER_IN, EACH_OUT = (N_OUT + OVER_OUT - 1) / OVER_OUT;
  static_assert(N_OUT <= BLOCK, "a thread has the bias of one output");
  float sums[EACH_OUT][EACH_IN] = {};
  float bias = 0.f;

  WD_METHOD static int input(const int k) { return static_cast<int>(threadIdx.x) % OVER_IN + k * OVER_IN; }
  WD_METHOD static int output(const int j) { return static_cast<int>(threadIdx.x) / OVER_IN + j * OVER_OUT; }

  WD_METHOD void add(const float (*const d_out)[ROW], const float (*const in)[ROW]) {
    if (output(0) < N_OUT) {
#pragma unroll 2
      for (int r = 0; r < TILE; r += 4) {
        Four d[EACH_OUT], x[EACH_IN];
#pragma unroll
        for (int j = 0; j < EACH_OUT; ++j) d[j] = four(d_out[wd_min(output(j), N_OUT - 1)] + r);
#pragma unroll
        for (int k = 0; k < EACH_IN; ++k) x[k] = four(in[wd_min(input(k), N_IN - 1)] + r);
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
          for (int j = 0; j < EACH_OUT; ++j)
#pragma unroll
            for (int k = 0; k < EACH_IN; ++k) sums[j][k] = fmaf(d[j].of[s], x[k].of[s], sums[j][k]);
      }
    }
    if (const int o = static_cast<int>(threadIdx.x); o < N_OUT) {
#pragma unroll
      for (int r = 0; r < TILE; r += 4) {
        const Four d = four(d_out[o] + r);
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
    if (const int o = static_cast<int>(threadIdx.x); o < N_OUT) part[place_of_bias(o)] = bias;
  }
};

constexpr int UNITS2 = HIDDEN2 ? HIDDEN2 : 1;

struct WD_ALIGN(16) Weights {  // as `weights` has them
  Layer<N_SEEN, HIDDEN1> first;
  Layer<HIDDEN1, UNITS2> second;  // of zeros if HIDDEN2 is 0
  Layer<LAST_UNITS, N_LAST> last;
};

struct WD_ALIGN(16) Tile {
  float seen[N_SEEN][ROW], hidden1[HIDDEN1][ROW], hidden2[UNITS2][ROW], out[N_LAST][ROW], terms[N_TERMS][ROW];
};

WD_FN void learn_part(const Rollout& rollout, const Scale& scale, const float* const packed, const int begin,
                      const int end, float* const part) {
  __shared__ Weights weights;
  __shared__ Tile tile;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 4 * thread; i < static_cast<int>(sizeof(Weights) / sizeof(float)); i += 4 * BLOCK)
    wd_store(reinterpret_cast<float*>(&weights) + i, four(packed + i));
  Gradient<N_SEEN, HIDDEN1> of_first;
  Gradient<HIDDEN1, UNITS2> of_second;
  Gradient<LAST_UNITS, N_LAST> of_last;
  float term = 0.f;  // a thread's
  auto* const below = HIDDEN2 ? tile.hidden2 : tile.hidden1;
#pragma unroll 1
  for (int start = begin; start < end; start += TILE) {
    const int n = wd_min(TILE, end - start);
    for (int i = thread; i < TILE * N_SEEN; i += BLOCK) {
      const int r = i / N_SEEN, k = i - r * N_SEEN;
      tile.seen[k][r] = r < n ? rollout.observations[rollout.row(start + r) * N_SEEN + k] : 0.f;
    }
    __syncthreads();
    weights.first.template forward<true>(tile.seen, tile.hidden1);
    __syncthreads();
    if constexpr (HIDDEN2 > 0) {
      weights.second.template forward<true>(tile.hidden1, tile.hidden2);
      __syncthreads();
    }
    weights.last.template forward<false>(below, tile.out);
    __syncthreads();
    if (thread < TILE) {  // rows beyond the last one add zeros to each sum
      float out[N_LAST], d_out[N_LAST] = {}, terms[N_TERMS] = {};
#pragma unroll
      for (int o = 0; o < N_LAST; ++o) out[o] = tile.out[o][thread];
      if (thread < n) rollout.learn(start + thread, scale, out, d_out, terms);
#pragma unroll
      for (int o = 0; o < N_LAST; ++o) tile.out[o][thread] = d_out[o];
#pragma unroll
      for (int t = 0; t < N_TERMS; ++t) tile.terms[t][thread] = terms[t];
    }
    __syncthreads();
    if (thread < N_TERMS)
      for (int r = 0; r < TILE; ++r) term += tile.terms[thread][r];
    of_last.add(tile.out, below);
    __syncthreads();
    weights.last.backward(tile.out, below);
    __syncthreads();
    if constexpr (HIDDEN2 > 0) {
      of_second.add(tile.hidden2, tile.hidden1);
      __syncthreads();
      weights.second.backward(tile.hidden2, tile.hidden1);
      __syncthreads();
    }
    of_first.add(tile.hidden1, tile.seen);
    __syncthreads();
  }
  of_first.store(part, [](int o, int i) { return PLACE_W1 + o * N_SEEN + i; }, [](int o) { return PLACE_B1 + o; });
  if constexpr (HIDDEN2 > 0)
    of_second.store(part, [](int o, int i) { return PLACE_W2 + o * HIDDEN1 + i; }, [](int o) { return PLACE_B2 + o; });
  of_last.store(part, [](int o, int i) { return place_of_last(o, i); }, [](int o) { return place_of_last_bias(o); });
  if (thread < N_TERMS && is_own_term(thread)) part[N_COLUMNS - N_TERMS + thread] = term;
}

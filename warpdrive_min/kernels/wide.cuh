// Both passes of a perceptron with two hidden layers of 129 to 256 units: its layout on the chip, and its weights.
//
// A block has three groups of four warps. The first two take 64 rows each through everything; a thread of the third one
// copies weights. A pass multiplies rows by its first weights, 64 units at a time, and these at once by its second weights,
// whose 256 sums of a row stay in registers. Sums of one product are used unchanged as the left factor of the next one:
// columns of weights are in an order such that a thread has 16 bytes of consecutive units of a row.
//
// Constants that come before this header: N_SEEN numbers of a row; LAYER1 and LAYER2, units of the pass's layers; KEPT_SEEN,
// N_SEEN as kept; N_LAST outputs of a third product, or 0; IS_BACKWARD, if weights are transposed and rows wait in shared
// memory; IS_TANH, else relu; BF16; STAGES of 16 rows of the second weights in shared memory.
#pragma once

constexpr bool TF32 = true;  // activations as rough as products

#include "copies.cuh"
#include "matrix_units.cuh"
#include "warp_groups.cuh"

constexpr int WIDTH = 256, CHUNK = 64, N_CHUNKS = WIDTH / CHUNK, TILE = 128, N_WARPS = 8, LAST = N_LAST ? 48 : 0;
constexpr int K1 = wd_up(N_SEEN, STEP), STEPS_1 = K1 / STEP, STEPS_OF_CHUNK = CHUNK / STEP;
constexpr int SLICE = 16, SLICE_BYTES = WIDTH * SLICE * BYTES, SLICES = WIDTH / SLICE, SLICES_OF_CHUNK = CHUNK / SLICE;
constexpr int BYTES_1 = WIDTH * K1 * BYTES, BYTES_2 = WIDTH * WIDTH * BYTES, BYTES_3 = LAST * WIDTH * BYTES;
constexpr bool STAYS = STAGES >= SLICES;  // the second weights stay in shared memory
constexpr int TOGETHER = PER_16, GROUPS = TOGETHER / 2;  // units of 16 bytes, and groups of 8 columns that make them
constexpr int WORDS = BF16 ? 8 : 4;  // of a thread's numbers for a step, as float32
static_assert(STAGES > 1, "a product waits for a stage while it uses one");
constexpr int BYTES_X = IS_BACKWARD ? STEPS_1 * WORDS * 4 * 2 * 128 : 0;

// ---- orders

// Unit of a sum's column.
WD_FN constexpr int unit_of(const int column, const int groups) {
  return column / 8 / groups * 8 * groups + column % 8 / 2 * 2 * groups + column / 8 % groups * 2 + column % 2;
}
WD_FN constexpr int hidden_unit(const int k) { return unit_of(column_of(k), GROUPS); }
// Number of a row at k: 4 consecutive ones per thread and 16, 2 in a last half.
WD_FN constexpr int seen_at(const int k) { return unit_of(column_of(k), k < K1 / 16 * 16 ? 2 : 1); }

// ---- weights

// Writes number i of the weights, as they lie in shared memory, from w1 (LAYER1, N_SEEN), w2 (LAYER2, LAYER1) and w3
// (N_LAST, LAYER2), or from the transposes of the first two.
WD_FN void order_weight(const int i, const float* const w1, const float* const w2, const float* const w3, Byte* to) {
  constexpr int first = WIDTH * K1, second = WIDTH * WIDTH;
  float value = 0.f;
  if (i < first) {
    const int unit = unit_of(i / K1, GROUPS), k = i % K1, seen = seen_at(k);
    if (unit < LAYER1 && seen < N_SEEN) value = w1[IS_BACKWARD ? seen * LAYER1 + unit : unit * N_SEEN + seen];
    to += place(i / K1, k, WIDTH);
  } else if (i < first + second) {
    const int n = (i - first) / WIDTH, k = (i - first) % WIDTH, unit = unit_of(n, GROUPS), from = hidden_unit(k);
    if (unit < LAYER2 && from < LAYER1) value = w2[IS_BACKWARD ? from * LAYER2 + unit : unit * LAYER1 + from];
    to += BYTES_1 + place(n, k, WIDTH);
  } else {
    const int n = (i - first - second) / WIDTH, k = (i - first - second) % WIDTH, from = hidden_unit(k);
    if (n < N_LAST && from < LAYER2) value = w3[n * LAYER2 + from];
    to += BYTES_1 + BYTES_2 + place(n, k, LAST);
  }
  if (BF16)
    *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(two(value, 0.f));
  else
    *reinterpret_cast<float*>(to) = wd_round_tf32(value);
}

// Stages of the second weights, in turn.
struct Turn {
  Word stage = 0, phase = 0;
  WD_METHOD void next() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
};
struct Barriers {  // of stages with weights, of stages to fill, and of weights that stay
  Word full, empty, stay;
  WD_METHOD explicit Barriers(const Word at) : full(at), empty(at + 8 * STAGES), stay(at + 16 * STAGES) {}
  WD_METHOD void make() const {
    for (int i = 0; i < STAGES; ++i) make_barrier(full + 8 * i, 1), make_barrier(empty + 8 * i, N_WARPS);
    make_barrier(stay, 1);
    publish_barriers();
  }
};
constexpr int BARRIER_BYTES = (2 * STAGES + 1) * 8;

// Copies all weights of a block's tiles; for one thread.
WD_FN void copy_weights(const Byte* const weights, const Word w1, const Word w2, const Word w3, const Barriers& barriers,
                        const int n_tiles) {
  expect_bytes(barriers.stay, BYTES_1 + BYTES_3);
  copy_in_bulk(w1, weights, BYTES_1, barriers.stay);
  if (LAST) copy_in_bulk(w3, weights + BYTES_1 + BYTES_2, BYTES_3, barriers.stay);
  Turn at;
  for (int tile = 0; tile < (STAYS ? wd_min(n_tiles, 1) : n_tiles); ++tile)
    for (int slice = 0; slice < SLICES; ++slice, at.next()) {
      await(barriers.empty + 8 * at.stage, at.phase ^ 1);
      expect_bytes(barriers.full + 8 * at.stage, SLICE_BYTES);
      copy_in_bulk(w2 + at.stage * SLICE_BYTES, weights + BYTES_1 + slice * SLICE_BYTES, SLICE_BYTES,
                   barriers.full + 8 * at.stage);
    }
}

// Adds the product with 64 rows of the second weights.
WD_FN void multiply_second(float (&sum)[WIDTH / 2], const Word (&left)[STEPS_OF_CHUNK][4], const Long w2,
                           const Barriers& barriers, Turn& at) {
  constexpr int steps = SLICE / STEP;
  const auto release = [&](const Word stage) {
    if (!STAYS && threadIdx.x % 32 == 0) arrive(barriers.empty + 8 * stage);
  };
  Word last = 0;
  begin_products();
#pragma unroll
  for (int slice = 0; slice < SLICES_OF_CHUNK; ++slice) {
    await(barriers.full + 8 * at.stage, STAYS ? 0 : at.phase);
#pragma unroll
    for (int step = 0; step < steps; ++step)
      multiply(sum, left[slice * steps + step], w2 + at.stage * (SLICE_BYTES / 16) + place(0, step * STEP, WIDTH) / 16);
    end_products();
    if (slice) {
      await_products<1>();
      release(last);
    }
    last = at.stage;
    at.next();
  }
  await_products<0>();
  release(last);
}

// The product with 64 columns of the first weights, from a chunk's on; not awaited.
WD_FN void multiply_first(float (&sum)[CHUNK / 2], const Word (&left)[STEPS_1][4], const Long w1, const int chunk) {
  begin_products();
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s)
    multiply(sum, left[s], w1 + place(chunk * CHUNK, 0, WIDTH) / 16 + place(0, s * STEP, WIDTH) / 16);
  end_products();
}

// ---- rows as a left factor

// Where rows lie in an array: those of `agents`, n_own of each n_all; null: all.
struct Places {
  const int* agents;
  int n_own, n_all;
  WD_METHOD long long operator()(const long long row) const {
    if (!agents) return row;
    const int at = static_cast<int>(row);
    return static_cast<long long>(at / n_own) * n_all + agents[at % n_own];
  }
};
// Rows g and g + 8 of a warp's 16.
struct Rows {
  const float* x[2];
  bool is_there[2];
  WD_METHOD Rows(const float* const all, const long long row, const int n_rows, const int t)
      : Rows(all, row, n_rows, t, row, row + 8) {}
  WD_METHOD Rows(const float* const all, const long long row, const int n_rows, const int t, const long long first,
                 const long long second)
      : x{all + first * N_SEEN + 4 * t, all + second * N_SEEN + 4 * t}, is_there{row < n_rows, row + 8 < n_rows} {}
};
struct Source {
  const float* at;
  bool is_there;
};
WD_FN Source source(const Rows& rows, const int s, const int j, const int t) {
  const int i = BF16 ? j / 2 : j, r = i % 2;
  bool is_there = rows.is_there[r];
  int seen;
  if (!BF16 && s == STEPS_1 / 2 * 2) {  // a last half
    seen = 8 * s + i / 2 - 2 * t;
    if (8 * s + 8 > N_SEEN) is_there = is_there && seen + 4 * t < N_SEEN;
  } else {
    seen = BF16 ? 16 * s + i / 2 * 2 + j % 2 : s / 2 * 16 + s % 2 * 2 + i / 2;
    if (seen + 12 >= N_SEEN) is_there = is_there && seen + 4 * t < N_SEEN;
  }
  return {rows.x[r] + seen, is_there};
}
WD_FN void set_words(Word (&left)[4], const Word (&words)[WORDS]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    left[i] = BF16 ? two(__uint_as_float(words[2 * i % WORDS]), __uint_as_float(words[(2 * i + 1) % WORDS])) : words[i];
}
WD_FN void load_rows(Word (&left)[STEPS_1][4], const Rows& rows, const int t) {
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s) {
    Word words[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; ++j) {
      const Source from = source(rows, s, j, t);
      words[j] = load_word(from.at, from.is_there);
    }
    set_words(left[s], words);
  }
}
// The same in two parts, through the thread's own places in shared memory.
WD_FN Word place_of_step(const Word area, const int s) { return area + s * WORDS * 1024 + threadIdx.x * 16; }
WD_FN void begin_rows(const Word area, const Rows& rows, const int t) {
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s)
#pragma unroll
    for (int j = 0; j < WORDS; ++j) {
      const Source from = source(rows, s, j, t);
      copy4(place_of_step(area, s) + j / 4 * 4096 + j % 4 * 4, from.at, from.is_there);
    }
}
WD_FN void take_rows(Word (&left)[STEPS_1][4], const Word area) {
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s) {
    Word words[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; j += 4) {
      const float4 v = shared4(place_of_step(area, s) + j / 4 * 4096);
      words[j] = __float_as_uint(v.x), words[j + 1] = __float_as_uint(v.y);
      words[j + 2] = __float_as_uint(v.z), words[j + 3] = __float_as_uint(v.w);
    }
    set_words(left[s], words);
  }
}
// Stores rows with KEPT_SEEN numbers, to memory or to shared memory; `to` is row g's.
template <typename To>
WD_FN void store_rows(const To to, const Word (&left)[STEPS_1][4], const bool (&has)[2], const int t) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!has[r]) continue;
    const To row = to + r * 8 * KEPT_SEEN * BYTES;
#pragma unroll
    for (int s = 0; s < STEPS_1; s += BF16 ? 1 : 2)
      if (BF16 || s + 1 < STEPS_1) {
        const int first = (BF16 ? 16 : 8) * s + 4 * t;
        if (first >= KEPT_SEEN) continue;
        const Word(&next)[4] = left[wd_min(s + 1, STEPS_1 - 1)];
        if constexpr (BF16)
          store2(row + first * BYTES, left[s][r], left[s][2 + r]);
        else
          store4(row + first * BYTES, left[s][r], left[s][2 + r], next[r], next[2 + r]);
      } else {
        store2(row + (8 * s + 2 * t) * BYTES, left[s][r], left[s][2 + r]);
      }
  }
}

// ---- units

// 64 of a sum's columns, from FROM on, as a left factor.
template <int N, int FROM>
WD_FN void as_left(Word (&left)[STEPS_OF_CHUNK][4], const float (&sum)[N]) {
#pragma unroll
  for (int s = 0; s < STEPS_OF_CHUNK; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = FROM / 2 + (BF16 ? 8 * s + i / 2 * 4 + i % 2 * 2 : 4 * s + i % 2 * 2 + i / 2);
      left[s][i] = BF16 ? two(sum[at], sum[wd_min(at + 1, N - 1)]) : __float_as_uint(sum[at]);
    }
}
// Stores them to rows of 256 units; `to` is at row g and the chunk's first unit.
WD_FN void store_chunk(Byte* const to, const Word (&left)[STEPS_OF_CHUNK][4], const bool (&has)[2], const int t) {
#pragma unroll
  for (int s = 0; s < STEPS_OF_CHUNK; s += 2)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (has[r])
        store4(to + (r * 8 * WIDTH + s / 2 * 8 * GROUPS + t * TOGETHER) * BYTES, left[s][r], left[s][2 + r], left[s + 1][r],
               left[s + 1][2 + r]);
}

template <int N>
struct Number {
  static constexpr int value = N;
};
// Calls a function with the number of each chunk, a constant.
template <typename Function>
WD_FN void for_each_chunk(const Function& function) {
  static_assert(N_CHUNKS == 4);
  function(Number<0>()), function(Number<1>()), function(Number<2>()), function(Number<3>());
}

// Tiles of a block.
struct Tiles {
  int n;
  WD_METHOD explicit Tiles(const int n_rows) {
    const int all = (n_rows + TILE - 1) / TILE, first = blockIdx.x, stride = gridDim.x;
    n = first < all ? (all - first + stride - 1) / stride : 0;
  }
  WD_METHOD long long row(const int turn, const int of_tile) const {
    return (blockIdx.x + static_cast<long long>(turn) * gridDim.x) * TILE + of_tile;
  }
};

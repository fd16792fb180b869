// Backward pass of a perceptron with two wide hidden layers; see `wide.cuh`. Its rows are the gradients of the outputs, its
// first weights those of the outputs, and its layers the second and the first hidden one.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "wide.cuh"

constexpr int HELD = 2;                             // chunks of a group's kept units in shared memory
constexpr int HELD_BYTES = TILE / 2 * CHUNK * BYTES;  // of a group's chunk
constexpr int PIECES = CHUNK / STEP;                // of 16 bytes of a thread in a chunk: (units, row g or g + 8)
constexpr int N_SUMS = 2 * WIDTH + K1;
// Where a block's numbers lie in shared memory.
constexpr int AT_W1 = STAGES * SLICE_BYTES, AT_HELD = AT_W1 + BYTES_1, AT_X = AT_HELD + HELD * 2 * HELD_BYTES;
constexpr int AT_SUMS = AT_X + BYTES_X, AT_BARRIERS = AT_SUMS + N_WARPS * N_SUMS * 4;
static_assert(SHARED_BYTES == AT_BARRIERS + BARRIER_BYTES, "as computed in Python");
static_assert(AT_SUMS % 16 == 0 && N_SUMS % 4 == 0, "copies in bulk");

extern __shared__ __align__(1024) Byte room[];

WD_KERNEL(order)(const float* w3, const float* w2, unsigned char* weights) {
  constexpr int n = WIDTH * (K1 + WIDTH);
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
    order_weight(i, w3, w2, nullptr, weights);
}

WD_FN float slope_of(const float y) { return IS_TANH ? 1.f - y * y : y <= 0.f ? 0.f : 1.f; }

// Multiplies 64 columns of a sum, from FROM on, by the slopes of units in the thread's places.
template <int N, int FROM>
WD_FN void times_slopes(float (&sum)[N], const Word at) {
#pragma unroll
  for (int q = 0; q < PIECES / 2; ++q)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float4 v = shared4(at + (2 * q + r) * 2048);
      const float given[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) {
        const Word both = __float_as_uint(given[i / 2 % 4]);
        const float y = BF16 ? (i % 2 ? of_high(both) : of_low(both)) : given[i % 4];
        sum[FROM / 2 + 4 * (q * GROUPS + i / 2) + 2 * r + i % 2] *= slope_of(y);
      }
    }
}
// Sums 8 values over the 8 lanes of a column; lane 4 g + t gets the g-th one's.
WD_FN float over_lanes(const float (&v)[8], const int lane) {
  float half[4], quarter[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float keep = lane & 16 ? v[4 + i] : v[i], send = lane & 16 ? v[i] : v[4 + i];
    half[i] = keep + __shfl_xor_sync(~0u, send, 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float keep = lane & 8 ? half[2 + i] : half[i], send = lane & 8 ? half[i] : half[2 + i];
    quarter[i] = keep + __shfl_xor_sync(~0u, send, 8);
  }
  const float keep = lane & 4 ? quarter[1] : quarter[0], send = lane & 4 ? quarter[0] : quarter[1];
  return keep + __shfl_xor_sync(~0u, send, 4);
}
// Adds a chunk's sums over rows to the warp's.
template <int N, int FROM>
WD_FN void add_over_rows(float* const sums, const float (&z)[N], const int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < CHUNK / 32; ++m) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = FROM / 2 + 4 * (4 * m + i / 2) + i % 2;
      v[i] = z[at] + z[at + 2];
    }
    sums[32 * m + (BF16 ? t * 8 + g : g / 4 * 16 + t * 4 + g % 4)] += over_lanes(v, lane);
  }
}
// The same of the rows themselves.
WD_FN void add_over_rows(float* const sums, const Word (&left)[STEPS_1][4], const int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s) {
    float v[8] = {};
#pragma unroll
    for (int i = 0; i < WORDS / 2; ++i) {
      const Word first = left[s][BF16 ? i / 2 * 2 : 2 * i % 4], second = left[s][BF16 ? i / 2 * 2 + 1 : (2 * i + 1) % 4];
      if (BF16)
        v[i] = i % 2 ? of_high(first) + of_high(second) : of_low(first) + of_low(second);
      else
        v[i] = __uint_as_float(first) + __uint_as_float(second);
    }
    const float total = over_lanes(v, lane);
    const int column = BF16                   ? 16 * s + 4 * t + g
                       : s < STEPS_1 / 2 * 2 ? s / 2 * 16 + 4 * t + s % 2 * 2 + g
                                              : 8 * s + 2 * t + g;
    if (g < WORDS / 2) sums[column] += total;
  }
}

// From slope (n_rows, N_SEEN), of the outputs, to those before each activation, with n_kept rows: slope_3 (KEPT_SEEN),
// slope_2 and slope_1 (256). `sums` (8 blocks, N_SUMS) are over each warp's rows, of slopes 1, 2 and 3. Each block has rows.
WD_KERNEL(backward)(const float* slope, const unsigned char* weights, const unsigned char* kept_1,
                    const unsigned char* kept_2, unsigned char* slope_3, unsigned char* slope_2, unsigned char* slope_1,
                    float* sums, int n_rows, int n_kept) {
  const Word base = shared_address(room);
  const Barriers barriers(base + AT_BARRIERS);
  const Tiles tiles(n_kept);
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) barriers.make();
  float* const all_sums = reinterpret_cast<float*>(room + AT_SUMS);
  for (int i = threadIdx.x; i < N_WARPS * N_SUMS; i += THREADS) all_sums[i] = 0.f;
  __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 256) copy_weights(weights, base + AT_W1, base, 0, barriers, tiles.n);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int lane = threadIdx.x % 32, t = lane % 4, of_tile = threadIdx.x / 32 * 16 + lane / 4;
  float* const own_sums = all_sums + threadIdx.x / 32 * N_SUMS;
  const Long w1 = described(base + AT_W1, WIDTH), w2 = described(base, WIDTH);
  const Word held = base + AT_HELD + group * HELD_BYTES + threadIdx.x % 128 * 16;  // the thread's own places
  const Word at_x = base + AT_X;
  Turn at;
  // Kept units come HELD chunks ahead: 4 chunks of the second layer, then 4 of the first, of each tile.
  int n_brought = 0, brings = 0, takes = 0;
  const auto bring = [&] {
    const int turn = n_brought / 8, chunk = n_brought % 8;
    const long long row = tiles.row(turn, of_tile);
    const Byte* const from = (chunk < 4 ? kept_2 : kept_1) + (row * WIDTH + chunk % 4 * CHUNK + t * TOGETHER) * BYTES;
    if (turn < tiles.n) {
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
        copy16(held + brings * 2 * HELD_BYTES + i * 2048, from + (i % 2 * 8 * WIDTH + i / 2 * 8 * GROUPS) * BYTES,
               row + i % 2 * 8 < n_kept);
    }
    wd_end_copies();
    ++n_brought;
    if (++brings == HELD) brings = 0;
  };
  const auto next_held = [&] {  // which has arrived
    static_assert(HELD == 2);
    wd_await_all_but_last();
    const Word place = held + takes * 2 * HELD_BYTES;
    if (++takes == HELD) takes = 0;
    return place;
  };
  begin_rows(at_x, Rows(slope, tiles.row(0, of_tile), n_rows, t), t);
  for (int i = 0; i < HELD; ++i) bring();
  asm volatile("cp.async.wait_all;" ::: "memory");
  await(barriers.stay, 0);
  for (int turn = 0; turn < tiles.n; ++turn) {
    const long long row = tiles.row(turn, of_tile);
    const bool is_kept[2] = {row < n_kept, row + 8 < n_kept};
    float z2[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) z2[i] = 0.f;
#pragma unroll 1
    for (int chunk = 0; chunk < N_CHUNKS; ++chunk) {
      float z1[CHUNK / 2];
      Word seen[STEPS_1][4], d1[STEPS_OF_CHUNK][4];
      take_rows(seen, at_x);  // brought with a chunk of the tile before, which this thread has awaited
#pragma unroll
      for (int i = 0; i < CHUNK / 2; ++i) z1[i] = 0.f;
      multiply_first(z1, seen, w1, chunk);
      if (chunk == 0) {
        store_rows(slope_3 + row * KEPT_SEEN * BYTES, seen, is_kept, t);
        add_over_rows(own_sums + 2 * WIDTH, seen, lane);
      }
      await_products<0>();
      times_slopes<CHUNK / 2, 0>(z1, next_held());
      if (chunk == N_CHUNKS - 1) begin_rows(at_x, Rows(slope, tiles.row(turn + 1, of_tile), n_rows, t), t);
      bring();
      add_over_rows<CHUNK / 2, 0>(own_sums + WIDTH + chunk * CHUNK, z1, lane);
      as_left<CHUNK / 2, 0>(d1, z1);
      store_chunk(slope_2 + (row * WIDTH + chunk * CHUNK) * BYTES, d1, is_kept, t);
      multiply_second(z2, d1, w2, barriers, at);
    }
    for_each_chunk([&](const auto number) {
      constexpr int first = decltype(number)::value * CHUNK;
      Word d2[STEPS_OF_CHUNK][4];
      times_slopes<WIDTH / 2, first>(z2, next_held());
      bring();
      add_over_rows<WIDTH / 2, first>(own_sums + first, z2, lane);
      as_left<WIDTH / 2, first>(d2, z2);
      store_chunk(slope_1 + (row * WIDTH + first) * BYTES, d2, is_kept, t);
    });
    if (turn + 1 == tiles.n) {  // here, as ptxas ignores setmaxnreg if anything follows the loop
      end_area();
      if (lane == 0)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                     "cp.async.bulk.commit_group;\n"
                     "cp.async.bulk.wait_group 0;" ::"l"(sums + (blockIdx.x * N_WARPS + threadIdx.x / 32) * N_SUMS),
                     "r"(shared_address(own_sums)), "n"(N_SUMS * 4)
                     : "memory");
    }
  }
}

// Forward pass of a perceptron with two wide hidden layers; see `wide.cuh`.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "wide.cuh"

// Where a block's numbers lie in shared memory.
constexpr int KEPT_BYTES = 16 * KEPT_SEEN * BYTES, OUT_BYTES = 16 * N_LAST * 4;  // of a warp's rows
constexpr int AREA = wd_up(KEPT_BYTES < OUT_BYTES ? OUT_BYTES : KEPT_BYTES, 128);
constexpr int AT_W1 = STAGES * SLICE_BYTES, AT_W3 = AT_W1 + BYTES_1, AT_AREAS = AT_W3 + BYTES_3;
constexpr int AT_BIASES = AT_AREAS + N_WARPS * AREA;
constexpr int AT_BARRIERS = AT_BIASES + (2 * WIDTH + LAST) * 4;
static_assert(SHARED_BYTES == AT_BARRIERS + BARRIER_BYTES, "as computed in Python");

extern __shared__ __align__(1024) Byte room[];

WD_KERNEL(order)(const float* w1, const float* w2, const float* w3, unsigned char* weights) {
  constexpr int n = WIDTH * (K1 + WIDTH + LAST);
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) order_weight(i, w1, w2, w3, weights);
}

// Fills a sum of N columns with biases of units in shared memory.
template <int N>
WD_FN void fill(float (&sum)[N / 2], const Word biases, const int t) {
#pragma unroll
  for (int q = 0; q < N / (8 * GROUPS); ++q)
#pragma unroll
    for (int i = 0; i < GROUPS / 2; ++i) {
      const float4 v = shared4(biases + (q * 8 * GROUPS + t * TOGETHER + 4 * i) * 4);
      float* const to = sum + 4 * (q * GROUPS + 2 * i);
      to[0] = to[2] = v.x, to[1] = to[3] = v.y, to[4] = to[6] = v.z, to[5] = to[7] = v.w;
    }
}
WD_FN float activated(const float z) {
  float y;
  if (IS_TANH)
    y = wd_rough_tanh(z);
  else
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(z));
  return y;
}
// Brings about the next 64 rows of a group into the cache, unless they lie far apart; for one thread.
WD_FN void prefetch(const float* const x, const long long row, const int n_rows, const Places& places) {
  if (row >= n_rows || places.n_all > 2 * places.n_own) return;
  const long long first = places(row), last = places(wd_min(static_cast<int>(row) + 63, n_rows - 1));
  const float* const from = x + first * N_SEEN;
  const Word n_bytes = static_cast<Word>(last - first) * N_SEEN / 4 * 16;
  if (first < last && reinterpret_cast<Long>(from) % 16 == 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
}

// From n_rows of x (.., N_SEEN), those of `Places`, to out (n_rows, N_LAST). Arrays to keep, which may all be null, have
// n_kept rows of KEPT_SEEN numbers, and of 256 units.
WD_KERNEL(forward)(const float* x, const unsigned char* weights, const float* b1, const float* b2, const float* b3,
                   float* out, unsigned char* kept_x, unsigned char* kept_1, unsigned char* kept_2, const int* agents,
                   int n_rows, int n_kept, int n_own, int n_all) {
  const Places places = {agents, n_own, n_all};
  const Word base = shared_address(room);
  const Barriers barriers(base + AT_BARRIERS);
  const bool keeps = kept_x != nullptr;
  const Tiles tiles(n_rows < n_kept ? n_kept : n_rows);
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) barriers.make();
  float* const biases = reinterpret_cast<float*>(room + AT_BIASES);
  for (int i = threadIdx.x; i < 2 * WIDTH + LAST; i += THREADS) {
    const int layer = wd_min(i / WIDTH, 2), unit = i - layer * WIDTH, n = layer == 0 ? LAYER1 : layer == 1 ? LAYER2 : N_LAST;
    biases[i] = unit < n ? (layer == 0 ? b1 : layer == 1 ? b2 : b3)[unit] : 0.f;
  }
  __syncthreads();

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 256) copy_weights(weights, base + AT_W1, base, base + AT_W3, barriers, tiles.n);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int lane = threadIdx.x % 32, t = lane % 4, of_tile = threadIdx.x / 32 * 16 + lane / 4;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const Word at_biases = base + AT_BIASES, area = base + AT_AREAS + warp * AREA;
  const Long w1 = described(base + AT_W1, WIDTH), w2 = described(base, WIDTH), w3 = described(base + AT_W3, LAST);
  Turn at;
  await(barriers.stay, 0);
  for (int turn = 0; turn < tiles.n; ++turn) {
    const long long row = tiles.row(turn, of_tile);
    const long long own = tiles.row(turn, warp * 16);  // the warp's first
    const auto there = [&](const int n) { return static_cast<int>(n < own ? 0 : n - own < 16 ? n - own : 16); };
    const bool is_kept[2] = {row < n_kept, row + 8 < n_kept};
    Word seen[STEPS_1][4];
    float z2[WIDTH / 2];
    load_rows(seen, Rows(x, row, n_rows, t, places(row), places(row + 8)), t);
    if (threadIdx.x % 128 == 0) prefetch(x, tiles.row(turn + 1, of_tile), n_rows, places);
    fill<WIDTH>(z2, at_biases + WIDTH * 4, t);
#pragma unroll 1
    for (int chunk = 0; chunk < N_CHUNKS; ++chunk) {
      float z1[CHUNK / 2];
      Word h1[STEPS_OF_CHUNK][4];
      fill<CHUNK>(z1, at_biases + chunk * CHUNK * 4, t);
      multiply_first(z1, seen, w1, chunk);
      if (keeps && chunk == 0) {
        begin_area();
        store_rows(area + lane / 4 * KEPT_SEEN * BYTES, seen, {true, true}, t);
        end_area();
        send<KEPT_BYTES>(kept_x + own * KEPT_SEEN * BYTES, area, there(n_kept) * KEPT_SEEN * BYTES);
      }
      await_products<0>();
#pragma unroll
      for (int i = 0; i < CHUNK / 2; ++i) z1[i] = activated(z1[i]);
      as_left<CHUNK / 2, 0>(h1, z1);
      if (keeps) store_chunk(kept_1 + (row * WIDTH + chunk * CHUNK) * BYTES, h1, is_kept, t);
      multiply_second(z2, h1, w2, barriers, at);
    }

    float z3[LAST / 2];
#pragma unroll
    for (int i = 0; i < LAST / 2; ++i) z3[i] = biases[2 * WIDTH + i / 4 * 8 + 2 * t + i % 2];
    for_each_chunk([&](const auto number) {
      constexpr int first = decltype(number)::value * CHUNK;
      Word h2[STEPS_OF_CHUNK][4];
#pragma unroll
      for (int i = 0; i < CHUNK / 2; ++i) z2[first / 2 + i] = activated(z2[first / 2 + i]);
      as_left<WIDTH / 2, first>(h2, z2);
      if (keeps) store_chunk(kept_2 + (row * WIDTH + first) * BYTES, h2, is_kept, t);
      begin_products();
#pragma unroll
      for (int s = 0; s < STEPS_OF_CHUNK; ++s) multiply(z3, h2[s], w3 + place(0, first + s * STEP, LAST) / 16);
      end_products();
    });
    await_products<0>();
    begin_area();
#pragma unroll
    for (int i = 0; i < LAST / 2; ++i) {
      const int column = i / 4 * 8 + 2 * t + i % 2;
      if (column < N_LAST) store1(area + ((lane / 4 + i % 4 / 2 * 8) * N_LAST + column) * 4, __float_as_uint(z3[i]));
    }
    end_area();
    send<OUT_BYTES>(out + own * N_LAST, area, there(n_rows) * N_LAST * 4);
    if (turn + 1 == tiles.n) await_copies();  // here, as ptxas ignores setmaxnreg if anything follows the loop
  }
}

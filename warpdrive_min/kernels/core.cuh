// The vocabulary of every CUDA C kernel. The same text is built for the GPU (NVRTC or nvcc) and, by the backend
// `host`, for the CPU, where a block is a plain call, its threads are the loops, and a barrier is nothing.
//
// Constants that come before this header: THREADS, ENVS_PER_BLOCK, BLOCKS_PER_ENV, N_AGENTS, EXACT, and the kernel's own.
#pragma once

#if defined(__CUDACC__)

#define WD_FN static __device__ __forceinline__
#define WD_METHOD __device__ __forceinline__  // of a struct
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, WD_BLOCKS_AT_ONCE) name
// Large blocks: limit registers so that a multiprocessor runs 1,024 threads. Others: 0 leaves the choice to the compiler;
// a 1 allows more registers, and so fewer threads. Blocks of one warp with several agents: few run at a time, and registers
// let each load ahead.
#define WD_BLOCKS_AT_ONCE \
  (BLOCKS_PER_ENV == 1 && THREADS >= 256 ? 1024 / THREADS : THREADS == 32 && N_AGENTS > 1 ? 1 : 0)
#define WD_SHARED __shared__
#define WD_TABLE static __constant__ const
// A barrier of the block. A block of one warp synchronises as a warp, which takes a few cycles.
#define WD_SYNC() (THREADS == 32 ? __syncwarp() : __syncthreads())
// A barrier that also returns whether the flag of any thread is true.
#define WD_SYNC_ANY(flag) (THREADS == 32 ? (__syncwarp(), __any_sync(~0u, flag)) : __syncthreads_or(flag))
#define WD_BLOCK (static_cast<int>(blockIdx.x))
#define WD_THREAD (static_cast<int>(threadIdx.x))
#define WD_STRIDE THREADS
#define WD_INDEPENDENT
#define WD_ALIGN(bytes) alignas(bytes)  // rows that move in accesses as wide
#define WD_ATOMIC_ADD(address, value) atomicAdd(address, value)
#define WD_ATOMIC_MIN(address, value) atomicMin(address, value)

// With WD_DELAY, a seed, `debug` delays warps at random: at the start of a kernel, before a loop over items and after
// barriers of the block.
#if defined(WD_DELAY)
WD_FN void wd_delay(const int place) {
  unsigned hash = WD_DELAY * 0x9E3779B9u ^ blockIdx.x * 0x85EBCA6Bu ^ (threadIdx.x / 32u + 32u * place) * 0xC2B2AE35u;
  hash = (hash ^ hash >> 15) * 0x2C1B3C6Du;
  hash = (hash ^ hash >> 12) * 0x297A2D39u;
  hash ^= hash >> 15;
  const long long end = clock64() + (hash & 1u ? hash >> 17 : 0u);  // half of them, by up to 32,767 cycles
  while (clock64() < end) {
  }
}
#define WD_BEGIN(item) (wd_delay(__LINE__), item)
#else
#define WD_BEGIN(item) (item)
#endif

#else  // host

#include <cstdint>
#include <cstring>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // Bessel's and others' functions, half of what g++ would have to read
#include <cmath>

static thread_local int wd_block;  // set by the generated launcher
#if defined(WD_REVERSED)  // `debug` runs blocks and threads in the other order
#define WD_IN_ORDER(block, first, end) ((first) + (end) - 1 - (block))
#else
#define WD_IN_ORDER(block, first, end) (block)
#endif

#define WD_FN __attribute__((always_inline)) static inline
#define WD_METHOD __attribute__((always_inline)) inline
#define WD_ENTRY(name) static void name
#define WD_SHARED
#define WD_TABLE static constexpr
#define WD_SYNC() ((void)0)
#define WD_SYNC_ANY(flag) (flag)
#define WD_BLOCK wd_block
#define WD_THREAD 0
#define WD_STRIDE 1
#define WD_BEGIN(item) (item)
#if defined(__clang__)
#define WD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define WD_INDEPENDENT _Pragma("GCC ivdep")
#endif
#define WD_ALIGN(bytes)  // wider than a float, it would keep rows out of vectors
#define WD_ATOMIC_ADD(address, value) __atomic_fetch_add(address, value, __ATOMIC_RELAXED)
#define WD_ATOMIC_MIN(address, value) wd_atomic_min(address, value)

static inline int wd_atomic_min(int* address, int value) {
  int before = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (value < before &&
         !__atomic_compare_exchange_n(address, &before, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}

// Lists the indices in [first, end) whose flag is set, and returns their number; may write up to WD_LISTED_MORE more.
constexpr int WD_LISTED_MORE = 16;

template <class Flag>
static inline int wd_list_set(const Flag* flags, int first, int end, int* list) {
  int n = 0;
#if defined(__AVX512F__) && !defined(__clang__)
  typedef Flag flags_of_lanes __attribute__((vector_size(16 * sizeof(Flag))));
  typedef int lanes __attribute__((vector_size(64)));
  for (; first + 16 <= end; first += 16) {
    flags_of_lanes read;
    std::memcpy(&read, flags + first, sizeof read);
    const lanes set = __builtin_convertvector(read, lanes);
    const unsigned short mask = __builtin_ia32_ptestmd512(set, set, 0xFFFF);
    const lanes numbers = lanes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + first;
    const lanes listed = __builtin_ia32_compresssi512_mask(numbers, numbers, mask);
    std::memcpy(list + n, &listed, sizeof listed);
    n += __builtin_popcount(mask);
  }
#endif
  for (; first < end; ++first) {  // without a branch that nobody could predict
    list[n] = first;
    n += flags[first] != 0;
  }
  return n;
}

#endif

// Start of a kernel. Where a rollout kernel is generated from `step` (many_steps.cuh), a source's kernels are functions.
#define WD_KERNEL(name) WD_ENTRY(name)

// True if the observations of a step are read. In a rollout that stores only its last step, the others are not read.
// A step may then skip `observations`, but must write the final observations of episodes that end.
#define WD_OBSERVED true

// WD_ATOMIC_ADD and WD_ATOMIC_MIN are for int, so that the order does not matter; they return the value before.

// Blocks that share an environment take consecutive parts of its agents: block WD_PART of BLOCKS_PER_ENV those from
// WD_FIRST_ITEM to before WD_END_ITEM. Alone it takes all.
#define WD_PART (WD_BLOCK % BLOCKS_PER_ENV)
#define WD_FIRST_ENV (WD_BLOCK / BLOCKS_PER_ENV * ENVS_PER_BLOCK)
#define WD_OWNED_ENVS wd_min(ENVS_PER_BLOCK, n_envs - WD_FIRST_ENV)
#define WD_ITEMS_OF_A_PART ((ENVS_PER_BLOCK * N_AGENTS + BLOCKS_PER_ENV - 1) / BLOCKS_PER_ENV)
#define WD_FIRST_ITEM (WD_PART * WD_ITEMS_OF_A_PART)
#define WD_END_ITEM wd_min(WD_FIRST_ITEM + WD_ITEMS_OF_A_PART, ENVS_PER_BLOCK * N_AGENTS)

// The items from 0 to n that this thread handles. For the compiler it is no loop if the block has a thread for each.
#define WD_EACH_ITEM(item, n)                                                                   \
  for (int item = WD_BEGIN(WD_THREAD); item < (n); item = (n) > WD_STRIDE ? item + WD_STRIDE : (n))

// The agents or environments of this block that this thread handles. `local` counts the block's environments from 0 (the
// index into shared memory), `env` counts all environments; `n_envs` must be in scope. WD_EACH_ENV: of blocks that share
// an environment only the first one.
//
// On the CPU environments are SIMD lanes if the compiler can make the loop body branch-free. WD_INDEPENDENT marks a loop
// whose iterations do not access memory that other iterations write.
#if defined(__CUDACC__)

#define WD_EACH_AGENT(local, env, agent)                                                        \
  WD_EACH_ITEM(place_, WD_ITEMS_OF_A_PART)                                                      \
    if (const int item_ = WD_FIRST_ITEM + place_, local = item_ / N_AGENTS, agent = item_ % N_AGENTS, \
        env = WD_FIRST_ENV + local;                                                             \
        env < n_envs && item_ < ENVS_PER_BLOCK * N_AGENTS)

#define WD_EACH_ENV(local, env)                                                                 \
  WD_EACH_ITEM(local, ENVS_PER_BLOCK)                                                           \
    if (const int env = WD_FIRST_ENV + local; env < n_envs && WD_PART == 0)

#else

#define WD_FIRST_AGENT (BLOCKS_PER_ENV == 1 ? 0 : WD_FIRST_ITEM)
#define WD_END_AGENT (BLOCKS_PER_ENV == 1 ? N_AGENTS : WD_END_ITEM)

#if defined(WD_REVERSED)

#define WD_EACH_AGENT(local, env, agent)                                                        \
  for (int local = WD_OWNED_ENVS - 1; local >= 0; --local)                                      \
    for (int env = WD_FIRST_ENV + local, agent = WD_END_AGENT - 1; agent >= WD_FIRST_AGENT; --agent)

#define WD_EACH_ENV(local, env)                                                                 \
  for (int local = WD_PART == 0 ? WD_OWNED_ENVS - 1 : -1; local >= 0; --local)                  \
    if (const int env = WD_FIRST_ENV + local; true)

#else

#define WD_EACH_AGENT(local, env, agent)                                                        \
  WD_INDEPENDENT                                                                                \
  for (int local = 0, end_of_envs_ = WD_OWNED_ENVS; local < end_of_envs_; ++local)              \
    for (int env = WD_FIRST_ENV + local, agent = WD_FIRST_AGENT, end_ = WD_END_AGENT; agent < end_; ++agent)

#define WD_EACH_ENV(local, env)                                                                 \
  WD_INDEPENDENT                                                                                \
  for (int local = 0, end_of_envs_ = WD_PART == 0 ? WD_OWNED_ENVS : 0; local < end_of_envs_; ++local) \
    if (const int env = WD_FIRST_ENV + local; true)

#endif
#endif

#include "maths.cuh"
#include "philox.cuh"

#if defined(__CUDACC__)

// Loads of a thread at a time. In blocks of several warps others work while one waits, and registers limit how many run.
constexpr int WD_LOADS = THREADS == 32 ? 8 : 1;

// Moves a thread's items: from `first` on every STRIDE-th one below MOST. It loads up to LOADS before it stores them, so that
// it waits for all at once. Items beyond `last` are loaded as this one, and may be passed to `store`. All threads of a warp
// must call it.
template <int MOST, int STRIDE, int LOADS = WD_LOADS, class Load, class Store>
WD_FN void wd_move(const int first, const int last, const Load load, const Store store) {
  if constexpr (LOADS == 1 || MOST <= STRIDE) {
    for (int item = first; item < MOST; item = MOST > STRIDE ? item + STRIDE : MOST) {
      if (item <= last) store(item, load(item));
    }
    return;
  }
  constexpr int ROUNDS = (MOST - 1) / STRIDE + 1, PARTS = (ROUNDS - 1) / LOADS + 1, BATCH = (ROUNDS - 1) / PARTS + 1;
  for (int round = 0; round < ROUNDS; round += BATCH) {
    decltype(load(0)) loaded[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) loaded[i] = load(wd_min((round + i) * STRIDE + first, last));
    __syncwarp();  // else the compiler delays loads
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int item = (round + i) * STRIDE + first;
      if ((round + i + 1) * STRIDE <= MOST || item < MOST) store(item, loaded[i]);
    }
  }
}

#endif

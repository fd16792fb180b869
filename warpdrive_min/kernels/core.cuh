// The vocabulary of every CUDA C kernel. The same text is built for the GPU (NVRTC or nvcc) and, by the backend
// `host`, for the CPU, where a block is a plain call, its threads are the loops, and a barrier is nothing.
//
// Constants that come before this header: THREADS, ENVS_PER_BLOCK, N_AGENTS, EXACT, and the kernel's own.
#pragma once

#if defined(__CUDACC__)

#define WD_FN static __device__ __forceinline__
#define WD_KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS) name
#define WD_SHARED __shared__
#define WD_TABLE static __constant__ const
#define WD_SYNC() __syncthreads()
#define WD_BLOCK (static_cast<int>(blockIdx.x))
#define WD_THREAD (static_cast<int>(threadIdx.x))
#define WD_STRIDE THREADS

#else  // host

#include <cmath>
#include <cstdint>
#include <cstring>

static thread_local int wd_block;  // set by the generated launcher

#define WD_FN static inline
#define WD_KERNEL(name) static void name
#define WD_SHARED
#define WD_TABLE static constexpr
#define WD_SYNC() ((void)0)
#define WD_BLOCK wd_block
#define WD_THREAD 0
#define WD_STRIDE 1

#endif

// The items of this block that this thread handles. `local` counts the block's environments from 0 (the index into
// shared memory), `env` counts all environments; `n_envs` must be in scope.
#define WD_EACH_AGENT(local, env, agent)                                                        \
  for (int item_ = WD_THREAD; item_ < ENVS_PER_BLOCK * N_AGENTS; item_ += WD_STRIDE)            \
    if (const int local = item_ / N_AGENTS, agent = item_ % N_AGENTS,                           \
        env = WD_BLOCK * ENVS_PER_BLOCK + local;                                                \
        env < n_envs)

#define WD_EACH_ENV(local, env)                                                                 \
  for (int local = WD_THREAD; local < ENVS_PER_BLOCK; local += WD_STRIDE)                       \
    if (const int env = WD_BLOCK * ENVS_PER_BLOCK + local; env < n_envs)

#include "maths.cuh"
#include "philox.cuh"

// Kernels with a thread for each agent that wait for each other in every way, for `test_fibres.py`.
__constant__ int offsets[2];
__device__ int n_launches = 0;
__shared__ int of_the_file;

extern "C" {

__device__ int index_of_this_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

// A barrier in a loop, and in a function: each round adds the sum of its block.
__device__ int sum_of_block(const int value) {
  __shared__ int total;
  static __shared__ int parts[wkNumberAgents];
  if (threadIdx.x == 0) total = 0;
  parts[threadIdx.x] = value;
  __syncthreads();
  atomicAdd(&total, parts[blockDim.x - 1 - threadIdx.x]);
  __syncthreads();
  const int result = total;
  __syncthreads();
  return result;
}

__global__ void sums(int* x, const int rounds) {
  int* const mine = x + index_of_this_thread();
  for (int round = 0; round < rounds; ++round) *mine += sum_of_block(*mine) + offsets[round % 2];
}

// Threads leave before a barrier, and between two.
__global__ void leaving(int* x) {
  if (threadIdx.x == 0) of_the_file = 0;
  __syncthreads();
  if (threadIdx.x % 2 == 1) return;
  atomicAdd(&of_the_file, 1);
  __syncthreads();
  x[index_of_this_thread()] = of_the_file;
  if (threadIdx.x == 2) return;
  x[index_of_this_thread()] = 10 * __syncthreads_count(threadIdx.x > 0) + __syncthreads_and(threadIdx.x != 2);
  x[index_of_this_thread()] += 2 * __syncthreads_or(threadIdx.x == 2);
}

// A barrier at two places is one, and at one place its count of rounds need not be known.
__global__ void branches(int* x) {
  __shared__ int left;
  if (threadIdx.x == 0) {
    left = 3;
    __syncthreads();
  } else {
    __syncthreads();
  }
  while (left > 0) {
    __syncthreads();
    if (threadIdx.x == 1) --left;
    x[index_of_this_thread()] += 1;
    __syncthreads();
  }
}

// 40 threads are a warp and a part of one.
__global__ void warps(int* x, float* y) {
  const int lane = threadIdx.x % warpSize, i = index_of_this_thread();
  if (threadIdx.x == 39) return;
  float sum = lane;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  y[i] = __shfl_sync(0xffffffff, sum, 0);
  x[4 * i] = __shfl_up_sync(0xffffffff, lane, 3) + 100 * __shfl_xor_sync(0xffffffff, lane, 1, 2);
  x[4 * i + 1] = static_cast<int>(__ballot_sync(0xffffffff, lane % 2));
  x[4 * i + 2] = static_cast<int>(__match_any_sync(0xffffffff, lane / 4));
  const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  if (lane < 16) __syncwarp(half);
  x[4 * i + 3] = __all_sync(half, lane < 16) + 2 * __any_sync(half, lane == 20) + 4 * (__activemask() >> lane & 1);
}

__global__ void reductions(int* x) {
  const int lane = threadIdx.x % warpSize;
  if (threadIdx.x >= 35) return;
  int* const mine = x + 8 * threadIdx.x;
  int all;
  mine[0] = __reduce_add_sync(0xffffffff, lane - 20);
  mine[1] = __reduce_min_sync(0xffffffff, lane - 20) + 1000 * __reduce_max_sync(0xffffffff, lane - 20);
  mine[2] = static_cast<int>(__reduce_add_sync(0xffffffff, 1u) + 100u * __reduce_max_sync(0xffffffff, 2u * lane));
  mine[3] = static_cast<int>(__reduce_and_sync(0xffffffff, 8u | lane) + 100u * __reduce_or_sync(0xffffffff, lane));
  mine[4] = static_cast<int>(__reduce_xor_sync(0xffffffff, 1u << lane) + __reduce_min_sync(0xffffffff, lane + 3u));
  mine[5] = static_cast<int>(__match_all_sync(0xffffffff, 7, &all));
  mine[6] = all;
  mine[7] = static_cast<int>(__match_all_sync(0xffffffff, lane, &all)) + all;
}

// All threads do the same in place, as the lanes of a warp can: nobody reads what another one has written already.
__global__ void in_place(int* x) {
  int* const pair = x + 2 * blockIdx.x;
  for (int i = 0; i < 2; ++i) {
    int sum = 0;
    for (int j = 0; j < 2; ++j) sum += (i + j + 1) * pair[j];
    pair[i] = sum;
  }
}

// Each thread takes the lock in its turn.
__device__ int lock = 0;
__global__ void locked(int* x) {
  while (atomicCAS(&lock, 0, 1) != 0) {
  }
  x[0] = x[0] + 1;
  __threadfence();
  atomicExch(&lock, 0);
}

__global__ void atomics(int* x, float* y, unsigned long long* z) {
  const int i = index_of_this_thread();
  atomicAdd_block(x, i);
  atomicSub(x + 1, i);
  atomicMin(x + 2, -i);
  atomicMax(x + 3, i);
  atomicAnd(x + 4, ~(1 << i % 8));
  atomicOr(x + 5, 1 << i % 8);
  atomicXor(x + 6, 1);
  atomicInc(reinterpret_cast<unsigned*>(x + 7), 6);
  atomicDec(reinterpret_cast<unsigned*>(x + 8), 6);
  atomicAdd(y, 0.5);
  atomicMax(y + 1, i);
  atomicAdd(z, 1ull << 40);
}

__global__ void counted(int* x) {
  if (index_of_this_thread() == 0) x[0] = ++n_launches;
}

__global__ void numbers(float* y) {
  const float3 three = make_float3(1, 2, 3);
  const int4 four = {1, 2, 3, 4};
  const uint2 words = make_uint2(7, 8);
  const float big = 3e9f;
  int i = 0;
  y[i++] = min(three.x, 2.5) + max(four.w, 2u) + max(words.y, words.x) + fminf(NAN, 1.f);
  y[i++] = rsqrtf(4.f) + __fdividef(1.f, 4.f) + sinpif(0.5f) + cospif(1.f) + __saturatef(3.f);
  y[i++] = __float2int_rn(2.5f) + __float2int_rz(-2.5f) + __float2int_rd(-2.5f) + __float2int_ru(2.25f);
  y[i++] = __float2int_rz(big) == INT_MAX ? 1.f : 0.f;
  y[i++] = __int_as_float(__float_as_int(1.5f)) + __popc(255u) + __clz(1) + __ffs(8) + (__brev(1u) >> 31);
  y[i++] = pow(three.y, 3) + fabs(-three.z) + abs(-four.y) + __powf(2.f, 3.f) + __expf(0.f) + isnan(NAN);
  y[i++] = __fmaf_rn(2.f, 3.f, 4.f) + __umulhi(1u << 31, 4u) + dim3(5).x + gridDim.y + blockDim.x;
}

#if WITH_MORE
__global__ void absent(int* x) {}
#endif

// ---- what cannot end

__global__ void waits(int* x) {
  if (threadIdx.x < 2) {
    __syncwarp(0x7);
  } else {
    __syncthreads();
  }
}
__global__ void other_mask(int* x) { x[0] = __shfl_sync(1u, 0, 0); }
__global__ void fails(const int* x) {
  __syncthreads();
  assert(x[index_of_this_thread()] < 7);
}
__global__ void spins(int* x) {
  if (threadIdx.x == 1) *static_cast<volatile int*>(x) = 0;
  if (threadIdx.x == 0) {
    while (*static_cast<volatile int*>(x) == 0) {
    }
  }
}
__global__ void never_free(int* x) {
  x[0] = 1;
  while (atomicCAS(x, 0, 1) != 0) {
  }
}
__global__ void traps(int* x) { __trap(); }
}

// Blocks that share an environment exchange their sums.
extern "C" __global__ void exchanges(int* x) {
  __shared__ int total;
  const int env = getEnvID(blockIdx.x), agent = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  if (agent >= wkNumberAgents) return;
  int* const all = x + env * wkNumberAgents;
  for (int round = 0; round < 2; ++round) {
    atomicAdd(&total, all[agent]);
    const int opposite = all[wkNumberAgents - 1 - agent];
    __sync_env_threads();
    all[agent] = total + opposite * (blockIdx.x % wkBlocksPerEnv != 0);
    __sync_env_threads();
  }
}

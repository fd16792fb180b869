// WarpDrive's vocabulary for kernels with a thread for each agent, included before a source that uses a word of it.
//
// Constants that come before this header: wkNumberAgents and wkBlocksPerEnv. Above one block per environment WD_CLUSTER
// is defined: the blocks of an environment are then a thread block cluster, which the hardware schedules together, so
// that their barrier cannot wait for a block that is not running. (A spinning barrier in memory can.)
#pragma once

#if !defined(__CUDACC__)  // host: a block is a plain call
#undef WD_CLUSTER
#endif

#if defined(WD_CLUSTER)
#undef __global__
#define __global__ __attribute__((global)) __cluster_dims__(wkBlocksPerEnv, 1, 1)
#endif

#if defined(__CUDACC_RTC__)  // NVRTC includes no header of the host's compiler, on whose names sources for nvcc rely
template <class Base, class Exponent>  // of mixed types
WD_FN double pow(Base base, Exponent exponent) {
  return pow(static_cast<double>(base), static_cast<double>(exponent));
}
typedef int int32_t;
typedef unsigned uint32_t;
#define M_PI 3.14159265358979323846
#define INFINITY __int_as_float(0x7f800000)
#define INT_MAX 2147483647
#endif

WD_FN int getEnvID(int block) { return block / wkBlocksPerEnv; }

// From wkNumberAgents on, the thread has no agent.
WD_FN int getAgentID(int thread, int block, int n_threads) { return thread + block % wkBlocksPerEnv * n_threads; }

// Row-major offset of an element.
WD_FN int get_flattened_array_index(const int* index, const int* sizes, int rank) {
  int offset = 0;
  for (int axis = 0; axis < rank; ++axis) offset = offset * sizes[axis] + index[axis];
  return offset;
}

// Barrier of all threads of an environment that have not left the kernel; what they wrote before it, all of them see.
WD_FN void __sync_env_threads() {
#if defined(WD_CLUSTER)
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  WD_SYNC();
#endif
}

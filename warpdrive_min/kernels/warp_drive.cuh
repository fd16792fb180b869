// WarpDrive's vocabulary for kernels with a thread for each agent, included before sources that use it.
//
// Defined before this header: WD_BLOCKS, the blocks that share an environment, and WD_OWN_ with each of the words that the
// source defines itself. Several blocks of an environment are a thread block cluster, which the hardware schedules
// together, so that their barrier cannot wait for a block that is not running. (A spinning barrier in memory can.)
#pragma once

#if defined(__CUDACC__) && WD_BLOCKS > 1
#define WD_CLUSTER
#undef __global__
#define __global__ __attribute__((global)) __cluster_dims__(WD_BLOCKS, 1, 1)
#endif

#if !defined(WD_OWN_getEnvID)
WD_FN int getEnvID(int block) { return block / WD_BLOCKS; }
#endif

// From wkNumberAgents on, the thread has no agent.
#if !defined(WD_OWN_getAgentID)
WD_FN int getAgentID(int thread, int block, int n_threads) { return thread + block % WD_BLOCKS * n_threads; }
#endif

// Row-major offset of an element.
#if !defined(WD_OWN_get_flattened_array_index)
WD_FN int get_flattened_array_index(const int* index, const int* sizes, int rank) {
  int offset = 0;
  for (int axis = 0; axis < rank; ++axis) offset = offset * sizes[axis] + index[axis];
  return offset;
}
#endif

// Barrier of all threads of an environment that have not left the kernel; what they wrote before it, all of them see.
// Fibres always use our barrier: one that spins in memory, such as WarpDrive's, would never switch to the others. Calls then
// take the overload for a `wd_ours`, and a source's definition `__sync_env_threads(wd_ours()) {` defines another one.
#if defined(WD_FIBRES)
struct wd_ours {};
WD_FN void __sync_env_threads(wd_ours, WD_HERE) { wd_sync_env(file, line); }
#define __sync_env_threads() __sync_env_threads(wd_ours())
#elif !defined(WD_OWN___sync_env_threads)
#if defined(WD_CLUSTER)
WD_FN void __sync_env_threads() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}
#else
WD_FN void __sync_env_threads() {
#if defined(__CUDACC__)
  __syncthreads();  // not WD_SYNC: a block may have more than THREADS
#endif
}
#endif
#endif

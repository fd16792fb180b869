// Loss and gradients of a minibatch by groups of warps; see `group_learn.cuh`.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "group_learn.cuh"
//
#include "learn_kernels.cuh"

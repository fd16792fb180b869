// Loss and gradients of a minibatch on a GPU; see `learn.cuh`.
#undef WD_ENTRY
#define WD_ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 1) name

#include "learn.cuh"
//
#include "learn_kernels.cuh"

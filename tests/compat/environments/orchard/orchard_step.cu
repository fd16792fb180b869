// The orchard in CUDA C, put together from its parts.
#ifndef ORCHARD_STEP_
#define ORCHARD_STEP_

#include <math.h>
#include <stdio.h>

// #include "parts/former_kernels.cu"
#include "parts/orchard_kernels.cu"

#endif

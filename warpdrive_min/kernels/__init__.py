"""The core's own kernels, each in CUDA C, Numba and NumPy, and what kernels share."""

"""Core kernels in CUDA C, Numba and NumPy, and shared code."""

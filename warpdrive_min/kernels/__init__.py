"""The core's kernels in CUDA C, Numba and NumPy, and their shared code."""

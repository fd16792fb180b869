"""Kernels of networks, losses and Adam, in CUDA C, Triton and C++."""

"""Kernels of networks, losses and Adam, in Triton and in C++."""

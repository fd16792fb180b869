"""Kernels of networks and losses in Triton and C++, and Adam."""

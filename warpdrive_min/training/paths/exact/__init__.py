"""Kernels of exact training: the same bits on a GPU and a CPU."""

"""Kernels that train to the same bits on a GPU and a CPU."""

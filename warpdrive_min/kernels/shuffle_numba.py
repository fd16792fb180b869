"""Random indices in Numba: the rules of `shuffle.cu`."""

# ruff: noqa: N806  (constants keep their names in all languages)

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int32, int64, uint32, uint64

from warpdrive_min.kernels.core_numba import below, philox
from warpdrive_min.rng import STREAM_REPLAY, STREAM_SHUFFLE

LOW = np.uint64(0xFFFFFFFF)
FACTORS = (np.uint64(0x85EBCA6B), np.uint64(0xC2B2AE35))


@cuda.jit(device=True)
def mixed(x):
    """Return the finaliser of MurmurHash3.

    Products have 64 bits, so that they do not overflow in the simulator.
    """
    x = uint32(uint64(uint32(x ^ (x >> uint32(16)))) * FACTORS[0] & LOW)
    x = uint32(uint64(uint32(x ^ (x >> uint32(13)))) * FACTORS[1] & LOW)
    return uint32(x ^ (x >> uint32(16)))


@cuda.jit(device=True)
def four_rounds(left, right, keys, mask):
    """Return both halves after four rounds, one for each key.

    An even number of rounds needs no swaps.
    """
    left = uint32(left ^ (mixed(uint32(right ^ keys[0])) & mask))
    right = uint32(right ^ (mixed(uint32(left ^ keys[1])) & mask))
    left = uint32(left ^ (mixed(uint32(right ^ keys[2])) & mask))
    right = uint32(right ^ (mixed(uint32(left ^ keys[3])) & mask))
    return left, right


def build(c: Any) -> dict[str, Any]:
    """Return the kernels ``permute`` and ``draw_rows``."""
    ENVS_PER_BLOCK, THREADS = c.ENVS_PER_BLOCK, c.THREADS

    @cuda.jit
    def permute(
        indices: int32[:],
        counter: int32[:],
        seed: int32[:],
        half_bits: int32,
        n: int32,
        n_indices: int32,
        n_envs: int32,
    ) -> None:
        shift = uint32(half_bits)
        mask = uint32((1 << half_bits) - 1)
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            index = int64(cuda.blockIdx.x * ENVS_PER_BLOCK + local)
            if index < n_envs:
                of_keys, begins, place = -1, True, uint32(0)
                first = second = third = philox(0, 0, 0, STREAM_SHUFFLE, 0, 0)
                while index < n_indices:
                    if begins:
                        permutation = index // n
                        place = uint32(index - permutation * n)
                        if permutation != of_keys:
                            low, high = seed[2 * permutation], seed[2 * permutation + 1]
                            first = philox(counter[0], 0, 0, STREAM_SHUFFLE, low, high)
                            second = philox(counter[0], 1, 0, STREAM_SHUFFLE, low, high)
                            third = philox(counter[0], 2, 0, STREAM_SHUFFLE, low, high)
                        of_keys = permutation
                    left, right = uint32(place >> shift), uint32(place & mask)
                    left, right = four_rounds(left, right, first, mask)
                    left, right = four_rounds(left, right, second, mask)
                    left, right = four_rounds(left, right, third, mask)
                    place = uint32(uint32(left << shift) | right)
                    begins = place < uint32(n)
                    if begins:
                        indices[index] = int32(place)
                        index += n_envs

    @cuda.jit
    def draw_rows(indices: int32[:], size: int32[:], counter: int32[:], seed: int32[:], n_envs: int32) -> None:
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            index = cuda.blockIdx.x * ENVS_PER_BLOCK + local
            if index < n_envs:
                indices[index] = below(philox(counter[0], index, 0, STREAM_REPLAY, seed[0], seed[1])[0], size[0])

    return {"permute": permute, "draw_rows": draw_rows}

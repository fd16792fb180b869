"""Random indices in NumPy: the rules of `shuffle.cu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min import rng

IntArray = NDArray[np.int32]

ROUNDS: Final = 12


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernels ``permute`` and ``draw_rows``."""

    def permute(
        indices: IntArray, counter: IntArray, seed: IntArray, half_bits: int, n: int, n_indices: int, n_envs: int
    ) -> None:
        for low, high, permuted in zip(seed[::2], seed[1::2], indices.reshape(-1, n), strict=True):
            words = rng.philox(counter[0], np.arange(ROUNDS // 4), 0, rng.STREAM_SHUFFLE, low, high)
            keys = np.stack(words, axis=-1).ravel()
            places = _network(np.arange(n, dtype=np.uint32), keys, half_bits)
            outside = np.flatnonzero(places >= n)
            while len(outside):
                places[outside] = _network(places[outside], keys, half_bits)
                outside = outside[places[outside] >= n]
            permuted[...] = places

    def draw_rows(indices: IntArray, size: IntArray, counter: IntArray, seed: IntArray, n_envs: int) -> None:
        word = rng.philox(counter[0], np.arange(n_envs), 0, rng.STREAM_REPLAY, seed[0], seed[1])[0]
        indices[...] = rng.below(word, size[0])

    return {"permute": permute, "draw_rows": draw_rows}


def _network(places: rng.UInt32Array, keys: rng.UInt32Array, half_bits: int) -> rng.UInt32Array:
    shift, mask = np.uint32(half_bits), np.uint32((1 << half_bits) - 1)
    left, right = places >> shift, places & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << shift | right


def _mixed(x: rng.UInt32Array) -> rng.UInt32Array:
    """Return the finaliser of MurmurHash3."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return x ^ x >> np.uint32(16)

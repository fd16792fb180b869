"""Counter-based random numbers: Philox4x32-10 in NumPy, and shared streams.

There is no state: a draw follows from its counter (step, env, agent, stream) and the seed. So every backend draws the
same numbers, for any number of environments. All languages share the streams.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; constants of Random123 1.14, philox.h.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdrive_min.errors import require_int

STREAM_START: Final = 1
"""Stream of random starts of episodes."""
STREAM_POOL: Final = 2
"""Stream that selects the reset pool row of an episode."""
STREAM_SHUFFLE: Final = 3
"""Stream of the sort keys of permutations."""
STREAM_REPLAY: Final = 4
"""Stream of rows sampled from a replay buffer."""
STREAM_ACTIONS: Final = 16
"""First stream of samplers; each registered action array uses one."""

UInt32Array = NDArray[np.uint32]

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_SMALL_ROUNDS: Final = 2
"""Rounds until x and z depend on all varying counters.

Even, so that the pair is in order afterwards.
"""
_CHUNK: Final = 8192
"""Blocks per chunk, whose three 128 KB arrays fit the second-level cache."""


def philox(
    step: ArrayLike, env: ArrayLike, agent: ArrayLike, stream: ArrayLike, seed_low: int, seed_high: int
) -> tuple[UInt32Array, UInt32Array, UInt32Array, UInt32Array]:
    """Return the four words of each block, each of the broadcast shape.

    Counters broadcast; negative int32 counts as uint32.
    """
    counters = [_word(value) for value in (step, env, agent, stream)]
    shape = np.broadcast_shapes(*(counter.shape for counter in counters))
    keys = _round_keys(int(seed_low), int(seed_high))
    paired = _paired(keys)
    words = np.empty((4, *shape), np.uint32)
    flat = words.reshape(4, *(shape or (1,)))
    rows, width = flat.shape[1], max(1, flat[0, :1].size)
    counters = [counter.reshape((1,) * (flat.ndim - 1 - counter.ndim) + counter.shape) for counter in counters]
    step_rows = max(1, _CHUNK // width)
    for start in range(0, rows, step_rows):
        part = slice(start, start + step_rows)
        _fill(flat[:, part], [counter[part] if len(counter) > 1 else counter for counter in counters], keys, paired)
    return words[0], words[1], words[2], words[3]


def uniform(word: ArrayLike) -> NDArray[np.float32]:
    """Return float32 in [0, 1), from the upper 24 bits.

    So rounding cannot reach 1.
    """
    return (np.asarray(word, np.uint32) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def below(word: ArrayLike, n: int) -> NDArray[np.int64]:
    """Return integers in [0, n), each with a probability within 2^-32 of 1 / n."""
    return ((np.asarray(word).astype(np.uint64) * np.uint64(n)) >> _HALF).astype(np.int64)


def pool_row(episode: ArrayLike, env: ArrayLike, seed_low: int, seed_high: int, n_rows: int) -> NDArray[np.int64]:
    """Return an episode's reset pool row, equal for all arrays."""
    return below(philox(episode, env, 0, STREAM_POOL, seed_low, seed_high)[0], n_rows)


def seed_words(seed: int) -> tuple[int, int]:
    """Split a 64-bit seed into low and high words, int32.

    Kernels read them as uint32.

    Raises:
        ConfigError: The seed is not an integer, is negative, or has more than 64 bits.
    """
    seed = require_int("seed", seed, 0, 2**64 - 1, "choose another one")
    low, high = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32)
    return int(low), int(high)


def _word(value: ArrayLike) -> NDArray[np.uint64]:
    return np.asarray(value).astype(np.int64).view(np.uint64) & _LOW


def _round_keys(low: int, high: int) -> list[tuple[np.uint64, np.uint64]]:
    return [
        (
            np.uint64((low + index * _KEY_STEPS[0]) & 0xFFFFFFFF),
            np.uint64((high + index * _KEY_STEPS[1]) & 0xFFFFFFFF),
        )
        for index in range(_ROUNDS)
    ]


def _paired(keys: list[tuple[np.uint64, np.uint64]]) -> list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Return multipliers and keys of the rounds that `_fill` does on pairs.

    Each is (2, 1), keys in the upper halves. The product of x gives the next z, and the product of z the next x, so the
    pair swaps in each round.
    """
    multipliers = np.array(_MULTIPLIERS, np.uint64)[:, None]
    return [
        (multipliers[:: -1 if index % 2 else 1], np.array(pair)[:: 1 if index % 2 else -1, None] << _HALF)
        for index, pair in enumerate(keys[_SMALL_ROUNDS:])
    ]


def _fill(
    out: UInt32Array,
    counters: list[NDArray[np.uint64]],
    keys: list[tuple[np.uint64, np.uint64]],
    paired: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]],
) -> None:
    """Write the words of one chunk to ``out`` (4, *shape).

    A round multiplies the words ``x`` and ``z``, and XORs ``y`` and ``w`` into the products' upper halves. Step and
    stream are mostly scalars, so the first rounds broadcast small arrays. The later rounds work in place on both pairs
    at once, with five calls each; ``y`` and ``w`` stay in the upper halves.
    """
    x, y, z, w = counters
    first, second = (np.uint64(multiplier) for multiplier in _MULTIPLIERS)
    for key_low, key_high in keys[:_SMALL_ROUNDS]:
        product_x, product_z = x * first, z * second
        x, y = (product_z >> _HALF) ^ y ^ key_low, product_z & _LOW
        z, w = (product_x >> _HALF) ^ w ^ key_high, product_x & _LOW

    shape = out.shape[1:]
    factors, mixed, product = (np.empty((2, math.prod(shape)), np.uint64) for _ in range(3))
    for target, value in zip((*factors, *mixed), (x, z, y, w), strict=True):
        target.reshape(shape)[...] = value
    mixed <<= _HALF
    for multipliers, key in paired:
        np.multiply(factors, multipliers, out=product)
        np.bitwise_xor(product, mixed[::-1], out=product)
        np.bitwise_xor(product, key, out=product)
        np.right_shift(product, _HALF, out=factors)
        np.left_shift(product, _HALF, out=mixed)
    mixed >>= _HALF
    for target, value in zip(out, (factors[0], mixed[0], factors[1], mixed[1]), strict=True):
        target[...] = value.reshape(shape)

"""Continuous actions in NumPy: the rules of `noise.cu`, over all environments at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min import rng
from warpdrive_min.kernels import maths_numpy

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

ONE: Final = np.float32(1)
TWO_PI: Final = np.float32(2 * np.pi)

cos = maths_numpy.maths(exact=True).cos


def normal(first: rng.UInt32Array, second: rng.UInt32Array) -> FloatArray:
    """Return standard normals from two random words each, by Box and Muller; at most 5.77 in magnitude."""
    radius: FloatArray = np.sqrt(np.float32(-2) * maths_numpy.log(ONE - rng.uniform(first)))
    return radius * cos(TWO_PI * rng.uniform(second))


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernels ``noise`` and ``uniform_actions``."""
    agents, types = np.arange(c.N_AGENTS)[:, None], np.arange(c.N_TYPES, dtype=np.uint32)

    def blocks(word: rng.UInt32Array, stream: int, seed: IntArray) -> tuple[rng.UInt32Array, ...]:
        """Return the four words (n_envs, n_agents, n_types) of the block in which each word (n_envs, 1, n_types) is."""
        return rng.philox(word >> np.uint32(2), np.arange(len(word))[:, None, None], agents, stream, seed[0], seed[1])

    def noise(
        mean: FloatArray,
        ou_state: FloatArray,
        actions: FloatArray,
        draws: IntArray,
        seed: IntArray,
        damping: float,
        stddev: float,
        scale: float,
        stream: int,
        n_envs: int,
    ) -> None:
        word = np.uint32(2) * (draws.view(np.uint32)[:, None, None] * np.uint32(c.N_TYPES) + types)
        x, y, z, w = blocks(word, stream, seed)
        is_upper = (word & np.uint32(2)) != 0
        drawn = normal(np.where(is_upper, z, x), np.where(is_upper, w, y))
        ou_state[...] = (ONE - np.float32(damping)) * ou_state + np.float32(stddev) * drawn
        actions[...] = mean + np.float32(scale) * ou_state
        draws += 1

    def uniform_actions(
        low: FloatArray,
        high: FloatArray,
        actions: FloatArray,
        draws: IntArray,
        seed: IntArray,
        stream: int,
        n_envs: int,
    ) -> None:
        word = draws.view(np.uint32)[:, None, None] * np.uint32(c.N_TYPES) + types
        weight = rng.uniform(np.choose(word & np.uint32(3), blocks(word, stream, seed)))
        np.clip((ONE - weight) * low + weight * high, low, high, out=actions)
        draws += 1

    return {"noise": noise, "uniform_actions": uniform_actions}

"""Continuous actions in NumPy: the rules of `noise.cu`, for all environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min import rng
from warpdrive_min.kernels import maths_numpy
from warpdrive_min.kernels.arguments import Gaussian, Noise, Uniform

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

ONE: Final = np.float32(1)
TWO_PI: Final = np.float32(2 * np.pi)
HALF_LOG_TWO_PI: Final = np.float32(0.5 * np.log(2 * np.pi))
HALF_LOG_TWO_PI_E: Final = np.float32(0.5 * np.log(2 * np.pi * np.e))

cos = maths_numpy.maths(exact=True).cos


def normal(first: rng.UInt32Array, second: rng.UInt32Array) -> FloatArray:
    """Return standard normals from two random words each (Box-Muller).

    Their magnitude is at most 5.77.
    """
    radius: FloatArray = np.sqrt(np.float32(-2) * maths_numpy.log(ONE - rng.uniform(first)))
    return radius * cos(TWO_PI * rng.uniform(second))


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernels ``noise``, ``gaussian`` and ``uniform_actions``."""
    agents, types = np.arange(c.N_AGENTS)[:, None], np.arange(c.N_TYPES, dtype=np.uint32)

    def blocks(word: rng.UInt32Array, stream: int, seed: IntArray) -> tuple[rng.UInt32Array, ...]:
        """Return the four words of each word's block, (n_envs, n_agents, n_types).

        ``word`` is (n_envs, 1, n_types).
        """
        return rng.philox(word >> np.uint32(2), np.arange(len(word))[:, None, None], agents, stream, seed[0], seed[1])

    def normals(draws: IntArray, stream: int, seed: IntArray) -> FloatArray:
        """Return the current draw's normals, (n_envs, n_agents, n_types)."""
        word = np.uint32(2) * (draws.view(np.uint32)[:, None, None] * np.uint32(c.N_TYPES) + types)
        x, y, z, w = blocks(word, stream, seed)
        is_upper = (word & np.uint32(2)) != 0
        return normal(np.where(is_upper, z, x), np.where(is_upper, w, y))

    def noise(given: Noise, n_envs: int) -> None:
        decay = ONE - np.float32(given.damping) * given.damping_factor
        drawn = normals(given.draws, given.stream, given.seed)
        given.ou_state[...] = decay * given.ou_state + np.float32(given.stddev) * given.stddev_factor * drawn
        given.actions[...] = given.mean + np.float32(given.scale) * given.scale_factor * given.ou_state
        given.draws[...] += 1

    def gaussian(given: Gaussian, n_envs: int) -> None:
        drawn = np.zeros_like(given.mean) if c.ARGMAX else normals(given.draws, given.stream, given.seed)
        given.actions[...] = given.mean if c.ARGMAX else given.mean + maths_numpy.exp(given.log_std) * drawn
        if c.LOG_PROB:
            given.log_prob[...] = _total((np.float32(-0.5) * drawn * drawn - given.log_std) - HALF_LOG_TWO_PI)
        if c.ENTROPY:
            given.entropy[...] = _total(given.log_std + HALF_LOG_TWO_PI_E)
        if not c.ARGMAX:
            given.draws[...] += 1

    def uniform_actions(given: Uniform, n_envs: int) -> None:
        word = given.draws.view(np.uint32)[:, None, None] * np.uint32(c.N_TYPES) + types
        weight = rng.uniform(np.choose(word & np.uint32(3), blocks(word, given.stream, given.seed)))
        np.clip((ONE - weight) * given.low + weight * given.high, given.low, given.high, out=given.actions)
        given.draws[...] += 1

    return {"noise": noise, "gaussian": gaussian, "uniform_actions": uniform_actions}


def _total(terms: FloatArray) -> FloatArray:
    """Return sums over the last axis, in the same order in all languages."""
    total: FloatArray = np.add.accumulate(terms, axis=-1)[..., -1]
    return total

"""The kernels of `probe_kernels.cu` in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min import rng
from warpdrive_min.kernels import maths_numpy


def build(c: Any) -> dict[str, Any]:
    """Return the kernels ``words``, ``derived`` and ``functions``."""
    sin, cos = maths_numpy.maths(c.EXACT)

    def words(counters: np.ndarray, seed: np.ndarray, out: np.ndarray, n_envs: int) -> None:
        out[...] = np.stack(rng.philox(*counters.T, *seed), axis=-1).view(np.int32)

    def derived(
        words: np.ndarray, seed: np.ndarray, uniforms: np.ndarray, integers: np.ndarray, n: int, n_envs: int
    ) -> None:
        uniforms[:] = rng.uniform(words.view(np.uint32))
        integers[:, 0] = rng.below(words.view(np.uint32), n)
        integers[:, 1] = rng.pool_row(words, np.arange(n_envs), *seed, n)

    def functions(x: np.ndarray, out: np.ndarray, n_envs: int) -> None:
        magnitude = np.clip(np.abs(x), np.float32(1e-30), np.float32(1e30))
        results = (
            maths_numpy.exp(x),
            maths_numpy.log(magnitude),
            sin(x),
            cos(x),
            maths_numpy.wrap(x, 6.2831855),
            np.clip(x, np.float32(-1), np.float32(2)),
            maths_numpy.principal(x),
        )
        out[...] = np.stack(results, axis=-1)

    return {"words": words, "derived": derived, "functions": functions}

"""Generic resets in NumPy: the rule of `reset.cu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdrive_min import rng
from warpdrive_min.kernels.arguments import Rows

IntArray = NDArray[np.int32]


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernels ``reset_rows`` and ``undo_done``.

    Arrays are passed as rows of 32-bit words.
    """

    def reset_rows(given: Rows, n_envs: int) -> None:
        envs = _affected(given.done, given.force)
        low, high = given.reset_seed
        rows = rng.pool_row(given.episode[envs], envs, low, high, given.n_rows) if given.n_rows else envs
        given.target[envs] = given.source[rows]

    def undo_done(_done_: IntArray, _timestep_: IntArray, _episode_: IntArray, force: int, n_envs: int) -> None:
        envs = _affected(_done_, force)
        _episode_[envs] += 1
        _timestep_[envs] = 0
        _done_[envs] = 0

    return {"reset_rows": reset_rows, "undo_done": undo_done}


def _affected(done: IntArray, force: int) -> NDArray[np.intp]:
    return np.flatnonzero(np.ones_like(done) if force else done)

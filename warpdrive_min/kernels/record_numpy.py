"""Recording of a training step in NumPy: the rule of `record.cu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.arguments import Recording

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernel ``record``."""

    def record(given: Recording, n_envs: int) -> None:
        is_done = given.done != 0
        given.reward_row[...] = given.rewards
        given.terminated_row[...] = given.terminated != 0 if c.HAS_FLAGS else is_done
        given.truncated_row[...] = given.truncated != 0 if c.HAS_FLAGS else 0
        given.success_row[...] = (given.done == 2) | (c.HAS_FLAGS & (given.terminated != 0))
        given.running_return[...] += given.rewards
        given.running_steps[...] += 1
        given.finished_return[is_done] += given.running_return[is_done]
        given.finished_steps[is_done] += given.running_steps[is_done]
        given.finished_episodes[...] += is_done
        given.running_return[is_done] = 0
        given.running_steps[is_done] = 0
        if c.CUTS:
            envs = np.flatnonzero(given.truncated)
            kept = envs[given.n_cut[envs] < given.n_cuts]
            given.cuts[given.n_cut[kept], kept] = given.final_observations[kept]
            given.n_cut[envs] += 1
            lost = np.flatnonzero(given.n_cut > given.n_cuts)
            given.faults[lost, 0] = np.maximum(given.faults[lost, 0], given.n_cut[lost])
        if c.HAS_FLAGS:
            given.faults[:, 1] += is_done != ((given.terminated != 0) | (given.truncated != 0))

    return {"record": record}

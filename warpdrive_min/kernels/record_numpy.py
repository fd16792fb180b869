"""Recording of one step of training, in NumPy: the rule of `record.cu`, over all environments at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernel ``record``."""

    def record(
        rewards: FloatArray,
        _done_: IntArray,
        terminated: IntArray,
        truncated: IntArray,
        final_observations: FloatArray,
        reward_row: FloatArray,
        terminated_row: IntArray,
        truncated_row: IntArray,
        success_row: IntArray,
        running_return: FloatArray,
        running_steps: IntArray,
        finished_return: FloatArray,
        finished_steps: IntArray,
        finished_episodes: IntArray,
        cuts: FloatArray,
        n_cut: IntArray,
        n_cuts: int,
        n_envs: int,
    ) -> None:
        is_done = _done_ != 0
        reward_row[...] = rewards
        terminated_row[...] = terminated != 0 if c.HAS_FLAGS else is_done
        truncated_row[...] = truncated != 0 if c.HAS_FLAGS else 0
        success_row[...] = (_done_ == 2) | (c.HAS_FLAGS & (terminated != 0))
        running_return += rewards
        running_steps += 1
        finished_return[is_done] += running_return[is_done]
        finished_steps[is_done] += running_steps[is_done]
        finished_episodes += is_done
        running_return[is_done] = 0
        running_steps[is_done] = 0
        if c.CUTS:
            envs = np.flatnonzero(truncated)
            kept = envs[n_cut[envs] < n_cuts]
            cuts[n_cut[kept], kept] = final_observations[kept]
            n_cut[envs] += 1

    return {"record": record}

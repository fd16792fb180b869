"""Advantages and returns in NumPy: the rule of `scan.cu`, over all rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

ZERO: Final = np.float32(0)


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernel ``scan``; arrays arrive with one axis for the rows, which are (environment, agent) pairs."""

    def scan(
        rewards: FloatArray,
        values: FloatArray,
        terminated: IntArray,
        truncated: IntArray,
        last_values: FloatArray,
        cut_values: FloatArray,
        advantages: FloatArray,
        returns: FloatArray,
        gamma: float,
        lam: float,
        n_steps: int,
        n_cuts: int,
        n_rows: int,
    ) -> None:
        rate = np.float32(gamma)
        decay = rate * np.float32(lam)
        rows = np.arange(n_rows)
        env = rows // c.AGENTS_PER_ENV
        slot = (truncated != 0).sum(axis=0)[env]
        after, advantage = last_values, np.zeros(n_rows, np.float32)
        for step in reversed(range(n_steps)):
            is_terminated, is_truncated = terminated[step, env] != 0, truncated[step, env] != 0
            is_over = is_terminated | is_truncated
            follow = np.where(is_over, ZERO, after)
            if c.CUTS:
                slot = slot - is_truncated
                is_cut = is_truncated & ~is_terminated & (slot < n_cuts)
                follow[is_cut] = cut_values[slot[is_cut], rows[is_cut]]
            target = rewards[step] + rate * follow
            if c.VALUES and not c.COMPAT:
                after = values[step]
                advantage = (target - after) + decay * np.where(is_over, ZERO, advantage)
                advantages[step] = advantage
                returns[step] = advantage + after
            else:
                is_short = c.COMPAT and step == n_steps - 1
                after = np.where(is_over, target, values[step]) if is_short else target
                returns[step] = after
                if c.VALUES:
                    advantages[step] = after - values[step]

    return {"scan": scan}

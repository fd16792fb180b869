"""Advantages and returns in NumPy: the rule of `scan.cu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.arguments import Scan

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

ZERO: Final = np.float32(0)


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernel ``scan``.

    Arrays have one axis of rows, which are (environment, agent) pairs.
    """

    def scan(given: Scan) -> None:
        rate = np.float32(given.gamma)
        decay = rate * np.float32(given.lam)
        rows = np.arange(given.n_rows)
        env = rows // c.AGENTS_PER_ENV
        slot = (given.truncated != 0).sum(axis=0)[env]
        after, advantage = given.last_values, np.zeros(given.n_rows, np.float32)
        for step in reversed(range(given.n_steps)):
            is_terminated, is_truncated = given.terminated[step, env] != 0, given.truncated[step, env] != 0
            is_over = is_terminated | is_truncated
            follow = np.where(is_over, ZERO, after)
            if c.CUTS:
                slot = slot - is_truncated
                is_cut = is_truncated & ~is_terminated & (slot < given.n_cuts)
                follow[is_cut] = given.cut_values[slot[is_cut], rows[is_cut]]
            target = given.rewards[step] + rate * follow
            if c.VALUES and not c.COMPAT:
                after = given.values[step]
                advantage = (target - after) + decay * np.where(is_over, ZERO, advantage)
                given.advantages[step] = advantage
                given.returns[step] = advantage + after
            else:
                is_short = c.COMPAT and step == given.n_steps - 1
                after = np.where(is_over, target, given.values[step]) if is_short else target
                given.returns[step] = after
                if c.VALUES:
                    given.advantages[step] = after - given.values[step]

    return {"scan": scan}

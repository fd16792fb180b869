"""MountainCar in NumPy, batched. Phases: move, judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._common.single_numpy import kernels, whole
from .._common.valley_numpy import valley


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    roll, is_at_goal, draw_start = valley(c)

    def outcome(state: Any, action: Any) -> Any:
        """Return the next state, observation, reward and termination."""
        push = (action - 1).astype(np.float32) * c.FORCE
        s = roll(state, push)
        return s, s, -1, is_at_goal(s)

    return kernels(c, outcome, whole, draw_start)

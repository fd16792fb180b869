"""ContinuousMountainCar in NumPy, batched. Phases: move, judge."""

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
        s = roll(state, np.clip(action, c.MIN_ACTION, c.MAX_ACTION) * c.POWER)
        arrived = is_at_goal(s)
        reward = np.where(arrived, c.GOAL_REWARD, ZERO) - c.ACTION_COST * action * action
        return s, s, reward, arrived

    return kernels(c, outcome, whole, draw_start)


ZERO = np.float32(0)

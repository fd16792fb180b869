"""ContinuousMountainCar in Numba; one thread per environment.

Phases: move, judge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from warpdrive_min.kernels.core_numba import clip

from .._common.single_numba import kernels, whole
from .._common.valley_numba import valley

ZERO = np.float32(0)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    roll, is_at_goal, draw_start = valley(c)
    power, min_action, max_action = c.POWER, c.MIN_ACTION, c.MAX_ACTION
    goal_reward, action_cost = c.GOAL_REWARD, c.ACTION_COST

    @cuda.jit(device=True)
    def outcome(state, action):
        """Return the next state, observation, reward and termination."""
        s = roll(state, clip(action, min_action, max_action) * power)
        arrived = is_at_goal(s)
        reward = (goal_reward if arrived else ZERO) - action_cost * action * action
        return s, s, reward, arrived

    return kernels(c, 2, outcome, whole, draw_start)

"""MountainCar in Numba; one thread per environment. Phases: move, judge."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

from .._common.single_numba import kernels, whole
from .._common.valley_numba import valley

REWARD = np.float32(-1)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    roll, is_at_goal, draw_start = valley(c)
    force_size = c.FORCE

    @cuda.jit(device=True)
    def outcome(state, action):
        """Return the next state, observation, reward and termination."""
        push = float32(action - 1) * force_size
        s = roll(state, push)
        return s, s, REWARD, is_at_goal(s)

    return kernels(c, 2, outcome, whole, draw_start)

"""Valley of both mountain cars in Numba: motion, goal and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from warpdrive_min.kernels.core_numba import clip, maths, uniform

ZERO, THREE = np.float32(0), np.float32(3)


Function = Callable[..., Any]


def valley(c: Any) -> tuple[Function, Function, Function]:
    """Return functions that move the car, test the goal and draw a start.

    They are closed over the constants.
    """
    _, cos = maths(c.EXACT)
    gravity, max_speed, min_position, max_position = c.GRAVITY, c.MAX_SPEED, c.MIN_POSITION, c.MAX_POSITION
    goal_position, goal_velocity = c.GOAL_POSITION, c.GOAL_VELOCITY
    start_offset, start_width = c.START_OFFSET, c.START_WIDTH

    @cuda.jit(device=True)
    def roll(state, push):
        """Advance by one step with the motor's push in m/step^2."""
        x, v = state
        v = clip(v + (push - gravity * cos(THREE * x)), -max_speed, max_speed)
        x = clip(x + v, min_position, max_position)
        return x, (ZERO if x == min_position and v < ZERO else v)

    @cuda.jit(device=True)
    def is_at_goal(state):
        return state[0] >= goal_position and state[1] >= goal_velocity

    @cuda.jit(device=True)
    def draw_start(words):
        # Add first: in the other order, contraction to FMA would change the start.
        return (uniform(words[0]) + start_offset) * start_width, ZERO

    return roll, is_at_goal, draw_start

"""Valley of both mountain cars in NumPy, batched: motion, goal and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths
from warpdrive_min.rng import uniform

Function = Callable[..., Any]


def valley(c: Any) -> tuple[Function, Function, Function]:
    """Return functions that move the car, test the goal and draw a start.

    They are closed over the constants.
    """
    _, cos = maths(c.EXACT)

    def roll(state: Any, push: Any) -> Any:
        """Advance by one step with the motor's push in m/step^2."""
        x, v = state
        v = np.clip(v + (push - c.GRAVITY * cos(THREE * x)), -c.MAX_SPEED, c.MAX_SPEED)
        x = np.clip(x + v, c.MIN_POSITION, c.MAX_POSITION)
        return x, np.where((x == c.MIN_POSITION) & (v < 0), ZERO, v)

    def is_at_goal(state: Any) -> Any:
        return (state[0] >= c.GOAL_POSITION) & (state[1] >= c.GOAL_VELOCITY)

    def draw_start(words: Any) -> Any:
        # Add first: in the other order, contraction to FMA would change the start.
        return (uniform(words[0]) + c.START_OFFSET) * c.START_WIDTH, ZERO

    return roll, is_at_goal, draw_start


ZERO, THREE = np.float32(0), np.float32(3)

"""Acrobot in NumPy, batched. Phases: move, observe, judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths, principal

from .._common.single_numpy import kernels, within


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)

    def outcome(state: Any, action: Any) -> Any:
        """Return the next state, observation, reward and termination."""
        s = move(state, action)
        seen = observe(s)
        reached = height(seen) > c.GOAL_HEIGHT
        return s, seen, np.where(reached, ZERO, -ONE), reached

    def move(state: Any, action: Any) -> Any:
        """Advance by one Runge-Kutta step."""
        torque = (action - 1).astype(np.float32) * c.TORQUE
        slope_1 = slope(state, torque)
        slope_2 = slope(state + c.HALF_STEP * slope_1, torque)
        slope_3 = slope(state + c.HALF_STEP * slope_2, torque)
        slope_4 = slope(state + c.TIME_STEP * slope_3, torque)
        angle_1, angle_2, velocity_1, velocity_2 = state + c.SIXTH_STEP * (
            slope_1 + TWO * slope_2 + TWO * slope_3 + slope_4
        )
        return (
            principal(angle_1),
            principal(angle_2),
            np.clip(velocity_1, -c.MAX_VELOCITY_1, c.MAX_VELOCITY_1),
            np.clip(velocity_2, -c.MAX_VELOCITY_2, c.MAX_VELOCITY_2),
        )

    def slope(state: Any, torque: Any) -> Any:
        """Return the time derivative of the state by the book's equations.

        The book's cos(x - pi/2) is sin x.
        """
        angle_1, angle_2, velocity_1, velocity_2 = state
        sin_2, cos_2 = sin(angle_2), cos(angle_2)
        d_1 = c.INERTIA_1 + TWO * c.COUPLING * cos_2
        d_2 = c.INERTIA_2 + c.COUPLING * cos_2
        ratio = d_2 / d_1
        phi_2 = c.WEIGHT_2 * sin(angle_1 + angle_2)
        swing = c.COUPLING * velocity_2 * (velocity_2 + TWO * velocity_1) * sin_2
        phi_1 = c.WEIGHT_1 * sin(angle_1) + phi_2 - swing
        pull = c.COUPLING * velocity_1 * velocity_1 * sin_2
        acc_2 = (torque + ratio * phi_1 - pull - phi_2) / (c.INERTIA_2 - d_2 * ratio)
        acc_1 = -(d_2 * acc_2 + phi_1) / d_1
        return np.stack([velocity_1, velocity_2, acc_1, acc_2])

    def observe(state: Any) -> Any:
        angle_1, angle_2, velocity_1, velocity_2 = state
        return cos(angle_1), sin(angle_1), cos(angle_2), sin(angle_2), velocity_1, velocity_2

    def height(seen: Any) -> Any:
        """Return the height of the tip above the fixed joint."""
        cos_1, sin_1, cos_2, sin_2, _, _ = seen
        return -c.LENGTH_1 * cos_1 - c.LENGTH_2 * (cos_1 * cos_2 - sin_1 * sin_2)

    return kernels(c, outcome, observe, within(c.START_RANGE))


ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)

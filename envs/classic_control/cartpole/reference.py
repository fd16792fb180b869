"""CartPole in NumPy, batched. Phases: move, judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths

from .._common.single_numpy import kernels, whole, within


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)

    def outcome(state: Any, action: Any) -> Any:
        """Return the next state, observation, reward and termination."""
        s = move(state, action)
        failed = (np.abs(s[0]) > c.MAX_POSITION) | (np.abs(s[2]) > c.MAX_ANGLE)
        return s, s, 1, failed

    def move(state: Any, action: Any) -> Any:
        """Advance by one explicit Euler step."""
        x, x_dot, theta, theta_dot = state
        force = np.where(action == 1, c.FORCE, -c.FORCE)
        sin_theta, cos_theta = sin(theta), cos(theta)
        push = (force + c.POLE_MASS_LENGTH * theta_dot * theta_dot * sin_theta) / c.TOTAL_MASS
        inertia = c.HALF_LENGTH * (FOUR_THIRDS - c.POLE_MASS * cos_theta * cos_theta / c.TOTAL_MASS)
        theta_acc = (c.GRAVITY * sin_theta - cos_theta * push) / inertia
        x_acc = push - c.POLE_MASS_LENGTH * theta_acc * cos_theta / c.TOTAL_MASS
        return (
            x + c.TIME_STEP * x_dot,
            x_dot + c.TIME_STEP * x_acc,
            theta + c.TIME_STEP * theta_dot,
            theta_dot + c.TIME_STEP * theta_acc,
        )

    return kernels(c, outcome, whole, within(c.START_RANGE))


FOUR_THIRDS = np.float32(4 / 3)

"""CartPole in Numba; one thread per environment. Phases: move, judge."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from warpdrive_min.kernels.core_numba import quotient_of, sincos_of

from .._common.single_numba import kernels, whole, within

ONE, FOUR_THIRDS = np.float32(1), np.float32(4 / 3)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    sincos, quotient = sincos_of(c.EXACT), quotient_of(c.EXACT)
    gravity, force_size, time_step = c.GRAVITY, c.FORCE, c.TIME_STEP
    pole_mass, total_mass, pole_mass_length, half_length = c.POLE_MASS, c.TOTAL_MASS, c.POLE_MASS_LENGTH, c.HALF_LENGTH
    max_angle, max_position = c.MAX_ANGLE, c.MAX_POSITION

    @cuda.jit(device=True)
    def outcome(state, action):
        """Return the next state, observation, reward and termination."""
        s = move(state, action)
        failed = abs(s[0]) > max_position or abs(s[2]) > max_angle
        return s, s, ONE, failed

    @cuda.jit(device=True)
    def move(state, action):
        """Advance by one explicit Euler step."""
        x, x_dot, theta, theta_dot = state
        sin_theta, cos_theta = sincos(theta)
        force = force_size if action == 1 else -force_size
        push = quotient(force + pole_mass_length * theta_dot * theta_dot * sin_theta, total_mass)
        inertia = half_length * (FOUR_THIRDS - quotient(pole_mass * cos_theta * cos_theta, total_mass))
        theta_acc = quotient(gravity * sin_theta - cos_theta * push, inertia)
        x_acc = push - quotient(pole_mass_length * theta_acc * cos_theta, total_mass)
        return (
            x + time_step * x_dot,
            x_dot + time_step * x_acc,
            theta + time_step * theta_dot,
            theta_dot + time_step * theta_acc,
        )

    return kernels(c, 4, outcome, whole, within(c.START_RANGE))

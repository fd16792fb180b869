"""Acrobot in Numba; one thread per environment. Phases: move, observe, judge."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

from warpdrive_min.kernels.core_numba import clip, maths, principal, sincos_of

from .._common.single_numba import kernels, within

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    sin, sincos = maths(c.EXACT).sin, sincos_of(c.EXACT)
    inertia_1, inertia_2, coupling = c.INERTIA_1, c.INERTIA_2, c.COUPLING
    weight_1, weight_2, torque_size = c.WEIGHT_1, c.WEIGHT_2, c.TORQUE
    length_1, length_2, goal_height = c.LENGTH_1, c.LENGTH_2, c.GOAL_HEIGHT
    max_velocity_1, max_velocity_2 = c.MAX_VELOCITY_1, c.MAX_VELOCITY_2
    time_step, half_step, sixth_step = c.TIME_STEP, c.HALF_STEP, c.SIXTH_STEP

    @cuda.jit(device=True)
    def outcome(state, action):
        """Return the next state, observation, reward and termination."""
        s = move(state, action)
        seen = observe(s)
        reached = height(seen) > goal_height
        return s, seen, ZERO if reached else -ONE, reached

    @cuda.jit(device=True)
    def slope(state, torque):
        """Return the time derivative of the state by the book's equations.

        The book's cos(x - pi/2) is sin x.
        """
        angle_1, angle_2, velocity_1, velocity_2 = state
        sin_2, cos_2 = sincos(angle_2)
        d_1 = inertia_1 + TWO * coupling * cos_2
        d_2 = inertia_2 + coupling * cos_2
        ratio = d_2 / d_1
        phi_2 = weight_2 * sin(angle_1 + angle_2)
        swing = coupling * velocity_2 * (velocity_2 + TWO * velocity_1) * sin_2
        phi_1 = weight_1 * sin(angle_1) + phi_2 - swing
        pull = coupling * velocity_1 * velocity_1 * sin_2
        acc_2 = (torque + ratio * phi_1 - pull - phi_2) / (inertia_2 - d_2 * ratio)
        acc_1 = -(d_2 * acc_2 + phi_1) / d_1
        return velocity_1, velocity_2, acc_1, acc_2

    @cuda.jit(device=True)
    def advance(state, by, time):
        return state[0] + time * by[0], state[1] + time * by[1], state[2] + time * by[2], state[3] + time * by[3]

    @cuda.jit(device=True)
    def move(state, action):
        """Advance by one Runge-Kutta step."""
        torque = float32(action - 1) * torque_size
        slope_1 = slope(state, torque)
        slope_2 = slope(advance(state, slope_1, half_step), torque)
        slope_3 = slope(advance(state, slope_2, half_step), torque)
        slope_4 = slope(advance(state, slope_3, time_step), torque)
        total = advance(advance(advance(slope_1, slope_2, TWO), slope_3, TWO), slope_4, ONE)
        angle_1, angle_2, velocity_1, velocity_2 = advance(state, total, sixth_step)
        return (
            principal(angle_1),
            principal(angle_2),
            clip(velocity_1, -max_velocity_1, max_velocity_1),
            clip(velocity_2, -max_velocity_2, max_velocity_2),
        )

    @cuda.jit(device=True)
    def observe(state):
        angle_1, angle_2, velocity_1, velocity_2 = state
        sin_1, cos_1 = sincos(angle_1)
        sin_2, cos_2 = sincos(angle_2)
        return cos_1, sin_1, cos_2, sin_2, velocity_1, velocity_2

    @cuda.jit(device=True)
    def height(seen):
        """Return the height of the tip above the fixed joint."""
        return -length_1 * seen[0] - length_2 * (seen[0] * seen[2] - seen[1] * seen[3])

    return kernels(c, 4, outcome, observe, within(c.START_RANGE))

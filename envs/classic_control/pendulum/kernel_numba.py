"""Pendulum in Numba; one thread per environment. Phases: score, move."""

from __future__ import annotations

from typing import Any

from numba import cuda

from warpdrive_min.kernels.core_numba import clip, maths, principal, sincos_of

from .._common.single_numba import kernels, symmetric


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    sin, sincos = maths(c.EXACT).sin, sincos_of(c.EXACT)
    gravity_gain, torque_gain, time_step = c.GRAVITY_GAIN, c.TORQUE_GAIN, c.TIME_STEP
    max_velocity, max_torque = c.MAX_VELOCITY, c.MAX_TORQUE
    velocity_cost, torque_cost = c.VELOCITY_COST, c.TORQUE_COST
    start_angle, start_velocity = c.START_ANGLE, c.START_VELOCITY

    @cuda.jit(device=True)
    def outcome(state, action):
        """Return the next state, observation, reward and termination."""
        angle, velocity = state
        angle = principal(angle)
        torque = clip(action, -max_torque, max_torque)
        reward = score(angle, velocity, torque)
        s = move(angle, velocity, torque)
        return s, observe(s), reward, False

    @cuda.jit(device=True)
    def move(angle, velocity, torque):
        """Advance by one semi-implicit Euler step."""
        pushed = velocity + (gravity_gain * sin(angle) + torque_gain * torque) * time_step
        moved = clip(pushed, -max_velocity, max_velocity)
        return angle + time_step * moved, moved

    @cuda.jit(device=True)
    def score(angle, velocity, torque):
        """Return the reward of a step from the state before it."""
        return -(angle * angle + velocity_cost * velocity * velocity + torque_cost * torque * torque)

    @cuda.jit(device=True)
    def observe(state):
        angle, velocity = state
        sine, cosine = sincos(angle)
        return cosine, sine, velocity

    @cuda.jit(device=True)
    def draw_start(words):
        return symmetric(words[0], start_angle), symmetric(words[1], start_velocity)

    return kernels(c, 2, outcome, observe, draw_start)

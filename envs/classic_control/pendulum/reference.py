"""Pendulum in NumPy, batched. Phases: score, move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths, principal

from .._common.single_numpy import kernels, symmetric


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)

    def outcome(state: Any, action: Any) -> Any:
        """Return the next state, observation, reward and termination."""
        angle, velocity = state
        angle = principal(angle)
        torque = np.clip(action, -c.MAX_TORQUE, c.MAX_TORQUE)
        reward = score(angle, velocity, torque)
        s = move(angle, velocity, torque)
        return s, observe(s), reward, False

    def move(angle: Any, velocity: Any, torque: Any) -> Any:
        """Advance by one semi-implicit Euler step."""
        pushed = velocity + (c.GRAVITY_GAIN * sin(angle) + c.TORQUE_GAIN * torque) * c.TIME_STEP
        moved = np.clip(pushed, -c.MAX_VELOCITY, c.MAX_VELOCITY)
        return angle + c.TIME_STEP * moved, moved

    def score(angle: Any, velocity: Any, torque: Any) -> Any:
        """Return the reward of a step from the state before it."""
        return -(angle * angle + c.VELOCITY_COST * velocity * velocity + c.TORQUE_COST * torque * torque)

    def observe(state: Any) -> Any:
        angle, velocity = state
        return cos(angle), sin(angle), velocity

    def draw_start(words: Any) -> Any:
        return symmetric(words[0], c.START_ANGLE), symmetric(words[1], c.START_VELOCITY)

    return kernels(c, outcome, observe, draw_start)

"""The valley of both mountain cars in NumPy, over all environments at once: how a car rolls, arrives and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths
from warpdrive_min.rng import STREAM_START, philox, pool_row, uniform


class Valley(NamedTuple):
    """The functions of one valley."""

    roll: Callable[..., Any]
    is_at_goal: Callable[..., Any]
    start: Callable[..., None]
    reset: Callable[..., None]


def valley(c: Any) -> Valley:
    """Close the functions over the constants."""
    _, cos = maths(c.EXACT)

    def roll(state: Any, push: Any) -> Any:
        """Advance ``state`` (n_envs, 2) by one step with the motor's push in m/step^2; returns x and v."""
        x, v = np.ascontiguousarray(state.T)
        v = np.clip(v + (push - c.GRAVITY * cos(THREE * x)), -c.MAX_SPEED, c.MAX_SPEED)
        x = np.clip(x + v, c.MIN_POSITION, c.MAX_POSITION)
        return x, np.where((x == c.MIN_POSITION) & (v < 0), ZERO, v)

    def is_at_goal(x: Any, v: Any) -> Any:
        return (x >= c.GOAL_POSITION) & (v >= c.GOAL_VELOCITY)

    def start(envs: Any, state: Any, _episode_: Any, _reset_seed_: Any, state_reset_pool: Any) -> None:
        """Put the named environments at the start of their next episode."""
        episode, (low, high) = _episode_[envs], _reset_seed_
        if c.RESET_POOL_SIZE >= 2:
            state[envs] = state_reset_pool[pool_row(episode, envs, low, high, c.RESET_POOL_SIZE)]
        elif c.RESET_POOL_SIZE == 1:
            state[envs] = state_reset_pool[0]
        else:
            word = philox(episode, envs, 0, STREAM_START, low, high)[0]
            # The sum goes first: the other way round, contraction to FMA would change the start.
            state[envs, 0, 0] = (uniform(word) + c.START_OFFSET) * c.START_WIDTH
            state[envs, 0, 1] = 0
        _episode_[envs] += 1

    def reset(
        state: Any,
        observations: Any,
        _timestep_: Any,
        _done_: Any,
        _episode_: Any,
        _reset_seed_: Any,
        state_reset_pool: Any,
        force: int,
    ) -> None:
        """Restart the finished environments, or all."""
        envs = np.flatnonzero(_done_ | force)
        start(envs, state, _episode_, _reset_seed_, state_reset_pool)
        observations[envs] = state[envs]
        _timestep_[envs] = 0
        _done_[envs] = 0

    return Valley(roll, is_at_goal, start, reset)


ZERO, THREE = np.float32(0), np.float32(3)

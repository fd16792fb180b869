"""CartPole in NumPy, over all environments at once. Phases: move, judge, start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths
from warpdrive_min.rng import STREAM_START, philox, pool_row, uniform


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)

    def move(state: Any, action: Any) -> Any:
        """Advance by one explicit Euler step; returns the four components, each (n_envs,)."""
        x, x_dot, theta, theta_dot = np.ascontiguousarray(state.T)
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

    def start(envs: Any, state: Any, _episode_: Any, _reset_seed_: Any, state_reset_pool: Any) -> None:
        """Put the named environments at the start of their next episode."""
        episode, (low, high) = _episode_[envs], _reset_seed_
        if c.RESET_POOL_SIZE >= 2:
            state[envs] = state_reset_pool[pool_row(episode, envs, low, high, c.RESET_POOL_SIZE)]
        elif c.RESET_POOL_SIZE == 1:
            state[envs] = state_reset_pool[0]
        else:
            words = philox(episode, envs, 0, STREAM_START, low, high)
            for index, word in enumerate(words):
                state[envs, 0, index] = (uniform(word) * TWO - ONE) * c.START_RANGE
        _episode_[envs] += 1

    def step(
        state: Any,
        sampled_actions: Any,
        observations: Any,
        final_observations: Any,
        rewards: Any,
        _timestep_: Any,
        _done_: Any,
        terminated: Any,
        truncated: Any,
        _episode_: Any,
        _reset_seed_: Any,
        state_reset_pool: Any,
    ) -> None:
        """Step every environment."""
        for index, component in enumerate(move(state[:, 0], sampled_actions[:, 0, 0])):
            state[:, 0, index] = component
            observations[:, 0, index] = component
        x, theta = state[:, 0, 0], state[:, 0, 2]
        _timestep_ += 1
        terminated[:] = (np.abs(x) > c.MAX_POSITION) | (np.abs(theta) > c.MAX_ANGLE)
        truncated[:] = (_timestep_ >= c.EPISODE_LENGTH) & (terminated == 0)
        _done_[:] = terminated | truncated
        rewards[:] = 1
        if c.AUTO_RESET and _done_.any():
            envs = np.flatnonzero(_done_)
            final_observations[envs] = observations[envs]
            start(envs, state, _episode_, _reset_seed_, state_reset_pool)
            observations[envs] = state[envs]
            _timestep_[envs] = 0

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

    return {"step": step, "reset": reset}


ONE, TWO, FOUR_THIRDS = np.float32(1), np.float32(2), np.float32(4 / 3)

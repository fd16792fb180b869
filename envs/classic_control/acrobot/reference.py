"""Acrobot in NumPy, over all environments at once. Phases: move, observe, judge, start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths, wrap
from warpdrive_min.rng import STREAM_START, philox, pool_row, uniform


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)

    def move(state: Any, action: Any) -> Any:
        """Advance ``state``, ``(4, n_envs)``, by one Runge-Kutta step."""
        torque = (action - 1).astype(np.float32) * c.TORQUE
        slope_1 = slope(state, torque)
        slope_2 = slope(state + c.HALF_STEP * slope_1, torque)
        slope_3 = slope(state + c.HALF_STEP * slope_2, torque)
        slope_4 = slope(state + c.TIME_STEP * slope_3, torque)
        angle_1, angle_2, velocity_1, velocity_2 = state + c.SIXTH_STEP * (
            slope_1 + TWO * slope_2 + TWO * slope_3 + slope_4
        )
        return np.stack(
            [
                principal(angle_1),
                principal(angle_2),
                np.clip(velocity_1, -c.MAX_VELOCITY_1, c.MAX_VELOCITY_1),
                np.clip(velocity_2, -c.MAX_VELOCITY_2, c.MAX_VELOCITY_2),
            ]
        )

    def slope(state: Any, torque: Any) -> Any:
        """Return the derivative of the state by time, by the equations of the book; its cos(x - pi/2) is sin x."""
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

    def principal(angle: Any) -> Any:
        """Return the same angle within +-pi; those that are there already keep their bits."""
        return np.where(np.abs(angle) <= c.PI, angle, wrap(angle + c.PI, c.TWO_PI) - c.PI)

    def observe(state: Any) -> Any:
        """Return what is seen of states ``(n, 1, 4)``, ``(n, 1, 6)``."""
        angles = state[..., :2]
        seen = np.empty((*state.shape[:-1], 6), np.float32)
        seen[..., 0:4:2], seen[..., 1:4:2], seen[..., 4:] = cos(angles), sin(angles), state[..., 2:]
        return seen

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
        state[:, 0] = move(np.ascontiguousarray(state[:, 0].T), sampled_actions[:, 0, 0]).T
        observations[:] = observe(state)
        cos_1, sin_1, cos_2, sin_2 = observations[:, 0, :4].T
        height = -c.LENGTH_1 * cos_1 - c.LENGTH_2 * (cos_1 * cos_2 - sin_1 * sin_2)
        _timestep_ += 1
        terminated[:] = height > c.GOAL_HEIGHT
        truncated[:] = (_timestep_ >= c.EPISODE_LENGTH) & (terminated == 0)
        _done_[:] = terminated | truncated
        rewards[:, 0] = terminated - 1
        if c.AUTO_RESET and _done_.any():
            envs = np.flatnonzero(_done_)
            final_observations[envs] = observations[envs]
            start(envs, state, _episode_, _reset_seed_, state_reset_pool)
            observations[envs] = observe(state[envs])
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
        observations[envs] = observe(state[envs])
        _timestep_[envs] = 0
        _done_[envs] = 0

    return {"step": step, "reset": reset}


ONE, TWO = np.float32(1), np.float32(2)

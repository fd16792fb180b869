"""Pendulum in NumPy, over all environments at once. Phases: move, score, observe, start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.maths_numpy import maths, wrap
from warpdrive_min.rng import STREAM_START, philox, pool_row, uniform


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)

    def principal(angle: Any) -> Any:
        """Return the same angle within +-pi; those that are there already keep their bits."""
        return np.where(np.abs(angle) <= c.PI, angle, wrap(angle + c.PI, c.TWO_PI) - c.PI)

    def move(angle: Any, velocity: Any, torque: Any) -> Any:
        """Advance by one semi-implicit Euler step; returns angle and velocity, each (n_envs,)."""
        pushed = velocity + (c.GRAVITY_GAIN * sin(angle) + c.TORQUE_GAIN * torque) * c.TIME_STEP
        velocity = np.clip(pushed, -c.MAX_VELOCITY, c.MAX_VELOCITY)
        return angle + c.TIME_STEP * velocity, velocity

    def score(angle: Any, velocity: Any, torque: Any) -> Any:
        """Return the reward of a step from the state before it."""
        return -(angle * angle + c.VELOCITY_COST * velocity * velocity + c.TORQUE_COST * torque * torque)

    def observe(state: Any) -> Any:
        """Return what is seen of states ``(n, 1, 2)``, ``(n, 1, 3)``."""
        angle, velocity = state[..., 0], state[..., 1]
        return np.stack([cos(angle), sin(angle), velocity], axis=-1)

    def start(envs: Any, state: Any, _episode_: Any, _reset_seed_: Any, state_reset_pool: Any) -> None:
        """Put the named environments at the start of their next episode."""
        episode, (low, high) = _episode_[envs], _reset_seed_
        if c.RESET_POOL_SIZE >= 2:
            state[envs] = state_reset_pool[pool_row(episode, envs, low, high, c.RESET_POOL_SIZE)]
        elif c.RESET_POOL_SIZE == 1:
            state[envs] = state_reset_pool[0]
        else:
            words = philox(episode, envs, 0, STREAM_START, low, high)
            state[envs, 0, 0] = (uniform(words[0]) * TWO - ONE) * c.START_ANGLE
            state[envs, 0, 1] = (uniform(words[1]) * TWO - ONE) * c.START_VELOCITY
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
        angle, velocity = principal(state[:, 0, 0]), np.ascontiguousarray(state[:, 0, 1])
        torque = np.clip(sampled_actions[:, 0, 0], -c.MAX_TORQUE, c.MAX_TORQUE)
        rewards[:, 0] = score(angle, velocity, torque)
        state[:, 0, 0], state[:, 0, 1] = move(angle, velocity, torque)
        observations[:] = observe(state)
        _timestep_ += 1
        terminated[:] = 0
        truncated[:] = _timestep_ >= c.EPISODE_LENGTH
        _done_[:] = truncated
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

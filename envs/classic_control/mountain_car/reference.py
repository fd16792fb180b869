"""MountainCar in NumPy, over all environments at once. Phases: move, judge, start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from envs.classic_control._common.valley_numpy import valley


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants."""
    roll, is_at_goal, start, reset = valley(c)

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
        push = (sampled_actions[:, 0, 0] - 1).astype(np.float32) * c.FORCE
        x, v = roll(state[:, 0], push)
        for index, component in enumerate((x, v)):
            state[:, 0, index] = component
            observations[:, 0, index] = component
        _timestep_ += 1
        terminated[:] = is_at_goal(x, v)
        truncated[:] = (_timestep_ >= c.EPISODE_LENGTH) & (terminated == 0)
        _done_[:] = terminated | truncated
        rewards[:] = -1
        if c.AUTO_RESET and _done_.any():
            envs = np.flatnonzero(_done_)
            final_observations[envs] = observations[envs]
            start(envs, state, _episode_, _reset_seed_, state_reset_pool)
            observations[envs] = state[envs]
            _timestep_[envs] = 0

    return {"step": step, "reset": reset}

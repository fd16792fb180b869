"""Lookout in NumPy. Phases: count, judge, restart, show."""

from __future__ import annotations

from typing import Any

import numpy as np


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""
    agents = np.arange(c.N_AGENTS)

    def show(rows: Any, time: Any, total: Any, numbers: Any, hour: Any, plan: Any, mask: Any) -> None:
        numbers[rows] = np.stack([np.broadcast_to(time[:, None], total.shape), total], -1)[rows]
        hour[rows] = np.broadcast_to(time[:, None] / 2, total.shape)[rows]
        plan[rows] = ((10 * agents + total)[..., None, None] + np.arange(6).reshape(2, 3))[rows]
        forbidden = (time[:, None] + agents) % mask.shape[-1]
        mask[rows] = (forbidden[..., None] != np.arange(mask.shape[-1]))[rows]

    def step(
        total: Any,
        sampled_actions: Any,
        rewards: Any,
        observations_numbers: Any,
        observations_hour: Any,
        observations_map: Any,
        observations_action_mask: Any,
        final_observations_numbers: Any,
        final_observations_hour: Any,
        final_observations_map: Any,
        final_observations_action_mask: Any,
        terminated: Any,
        truncated: Any,
        _timestep_: Any,
        _done_: Any,
    ) -> None:
        seen = observations_numbers, observations_hour, observations_map, observations_action_mask
        last = (
            final_observations_numbers,
            final_observations_hour,
            final_observations_map,
            final_observations_action_mask,
        )
        action = sampled_actions[..., 0]
        is_allowed = np.take_along_axis(observations_action_mask, sampled_actions, -1)[..., 0] != 0
        rewards[:] = np.where(is_allowed, action, -100)
        total += action
        _timestep_ += 1
        terminated[:] = 0
        truncated[:] = _timestep_ >= c.EPISODE_LENGTH
        _done_[:] = truncated
        if c.AUTO_RESET:
            show(_done_ != 0, _timestep_, total, *last)
            total[_done_ != 0] = 0
            _timestep_[_done_ != 0] = 0
        show(slice(None), _timestep_, total, *seen)

    def reset(
        total: Any,
        observations_numbers: Any,
        observations_hour: Any,
        observations_map: Any,
        observations_action_mask: Any,
        _timestep_: Any,
        _done_: Any,
        force: int,
    ) -> None:
        rows = (_done_ != 0) | (force != 0)
        total[rows] = _timestep_[rows] = 0
        _done_[rows] = 0
        seen = observations_numbers, observations_hour, observations_map, observations_action_mask
        show(rows, _timestep_, total, *seen)

    return {"step": step, "reset": reset}

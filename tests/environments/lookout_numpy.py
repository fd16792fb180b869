"""Lookout in NumPy. Phases: count, judge, restart, show."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.environments.lookout import LastParts, Parts
from warpdrive_min.kernels.arrays import Clock


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
        parts: Parts,
        last: LastParts,
        terminated: Any,
        truncated: Any,
        clock: Clock,
    ) -> None:
        action = sampled_actions[..., 0]
        is_allowed = np.take_along_axis(parts.observations_action_mask, sampled_actions, -1)[..., 0] != 0
        rewards[:] = np.where(is_allowed, action, -100)
        total += action
        clock.timestep[:] += 1
        terminated[:] = 0
        truncated[:] = clock.done[:] = clock.timestep >= c.EPISODE_LENGTH
        if c.AUTO_RESET:
            show(clock.done != 0, clock.timestep, total, *last)
            total[clock.done != 0] = 0
            clock.timestep[clock.done != 0] = 0
        show(slice(None), clock.timestep, total, *parts)

    def reset(total: Any, parts: Parts, clock: Clock, force: int) -> None:
        rows = (clock.done != 0) | (force != 0)
        total[rows] = clock.timestep[rows] = 0
        clock.done[:] = 0
        show(rows, clock.timestep, total, *parts)

    return {"step": step, "reset": reset}

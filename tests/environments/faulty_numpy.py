"""Faulty in NumPy. Phases: count, judge, show, restart."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.kernels.arrays import Clock


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""

    def seen(time: Any, age: Any) -> Any:
        return np.stack([time, age / 64], -1).astype(np.float32)[:, None].repeat(c.N_AGENTS, 1)

    def step(
        fault: int,
        fault_step: int,
        age: Any,
        sampled_actions: Any,
        observations: Any,
        final_observations: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        clock: Clock,
        n_envs: int,
    ) -> None:
        age += 1
        clock.timestep[:] += 1
        terminated[:] = 0
        is_over = clock.timestep >= c.CUT_AFTER
        truncated[:] = is_over
        clock.done[:] = 0 if fault == 6 else is_over
        now = seen(clock.timestep, age)
        if fault != 5:
            final_observations[is_over] = now[is_over]
        if c.AUTO_RESET:
            clock.timestep[is_over] = 0
            now = seen(clock.timestep, age)
        if fault == 7:
            clock.timestep[:] = 1
        if fault == 4:
            now[:, 1] = observations[:, 1]
        observations[:] = now
        rewards[:] = 1
        for env in range(c.FAULT_ENV, n_envs, 1000):
            if age[env] == fault_step:
                arrays = {1: observations, 2: rewards, 3: final_observations, 8: observations}
                if fault in arrays:
                    arrays[fault][env, c.FAULT_AGENT] = np.inf if fault == 8 else np.nan

    def reset(age: Any, observations: Any, clock: Clock, force: int) -> None:
        rows = (clock.done != 0) | (force != 0)
        clock.timestep[rows] = 0
        clock.done[:] = 0
        observations[rows] = seen(clock.timestep, age)[rows]

    return {"step": step, "reset": reset}

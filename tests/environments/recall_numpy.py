"""Recall in NumPy. Phases: pay, judge, restart, show."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.kernels.arrays import Clock, Results


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""

    def restart(is_over: Any, cues: Any, clock: Clock) -> None:
        envs, agents = np.ogrid[: len(cues), : cues.shape[1]]
        drawn = (clock.episode[:, None] * 40503 + envs * 25717 + agents * 7919 + 11) * 69069 >> 9 & 1
        cues[is_over] = drawn[is_over]
        clock.timestep[is_over] = 0
        clock.episode[:] += is_over

    def show(observations: Any, cues: Any, timestep: Any) -> None:
        is_first = (timestep == 0)[:, None, None]
        observations[:] = is_first & (cues[..., None] == np.arange(observations.shape[-1]))

    def step(sampled_actions: Any, cues: Any, results: Results, clock: Clock) -> None:
        results.rewards[:] = (sampled_actions[..., 0] == cues) & (clock.timestep > 0)[:, None]
        clock.timestep[:] += 1
        results.terminated[:] = 0
        results.truncated[:] = clock.done[:] = clock.timestep >= c.EPISODE_LENGTH
        if c.AUTO_RESET:
            show(results.final_observations, cues, clock.timestep)
            restart(clock.done != 0, cues, clock)
        show(results.observations, cues, clock.timestep)

    def reset(observations: Any, cues: Any, clock: Clock, force: int) -> None:
        restart((clock.done != 0) | (force != 0), cues, clock)
        clock.done[:] = 0
        show(observations, cues, clock.timestep)

    return {"step": step, "reset": reset}

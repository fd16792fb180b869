"""Recall in NumPy. Phases: pay, judge, restart, show."""

from __future__ import annotations

from typing import Any

import numpy as np


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""

    def restart(is_over: Any, cues: Any, timestep: Any, episode: Any) -> None:
        envs, agents = np.ogrid[: len(cues), : cues.shape[1]]
        drawn = (episode[:, None] * 40503 + envs * 25717 + agents * 7919 + 11) * 69069 >> 9 & 1
        cues[is_over] = drawn[is_over]
        timestep[is_over] = 0
        episode += is_over

    def show(observations: Any, cues: Any, timestep: Any) -> None:
        is_first = (timestep == 0)[:, None, None]
        observations[:] = is_first & (cues[..., None] == np.arange(observations.shape[-1]))

    def step(
        sampled_actions: Any,
        rewards: Any,
        observations: Any,
        final_observations: Any,
        cues: Any,
        terminated: Any,
        truncated: Any,
        _timestep_: Any,
        _done_: Any,
        _episode_: Any,
    ) -> None:
        rewards[:] = (sampled_actions[..., 0] == cues) & (_timestep_ > 0)[:, None]
        _timestep_ += 1
        terminated[:] = 0
        truncated[:] = _done_[:] = _timestep_ >= c.EPISODE_LENGTH
        if c.AUTO_RESET:
            show(final_observations, cues, _timestep_)
            restart(_done_ != 0, cues, _timestep_, _episode_)
        show(observations, cues, _timestep_)

    def reset(observations: Any, cues: Any, _timestep_: Any, _done_: Any, _episode_: Any, force: int) -> None:
        restart((_done_ != 0) | (force != 0), cues, _timestep_, _episode_)
        _done_[(_done_ != 0) | (force != 0)] = 0
        show(observations, cues, _timestep_)

    return {"step": step, "reset": reset}

"""Clock in NumPy: pay, judge, restart, show.

A pair of kernels for each set of arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from warpdrive_min.kernels.arrays import Clock, Results


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""

    def pay(actions: Any, rewards: Any, timestep: Any, agents: Any, mask: Any = None) -> None:
        rewards[:] = 10 * agents + actions[..., 0] + np.float32(c.BONUS)
        if mask is not None:
            rewards[np.take_along_axis(mask, actions, -1)[..., 0] == 0] = c.FORBIDDEN
        if c.BREAKS_AT:
            rewards[timestep + 1 == c.BREAKS_AT] = np.nan

    def judge(clock: Clock, terminated: Any, truncated: Any) -> None:
        clock.timestep[:] += 1
        terminated[:] = (clock.timestep >= c.ENDS_AT) if c.ENDS_AT else 0
        truncated[:] = (clock.timestep >= c.EPISODE_LENGTH) & (terminated == 0)
        clock.done[:] = terminated | truncated

    def show(observations: Any, timestep: Any, agents: Any) -> None:
        rows = np.swapaxes(observations, 1, 2) if c.IS_LAST and len(agents) > 1 else observations
        rows[..., 0] = timestep[:, None]
        rows[..., 1] = agents

    def forbid(mask: Any, timestep: Any, agents: Any) -> None:
        mask[:] = 1
        np.put_along_axis(mask, ((timestep[:, None] + agents) % mask.shape[-1])[..., None], 0, -1)

    def restart(clock: Clock, force: int) -> None:
        clock.timestep[(clock.done != 0) | (force != 0)] = 0
        clock.done[:] = 0

    everyone = np.arange(c.N_AGENTS)

    def step(sampled_actions: Any, results: Results, clock: Clock) -> None:
        pay(sampled_actions, results.rewards, clock.timestep, everyone)
        judge(clock, results.terminated, results.truncated)
        if c.AUTO_RESET:
            show(results.final_observations, clock.timestep, everyone)
            clock.timestep[clock.done != 0] = 0
        show(results.observations, clock.timestep, everyone)

    def reset(observations: Any, clock: Clock, force: int) -> None:
        restart(clock, force)
        show(observations, clock.timestep, everyone)

    def step_masked(
        sampled_actions: Any, rewards: Any, observations: Masked, terminated: Any, truncated: Any, clock: Clock
    ) -> None:
        pay(sampled_actions, rewards, clock.timestep, everyone, observations.observations_action_mask)
        judge(clock, terminated, truncated)
        if c.AUTO_RESET:
            clock.timestep[clock.done != 0] = 0
        show_masked(observations, clock)

    def reset_masked(observations: Masked, clock: Clock, force: int) -> None:
        restart(clock, force)
        show_masked(observations, clock)

    def show_masked(observations: Masked, clock: Clock) -> None:
        show(observations.observations_seen, clock.timestep, everyone)
        forbid(observations.observations_action_mask, clock.timestep, everyone)

    def step_separate(even: Even, odd: Odd, terminated: Any, truncated: Any, clock: Clock) -> None:
        groups = (even, everyone[::2]), (odd, everyone[1::2])
        for (actions, rewards, *_), agents in groups:
            pay(actions, rewards, clock.timestep, agents)
        judge(clock, terminated, truncated)
        if c.AUTO_RESET:
            for (*_, last), agents in groups:
                show(last, clock.timestep, agents)
            clock.timestep[clock.done != 0] = 0
        for (_, _, observations, _), agents in groups:
            show(observations, clock.timestep, agents)

    def reset_separate(observations_even: Any, observations_odd: Any, clock: Clock, force: int) -> None:
        restart(clock, force)
        show(observations_even, clock.timestep, everyone[::2])
        show(observations_odd, clock.timestep, everyone[1::2])

    if c.IS_SEPARATE:
        return {"step": step_separate, "reset": reset_separate}
    if c.IS_MASKED:
        return {"step": step_masked, "reset": reset_masked}
    return {"step": step, "reset": reset}


class Masked(NamedTuple):
    """Observations with a mask."""

    observations_seen: Any
    observations_action_mask: Any


class Even(NamedTuple):
    """Arrays of the agents 0, 2 and so on."""

    sampled_actions_even: Any
    rewards_even: Any
    observations_even: Any
    final_observations_even: Any


class Odd(NamedTuple):
    """Arrays of the other agents."""

    sampled_actions_odd: Any
    rewards_odd: Any
    observations_odd: Any
    final_observations_odd: Any

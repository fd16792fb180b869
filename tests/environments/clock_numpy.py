"""Clock in NumPy. Phases: pay, judge, restart, show; one pair of kernels for each set of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""

    def pay(actions: Any, rewards: Any, timestep: Any, agents: Any, mask: Any = None) -> None:
        rewards[:] = 10 * agents + actions[..., 0]
        if mask is not None:
            rewards[np.take_along_axis(mask, actions, -1)[..., 0] == 0] = c.FORBIDDEN
        if c.BREAKS_AT:
            rewards[timestep + 1 == c.BREAKS_AT] = np.nan

    def judge(timestep: Any, done: Any, terminated: Any, truncated: Any) -> None:
        timestep += 1
        terminated[:] = (timestep >= c.ENDS_AT) if c.ENDS_AT else 0
        truncated[:] = (timestep >= c.EPISODE_LENGTH) & (terminated == 0)
        done[:] = terminated | truncated

    def show(observations: Any, timestep: Any, agents: Any) -> None:
        rows = np.swapaxes(observations, 1, 2) if c.IS_LAST and len(agents) > 1 else observations
        rows[..., 0] = timestep[:, None]
        rows[..., 1] = agents

    def forbid(mask: Any, timestep: Any, agents: Any) -> None:
        mask[:] = 1
        np.put_along_axis(mask, ((timestep[:, None] + agents) % mask.shape[-1])[..., None], 0, -1)

    def restart(timestep: Any, done: Any, force: int) -> None:
        timestep[(done != 0) | (force != 0)] = 0
        done[(done != 0) | (force != 0)] = 0

    everyone = np.arange(c.N_AGENTS)

    def step(
        sampled_actions: Any,
        rewards: Any,
        observations: Any,
        final_observations: Any,
        terminated: Any,
        truncated: Any,
        _timestep_: Any,
        _done_: Any,
    ) -> None:
        pay(sampled_actions, rewards, _timestep_, everyone)
        judge(_timestep_, _done_, terminated, truncated)
        if c.AUTO_RESET:
            show(final_observations, _timestep_, everyone)
            _timestep_[_done_ != 0] = 0
        show(observations, _timestep_, everyone)

    def reset(observations: Any, _timestep_: Any, _done_: Any, force: int) -> None:
        restart(_timestep_, _done_, force)
        show(observations, _timestep_, everyone)

    def step_masked(
        sampled_actions: Any,
        rewards: Any,
        observations_seen: Any,
        observations_action_mask: Any,
        terminated: Any,
        truncated: Any,
        _timestep_: Any,
        _done_: Any,
    ) -> None:
        pay(sampled_actions, rewards, _timestep_, everyone, observations_action_mask)
        judge(_timestep_, _done_, terminated, truncated)
        if c.AUTO_RESET:
            _timestep_[_done_ != 0] = 0
        show(observations_seen, _timestep_, everyone)
        forbid(observations_action_mask, _timestep_, everyone)

    def reset_masked(
        observations_seen: Any, observations_action_mask: Any, _timestep_: Any, _done_: Any, force: int
    ) -> None:
        restart(_timestep_, _done_, force)
        show(observations_seen, _timestep_, everyone)
        forbid(observations_action_mask, _timestep_, everyone)

    def step_separate(
        sampled_actions_even: Any,
        sampled_actions_odd: Any,
        rewards_even: Any,
        rewards_odd: Any,
        observations_even: Any,
        observations_odd: Any,
        final_observations_even: Any,
        final_observations_odd: Any,
        terminated: Any,
        truncated: Any,
        _timestep_: Any,
        _done_: Any,
    ) -> None:
        groups = everyone[::2], everyone[1::2]
        pay(sampled_actions_even, rewards_even, _timestep_, groups[0])
        pay(sampled_actions_odd, rewards_odd, _timestep_, groups[1])
        judge(_timestep_, _done_, terminated, truncated)
        if c.AUTO_RESET:
            show(final_observations_even, _timestep_, groups[0])
            show(final_observations_odd, _timestep_, groups[1])
            _timestep_[_done_ != 0] = 0
        show(observations_even, _timestep_, groups[0])
        show(observations_odd, _timestep_, groups[1])

    def reset_separate(observations_even: Any, observations_odd: Any, _timestep_: Any, _done_: Any, force: int) -> None:
        restart(_timestep_, _done_, force)
        show(observations_even, _timestep_, everyone[::2])
        show(observations_odd, _timestep_, everyone[1::2])

    if c.IS_SEPARATE:
        return {"step": step_separate, "reset": reset_separate}
    if c.IS_MASKED:
        return {"step": step_masked, "reset": reset_masked}
    return {"step": step, "reset": reset}

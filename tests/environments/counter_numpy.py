"""Counter in NumPy."""

from __future__ import annotations

from typing import Any


def build(c: Any) -> dict[str, Any]:
    """Return step and custom reset."""

    def step(
        count: Any,
        place: Any,
        weights: Any,
        sampled_actions: Any,
        observations: Any,
        rewards: Any,
        _timestep_: Any,
        _done_: Any,
        step_size: int,
        n_envs: int,
    ) -> None:
        count += step_size * sampled_actions[..., 0]
        observations[..., 0] = count
        observations[..., 1] = place
        rewards[:] = weights * count.astype(weights.dtype)
        _timestep_ += 1
        _done_[(_timestep_ >= c.EPISODE_LENGTH) | (count.max(1) >= c.LIMIT)] = 1

    def reset(count: Any, step_size: int) -> None:
        count[:] = -step_size

    return {"NumPyCounterStep": step, "CudaCounterReset": reset}

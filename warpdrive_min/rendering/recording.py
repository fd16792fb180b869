"""Recording of an episode on the device."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min.config import Config
from warpdrive_min.constants import DONE, FINAL_OBSERVATIONS, RESET_SEED, TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import DataError, DeviceMemoryError, known, require, require_int
from warpdrive_min.rendering.episode import Episode

WRITTEN_BY_STEPS: Final = (Constants.ACTIONS, Constants.REWARDS, DONE, TERMINATED, TRUNCATED)
"""Names or prefixes of arrays without a value before the first step.

All but the first are always recorded.
"""


def record(
    wrapper: EnvWrapper,
    policy: Callable[[], None],
    n_steps: int | None = None,
    env_id: int = 0,
    arrays: Sequence[str] | None = None,
) -> Episode:
    """Step a wrapper and return one environment's episode; synchronises at the end.

    All steps are enqueued without checking for an end. Then the record is copied to the host; only these copies
    synchronise. So every copy of the environment takes ``n_steps`` steps, also past the end of an episode.
    Call ``wrapper.reset()`` afterwards.

    Args:
        wrapper: Started, with ``auto_reset`` off: a restart inside a step would hide the last frame.
        policy: Function that writes ``sampled_actions``, such as the result of `policies.random_policy`.
        n_steps: Maximum number of steps; None: ``episode_length``.
        env_id: Index of the recorded environment.
        arrays: Names of arrays to record in addition to rewards, flags and the step counter. None: every array with a
            row per environment, except final observations, which are stale without ``auto_reset``.

    Raises:
        ConfigError: The wrapper has ``auto_reset``, no arrays, or no start; its episode is over; or a number is out
            of range.
        DataError: An array has no row per environment.
        DeviceMemoryError: The record does not fit on the device.
    """
    n_steps = wrapper.episode_length if n_steps is None else n_steps
    _check(wrapper, n_steps, env_id)
    data = wrapper.cuda_data_manager
    rows = {name: data.tensor(name)[env_id] for name in _names(wrapper, arrays)}
    frames, seed = _allocate(wrapper, rows, n_steps + 1), data.tensor(RESET_SEED).clone()
    for t in range(n_steps + 1):
        if t > 0:
            policy()
            wrapper.step()
        for name, row in rows.items():
            frames[name][t].copy_(row)
    return _episode(wrapper, env_id, seed, frames)


def _check(wrapper: EnvWrapper, n_steps: int, env_id: int) -> None:
    name = wrapper.name
    require(wrapper.vectorised, "record", f"environment {name!r} has no kernels for backend {wrapper.env_backend!r}")
    do = "make its EnvWrapper with auto_reset=False"
    require(not wrapper.auto_reset, "record", f"environment {name!r} must not restart itself", do=do)
    require(not wrapper.reset_on_host, "record", f"environment {name!r} has not started", do="call reset() first")
    require_int("record.n_steps", n_steps, high=2**63 - 1)
    require_int("record.env_id", env_id, -(2**63))
    last = wrapper.n_envs - 1
    require(0 <= env_id <= last, "record.env_id", f"must be from 0 to n_envs - 1 = {last}", env_id)


def _names(wrapper: EnvWrapper, wanted: Sequence[str] | None) -> list[str]:
    """Return the names of arrays to record: those with a row per environment.

    The push marks such arrays by their number of copies. A user's environment may push the rows itself, so an array
    requested by name is checked by its shape.
    """
    data = wrapper.cuda_data_manager
    per_env = [name for name in data.array_names() if data.attribute(name, "n_copies") == wrapper.n_envs]
    always = [TIMESTEP, DONE, *(name for name in per_env if name.startswith(WRITTEN_BY_STEPS[1:]))]
    if wanted is None:
        wanted = [name for name in per_env if not name.startswith(FINAL_OBSERVATIONS)]
    for name in wanted:
        has_rows = name in always or (name in data.array_names() and data.tensor(name).shape[:1] == (wrapper.n_envs,))
        do = f"known are {known([*per_env, *always])}"
        require(has_rows, "record.arrays", f"{name!r} has no row for each environment", do=do, error=DataError)
    return list(dict.fromkeys([*always, *wanted]))


def _allocate(wrapper: EnvWrapper, rows: Mapping[str, torch.Tensor], n_frames: int) -> dict[str, torch.Tensor]:
    """Return the frames of each array, zeros on the device."""
    data = wrapper.cuda_data_manager
    size, free = n_frames * sum(row.nbytes for row in rows.values()), data.free_bytes()
    rule = f"{n_frames} frames need {size:,} bytes on {data.device} (free are {free:,})"
    require(size <= free, "record", rule, do="record fewer steps, or name the arrays", error=DeviceMemoryError)
    return {name: row.new_zeros((n_frames, *row.shape)) for name, row in rows.items()}


def _episode(wrapper: EnvWrapper, env_id: int, seed: torch.Tensor, frames: Mapping[str, torch.Tensor]) -> Episode:
    """Copy the frames to the host, and cut every array after the episode's end."""
    arrays = {name: each.cpu().numpy() for name, each in frames.items()}
    low, high = (int(word) & 0xFFFFFFFF for word in seed.cpu().numpy())
    require(not arrays[DONE][0], "record", f"the episode of environment {env_id} is over", do="call reset() first")
    ends = np.flatnonzero(arrays[DONE])
    n_frames = int(ends[0]) + 1 if len(ends) else len(arrays[DONE])
    arrays = {name: array[:n_frames].copy() for name, array in arrays.items()}
    for name in arrays:
        if name.startswith(WRITTEN_BY_STEPS):
            arrays[name][0] = 0
    return Episode(
        env_name=wrapper.name,
        config=_config(wrapper.env),
        backend=wrapper.env_backend,
        seed=low | high << 32,
        env_id=env_id,
        episode_length=wrapper.episode_length,
        arrays=arrays,
    )


def _config(env: Any) -> dict[str, Any]:
    """Return an environment's config as JSON; {} without a `Config` or dataclass."""
    config = getattr(env, "config", None)
    if isinstance(config, Config):
        return config.to_dict()
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return {}
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=_plain))
    return plain


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)

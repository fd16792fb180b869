"""How backends are held against the NumPy oracle: step by step from the same state, and free-running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from envs import ENVS
from warpdrive_min import EnvWrapper
from warpdrive_min.consistency import Agreement, step_by_step
from warpdrive_min.policies import random_policy


def start(name: str, config: Mapping[str, Any], backend: str, n_envs: int, **options: Any) -> EnvWrapper:
    """Build and start a wrapper of a shipped environment."""
    wrapper = EnvWrapper(ENVS[name](**config), num_envs=n_envs, env_backend=backend, **options)
    wrapper.reset_all_envs()
    return wrapper


def step_from_same_state(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, **options: Any
) -> tuple[Agreement, int]:
    """Step backend and oracle with random actions, each time from the backend's state.

    Returns:
        What was seen, and how often a tagger was rewarded.
    """
    tested = start(name, config, backend, n_envs, seed=seed, **options)
    oracle = start(name, config, "cpu", n_envs, seed=seed, **options)
    draw, data = random_policy(tested, seed), oracle.cuda_data_manager
    result, n_tagged = Agreement(), 0
    for _ in range(n_steps):
        result.add(step_by_step(tested, oracle, draw, 1))
        if name == "tag_continuous":
            # Taggers earn by tagging alone.
            n_tagged += int((data.tensor("rewards").numpy()[:, oracle.env.agent_types == 1] > 0).sum())
    return result, n_tagged


def free_run(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, exact: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run with auto-reset and random actions.

    Returns:
        Every array at the end, and after each step the sums of the bits of observations and rewards, ``(n_steps, 2)``.
    """
    wrapper = start(name, config, backend, n_envs, seed=seed, exact=exact, auto_reset=True)
    draw = random_policy(wrapper, seed)
    data = wrapper.cuda_data_manager
    sums = torch.zeros((n_steps, 2), dtype=torch.int64, device=data.device)
    for step in range(n_steps):
        draw()
        wrapper.step()
        for column, key in enumerate(("observations", "rewards")):
            sums[step, column] = data.tensor(key).view(torch.int32).sum(dtype=torch.int64)
    return {key: data.pull_data_from_device(key) for key in data.array_names()}, sums.cpu().numpy()

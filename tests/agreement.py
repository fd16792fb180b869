"""How backends are held against the NumPy oracle: step by step from the same state, and free-running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from envs import ENVS
from warpdrive_min import CUDASampler, EnvWrapper
from warpdrive_min.consistency import Agreement, step_by_step
from warpdrive_min.spaces import category_counts


def start(name: str, config: Mapping[str, Any], backend: str, n_envs: int, **options: Any) -> EnvWrapper:
    """Build and start a wrapper of a shipped environment."""
    wrapper = EnvWrapper(ENVS[name](**config), num_envs=n_envs, env_backend=backend, **options)
    wrapper.reset_all_envs()
    return wrapper


def uniform_sampler(wrapper: EnvWrapper, seed: int) -> Callable[[], None]:
    """Return what draws uniform random actions into ``sampled_actions``."""
    data = wrapper.cuda_data_manager
    categories = category_counts(next(iter(wrapper.env.action_space.values())))
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.register_actions(data, "sampled_actions", categories)
    sampler.init_random(seed)
    probabilities = torch.cat([torch.full((n,), 1 / n) for n in categories])
    rows = probabilities.expand(wrapper.n_envs, wrapper.n_agents, -1).contiguous().to(data.device)
    return lambda: sampler.sample(data, rows)


def step_from_same_state(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, **options: Any
) -> tuple[Agreement, int]:
    """Step backend and oracle with random actions, each time from the backend's state.

    Returns:
        What was seen, and how often a tagger was rewarded.
    """
    tested = start(name, config, backend, n_envs, seed=seed, **options)
    oracle = start(name, config, "cpu", n_envs, seed=seed, **options)
    draw, data = uniform_sampler(tested, seed), oracle.cuda_data_manager
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
    draw = uniform_sampler(wrapper, seed)
    data = wrapper.cuda_data_manager
    sums = torch.zeros((n_steps, 2), dtype=torch.int64, device=data.device)
    for step in range(n_steps):
        draw()
        wrapper.step()
        for column, key in enumerate(("observations", "rewards")):
            sums[step, column] = data.tensor(key).view(torch.int32).sum(dtype=torch.int64)
    return {key: data.pull_data_from_device(key) for key in data.array_names()}, sums.cpu().numpy()

"""Samplers, and draws of continuous actions."""

from __future__ import annotations

import numpy as np
import torch

from tests.support import managers, push
from warpdrive_min import CUDADataManager, CUDASampler

N_ENVS, N_AGENTS, N_TYPES = 2, 3, 3


def sampler_of(
    backend: str,
    n_envs: int = N_ENVS,
    n_agents: int = N_AGENTS,
    n_types: int = N_TYPES,
    seed: int | None = 0,
    categories: tuple[int, ...] = (),
) -> tuple[CUDADataManager, CUDASampler]:
    """Return a sampler of ``sampled_actions``: continuous without categories.

    None as seed leaves it unseeded.
    """
    data, functions = managers(backend, n_agents, n_envs)
    empty = np.full((n_envs, n_agents, len(categories)), -1, np.int32)
    numbers = np.full((n_envs, n_agents, n_types), np.nan, np.float32)
    push(data, "sampled_actions", empty if categories else numbers)
    sampler = CUDASampler(functions)
    sampler.register_actions(data, "sampled_actions", categories or n_types, is_deterministic=not categories)
    if seed is not None:
        sampler.init_random(seed)
    return data, sampler


def mean_of(data: CUDADataManager, value: float = 0.0) -> torch.Tensor:
    """Return the same mean for every action."""
    return torch.full_like(data.tensor("sampled_actions"), value)


def draw(data: CUDADataManager, sampler: CUDASampler, n: int, mean: float = 0.0, **params: object) -> np.ndarray:
    """Return n draws, (n, n_envs, n_agents, n_types)."""
    means, draws = mean_of(data, mean), []
    for _ in range(n):
        sampler.sample(data, means, "sampled_actions", **params)
        draws.append(data.pull_data_from_device("sampled_actions"))
    return np.stack(draws)

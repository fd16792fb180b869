"""Policies that need no training: what draws actions for every agent of a wrapper."""

from __future__ import annotations

from collections.abc import Callable

import torch

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.spaces import category_counts


def random_policy(wrapper: EnvWrapper, seed: int = 0) -> Callable[[], None]:
    """Return what draws a random action for every agent into ``sampled_actions``; it enqueues, and can be captured.

    Discrete actions are uniform. Every agent must have the same action space.

    Args:
        wrapper: Started wrapper, on a backend for which the environment has kernels.
        seed: The same seed draws the same actions on every backend.
    """
    data = wrapper.cuda_data_manager
    categories = category_counts(next(iter(wrapper.env.action_space.values())))
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.register_actions(data, Constants.ACTIONS, categories)
    sampler.init_random(seed)
    row = torch.cat([torch.full((n,), 1 / n) for n in categories])
    rows = row.to(data.device).expand(wrapper.n_envs, wrapper.n_agents, -1).contiguous()
    return lambda: sampler.sample(data, rows)

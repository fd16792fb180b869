"""Policies that need no training: what draws actions for every agent of a wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from warpdrive_min.backends.base import Launch
from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import agent_sets
from warpdrive_min.errors import require
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.spaces import action_bounds, category_counts


def random_policy(wrapper: EnvWrapper, seed: int = 0) -> Launch:
    """Return what draws a random action for every agent into ``sampled_actions``; it enqueues, and can be captured.

    Actions are uniform: over the choices of a discrete space, which must be the same for every agent of a role, or
    between the bounds of a box, which agents may have each their own of one shape. Masks are not looked at.

    Args:
        wrapper: Started wrapper, on a backend for which the environment has kernels.
        seed: The same seed draws the same actions on every backend.

    Raises:
        ConfigError: A box has no finite bounds, or another shape than the others.
    """
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.init_random(seed)
    draws = [
        _random_actions(wrapper, sampler, Constants.ACTIONS + suffix, [wrapper.env.action_space[a] for a in agents])
        for suffix, agents in agent_sets(wrapper.env).items()
    ]
    if len(draws) == 1:
        return draws[0]

    def draw_all() -> None:
        for draw in draws:
            draw()

    return draw_all


def _random_actions(wrapper: EnvWrapper, sampler: CUDASampler, name: str, spaces: Sequence[Any]) -> Launch:
    """Return what draws the actions of one array, whose agents have these spaces."""
    data = wrapper.cuda_data_manager
    if hasattr(spaces[0], "low"):
        bounds = action_bounds(spaces)
        is_bounded = np.isfinite(bounds).all()
        require(is_bounded, "random policy", "needs finite bounds of the actions", spaces, "use a bounded Box")
        low, high = torch.from_numpy(bounds).to(data.device)
        sampler.register_actions(data, name, low.shape[1], is_deterministic=True)
        return sampler.bound_uniform(data, low, high, name)
    categories = category_counts(spaces[0])
    sampler.register_actions(data, name, categories)
    row = torch.cat([torch.full((n,), 1 / n) for n in categories])
    rows = row.to(data.device).expand(wrapper.n_envs, len(spaces), -1).contiguous()
    return sampler.bound(data, rows, name)

"""Policies that need no training: what draws actions for every agent of a wrapper."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import require
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.spaces import action_bounds, category_counts


def random_policy(wrapper: EnvWrapper, seed: int = 0) -> Callable[[], None]:
    """Return what draws a random action for every agent into ``sampled_actions``; it enqueues, and can be captured.

    Actions are uniform: over the choices of a discrete space, which must be the same for every agent, or between
    the bounds of a box, which agents may have each their own of one shape.

    Args:
        wrapper: Started wrapper, on a backend for which the environment has kernels.
        seed: The same seed draws the same actions on every backend.

    Raises:
        ConfigError: A box has no finite bounds, or another shape than the others.
    """
    data = wrapper.cuda_data_manager
    spaces = list(wrapper.env.action_space.values())
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.init_random(seed)
    if hasattr(spaces[0], "low"):
        bounds = action_bounds(spaces)
        is_bounded = np.isfinite(bounds).all()
        require(is_bounded, "random policy", "needs finite bounds of the actions", spaces, "use a bounded Box")
        low, high = torch.from_numpy(bounds).to(data.device)
        sampler.register_actions(data, Constants.ACTIONS, low.shape[1], is_deterministic=True)
        return lambda: sampler.sample_uniform(data, low, high)
    categories = category_counts(spaces[0])
    sampler.register_actions(data, Constants.ACTIONS, categories)
    row = torch.cat([torch.full((n,), 1 / n) for n in categories])
    rows = row.to(data.device).expand(wrapper.n_envs, wrapper.n_agents, -1).contiguous()
    return lambda: sampler.sample(data, rows)

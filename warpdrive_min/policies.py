"""Policies that need no training: what draws actions for every agent of a wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warpdrive_min.backends.base import Launch, in_order
from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import agent_sets
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.spaces import action_types


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """Draws a random action for every agent when it is called; see `random_policy`."""

    draw: Launch
    sampler: CUDASampler
    """Counts the draws; `EnvWrapper.rollout` goes on with it as its ``sampler``."""

    def __call__(self) -> None:
        """Enqueue the draw."""
        self.draw()


def random_policy(wrapper: EnvWrapper, seed: int = 0) -> RandomPolicy:
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
    return RandomPolicy(draws[0] if len(draws) == 1 else in_order(draws), sampler)


def _random_actions(wrapper: EnvWrapper, sampler: CUDASampler, name: str, spaces: Sequence[Any]) -> Launch:
    """Return what draws the actions of one array, whose agents have these spaces."""
    data = wrapper.cuda_data_manager
    is_box = hasattr(spaces[0], "low")
    sampler.register_actions(data, name, action_types(spaces[0]), is_deterministic=is_box)
    return sampler.bound_random(data, spaces, name)

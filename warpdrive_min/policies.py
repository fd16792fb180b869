"""Untrained policies, which draw actions for all agents of a wrapper."""

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
    """Function that draws a random action for every agent; see `random_policy`."""

    draw: Launch
    sampler: CUDASampler
    """Counter of the draws; pass it to `EnvWrapper.rollout` as ``sampler``."""

    def __call__(self) -> None:
        """Enqueue one draw for every agent."""
        self.draw()


def random_policy(wrapper: EnvWrapper, seed: int = 0) -> RandomPolicy:
    """Return a policy that draws random actions into ``sampled_actions``.

    It enqueues, and can be captured in a CUDA graph. Actions are uniform. Choices of a discrete space must be the same
    for every agent of a role. Boxes have finite bounds and one shape; the bounds may differ between agents. Masks are
    ignored.

    Args:
        wrapper: Wrapper that was reset, on a backend for which the environment has kernels.
        seed: Seed of the draws; the same seed draws the same actions on every backend.

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
    """Return a launch that draws the actions of one array."""
    data = wrapper.cuda_data_manager
    is_box = hasattr(spaces[0], "low")
    sampler.register_actions(data, name, action_types(spaces[0]), is_deterministic=is_box)
    return sampler.bound_random(data, spaces, name)

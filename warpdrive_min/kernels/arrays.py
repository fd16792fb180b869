"""Arrays that every environment has, as named tuples that kernels in NumPy and in Numba take whole.

Annotations are in Numba's notation. The first axis is the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from numba import float32, int32

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])
"""A named tuple of arrays."""


class Clock(NamedTuple):
    """Reserved arrays of episodes: `_done_`, `_timestep_` and `_episode_` by environment, and `_reset_seed_`."""

    done: int32[:]
    timestep: int32[:]
    episode: int32[:]
    reset_seed: int32[:]


class Results(NamedTuple):
    """Arrays that a step writes for the trainer: ``[env, agent]``, ``[env]`` and ``[env, agent, feature]``."""

    rewards: float32[:, :]
    terminated: int32[:]
    truncated: int32[:]
    observations: float32[:, :, :]
    final_observations: float32[:, :, :]


def rows(arrays: Arrays, envs: Any) -> Arrays:
    """Return copies of the rows of some environments, by their numbers or as a mask; in NumPy."""
    kind: Any = type(arrays)
    copies: Arrays = kind(*(array[envs] for array in arrays))
    return copies

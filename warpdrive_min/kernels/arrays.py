"""Arrays of every environment, as named tuples for NumPy and Numba kernels.

Annotations are in Numba's notation. The first axis is the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from numba import float32, int32

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])
"""Named tuple of arrays."""


class Clock(NamedTuple):
    """Reserved arrays: `_done_`, `_timestep_`, `_episode_` and `_reset_seed_`.

    The first three have one entry for each environment.
    """

    done: int32[:]
    timestep: int32[:]
    episode: int32[:]
    reset_seed: int32[:]


class Results(NamedTuple):
    """Arrays that a step writes for the trainer.

    Axes are ``[env, agent]``, ``[env]`` and ``[env, agent, feature]``.
    """

    rewards: float32[:, :]
    terminated: int32[:]
    truncated: int32[:]
    observations: float32[:, :, :]
    final_observations: float32[:, :, :]


def rows(arrays: Arrays, envs: Any) -> Arrays:
    """Return copies of some environments' rows, by index or mask; in NumPy."""
    kind: Any = type(arrays)
    copies: Arrays = kind(*(array[envs] for array in arrays))
    return copies

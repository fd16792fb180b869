"""Observation and action spaces, without a dependency on Gymnasium.

They have the names and attributes of Gymnasium's spaces, whose objects are accepted, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min.errors import ConfigError, require, require_int


@dataclass(frozen=True, slots=True)
class Discrete:
    """Integers from 0 to ``n - 1``."""

    n: int

    def __post_init__(self) -> None:
        require_int("Discrete: n", self.n)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a scalar."""
        return ()


@dataclass(frozen=True, slots=True)
class MultiDiscrete:
    """Vectors whose entry ``j`` is one of 0 to ``nvec[j] - 1``."""

    nvec: tuple[int, ...]

    def __init__(self, nvec: Sequence[int]) -> None:
        object.__setattr__(self, "nvec", tuple(int(n) for n in nvec))
        require(self.nvec and min(self.nvec) >= 1, "MultiDiscrete", "every entry must be at least 1", self.nvec)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return (len(self.nvec),)


@dataclass(frozen=True, slots=True)
class Box:
    """Arrays of ``shape`` between ``low`` and ``high``."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: Any = np.float32


class Dict(dict[Any, Any]):
    """Mapping of names to spaces."""

    @property
    def spaces(self) -> Mapping[Any, Any]:
        """Spaces by name."""
        return self


def in_package(space: Any, package: Any) -> Any:
    """Return a space of ours as a package's, such as Gymnasium's, others as they are."""
    match space:
        case Discrete(n=n):
            return package.Discrete(n)
        case MultiDiscrete(nvec=nvec):
            return package.MultiDiscrete(list(nvec))
        case Box(low=low, high=high, shape=shape, dtype=dtype):
            return package.Box(low, high, shape, dtype)
        case Dict():
            return package.Dict({key: in_package(value, package) for key, value in space.items()})
    return space


def category_counts(space: Any) -> tuple[int, ...]:
    """Return a discrete space's number of choices per action type.

    The space is Gymnasium's or ours.
    """
    if hasattr(space, "nvec"):
        return tuple(int(n) for n in space.nvec)
    if hasattr(space, "n"):
        return (int(space.n),)
    raise ConfigError(
        f"action space: must be Discrete or MultiDiscrete (got {type(space).__name__}); "
        "a Box has no choices: register its actions with is_deterministic=True"
    )


def action_types(space: Any) -> int | tuple[int, ...]:
    """Return a sampler's ``num_actions`` for a space.

    Discrete: the choices of each type. Box: its number of entries.
    """
    return math.prod(space.shape) if hasattr(space, "low") else category_counts(space)


def action_bounds(spaces: Iterable[Any]) -> npt.NDArray[np.float32]:
    """Return the lowest and highest action of every agent, ``(2, n_agents, n_types)``.

    Raises:
        ConfigError: The agents' actions differ in shape.
    """
    spaces = list(spaces)
    bounds = [
        [np.broadcast_to(getattr(space, side), space.shape).ravel() for side in ("low", "high")]
        if hasattr(space, "low")
        else [np.zeros(len(counts := category_counts(space))), np.array(counts) - 1]
        for space in spaces
    ]
    kinds = {(hasattr(space, "low"), len(low)) for space, (low, _) in zip(spaces, bounds, strict=True)}
    require(len(kinds) == 1, "action space", "must be of one kind and shape for all agents", spaces)
    return np.array([[agent[side] for agent in bounds] for side in (0, 1)], np.float32)


def space_of(observation: Any) -> Any:
    """Derive an observation's space: a ``Box``, or a ``Dict`` for a mapping.

    Bounds are +-1e20, halved until the dtype can represent them, as in WarpDrive. Unsigned numbers and bools get the
    full range of their dtype.
    """
    if isinstance(observation, Mapping):
        return Dict({key: space_of(value) for key, value in observation.items()})
    array = np.asarray(observation)
    return _box_of(array.shape, array.dtype)


@cache
def _box_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Box:
    """Return a cached space, which a million agents may share."""
    if dtype.kind in "ub":
        return Box(0, 1 if dtype.kind == "b" else np.iinfo(dtype).max, shape, dtype)
    bound = 1e20
    if dtype.kind in "if":
        largest = float((np.finfo if dtype.kind == "f" else np.iinfo)(dtype).max)
        while bound > largest:
            bound /= 2
    return Box(-bound, bound, shape, dtype)

"""Spaces as `gym` classes, for code that checks their class."""

from __future__ import annotations

import sys
from typing import Any

from warpdrive_min import spaces


def in_gym(space: Any) -> Any:
    """Return our space as `gym`'s if `gym` was imported; any other unchanged."""
    gym = sys.modules.get("gym.spaces")
    match space:
        case _ if gym is None:
            return space
        case spaces.Discrete(n=n):
            return gym.Discrete(n)
        case spaces.MultiDiscrete(nvec=nvec):
            return gym.MultiDiscrete(list(nvec))
        case spaces.Box(low=low, high=high, shape=shape, dtype=dtype):
            return gym.Box(low, high, shape, dtype)
        case spaces.Dict():
            return gym.Dict({key: in_gym(value) for key, value in space.items()})
    return space


def space_of(observation: Any) -> Any:
    """Return the space of an observation: a ``Box``, or a ``Dict`` of a mapping.

    It is `gym`'s if `gym` was imported.
    """
    return in_gym(spaces.space_of(observation))

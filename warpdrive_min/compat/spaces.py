"""Spaces of `gym`, which WarpDrive's are, for code that asks of what class they are."""

from __future__ import annotations

import sys
from typing import Any

from warpdrive_min import spaces


def in_gym(space: Any) -> Any:
    """Return one of our spaces as `gym`'s where that was imported; else, and of others, the space itself."""
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
    """Derive the space of an observation, `gym`'s where that was imported: a ``Box``, or a ``Dict`` of a mapping."""
    return in_gym(spaces.space_of(observation))

"""Spaces as `gym` classes, for code that checks their class."""

from __future__ import annotations

import sys
from typing import Any

from warpdrive_min import spaces


def in_gym(space: Any) -> Any:
    """Return our space as `gym`'s if `gym` was imported; any other unchanged."""
    gym = sys.modules.get("gym.spaces")
    return space if gym is None else spaces.in_package(space, gym)


def space_of(observation: Any) -> Any:
    """Return the space of an observation: a ``Box``, or a ``Dict`` of a mapping.

    It is `gym`'s if `gym` was imported.
    """
    return in_gym(spaces.space_of(observation))

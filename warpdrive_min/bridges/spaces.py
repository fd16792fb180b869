"""Conversion of spaces to Gymnasium."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min import spaces
from warpdrive_min.bridges.packages import needed_by
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import category_counts

with needed_by(__name__, "gymnasium"):
    import gymnasium


def to_gymnasium(space: Any) -> gymnasium.Space[Any]:
    """Return a space as Gymnasium's; a Gymnasium space is returned unchanged.

    Raises:
        ConfigError: The argument is not a space.
    """
    match space:
        case gymnasium.Space() as own:
            return own
        case spaces.Discrete(n=n):
            return gymnasium.spaces.Discrete(n)
        case spaces.MultiDiscrete(nvec=nvec):
            return gymnasium.spaces.MultiDiscrete(list(nvec))
        case spaces.Box(low=low, high=high, shape=shape, dtype=dtype):
            return gymnasium.spaces.Box(low, high, shape, dtype)
        case spaces.Dict():
            return gymnasium.spaces.Dict({key: to_gymnasium(value) for key, value in space.items()})
    raise ConfigError(
        f"to_gymnasium: must get a Discrete, MultiDiscrete, Box or Dict of warpdrive_min.spaces, "
        f"or a space of Gymnasium (got {type(space).__name__})"
    )


def mask_for_sample(mask: npt.NDArray[np.int8], space: Any) -> Any:
    """Return an action mask ``(n_choices,)`` as ``space.sample(mask)`` takes it.

    With several types of actions, it is a tuple.
    """
    ends = accumulate(category_counts(space), initial=0)
    return tuple(mask[first:end] for first, end in pairwise(ends)) if hasattr(space, "nvec") else mask

"""Conversion of spaces to Gymnasium."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min.bridges.packages import needed_by
from warpdrive_min.errors import require
from warpdrive_min.spaces import category_counts, in_package

with needed_by(__name__, "gymnasium"):
    import gymnasium


def to_gymnasium(space: Any) -> gymnasium.Space[Any]:
    """Return a space as Gymnasium's; a Gymnasium space is returned unchanged.

    Raises:
        ConfigError: The argument is not a space.
    """
    found = in_package(space, gymnasium.spaces)
    rule = "must get a Discrete, MultiDiscrete, Box or Dict of warpdrive_min.spaces, or a space of Gymnasium"
    require(isinstance(found, gymnasium.Space), "to_gymnasium", rule, space)
    return found  # type: ignore[no-any-return]


def mask_for_sample(mask: npt.NDArray[np.int8], space: Any) -> Any:
    """Return an action mask ``(n_choices,)`` as ``space.sample(mask)`` takes it.

    With several types of actions, it is a tuple.
    """
    ends = accumulate(category_counts(space), initial=0)
    return tuple(mask[first:end] for first, end in pairwise(ends)) if hasattr(space, "nvec") else mask

"""Arrays of Tag GridWorld, as named tuples for NumPy and Numba kernels.

Annotations are in Numba's notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import int32


class Positions(NamedTuple):
    """Cell of each agent, ``[env, agent]``."""

    loc_x: int32[:, :]
    loc_y: int32[:, :]


class Starts(NamedTuple):
    """Start cells of episodes, ``[start, agent]``; shared by all environments."""

    loc_x_reset_pool: int32[:, :]
    loc_y_reset_pool: int32[:, :]


class Nearest(NamedTuple):
    """Runner's squared distance to the nearest tagger, and its id, ``[env]``."""

    nearest_distance: int32[:]
    nearest_tagger: int32[:]

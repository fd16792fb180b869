"""Arrays of Tag GridWorld, as named tuples that kernels in NumPy and in Numba take whole.

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
    """Cells at which episodes start, ``[start, agent]``; all environments share them."""

    loc_x_reset_pool: int32[:, :]
    loc_y_reset_pool: int32[:, :]


class Nearest(NamedTuple):
    """Squared distance of the runner to the nearest tagger, and that tagger, ``[env]``."""

    nearest_distance: int32[:]
    nearest_tagger: int32[:]

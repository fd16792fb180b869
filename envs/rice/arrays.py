"""Arrays of RICE, as named tuples that kernels in NumPy and in Numba take whole.

Annotations are in Numba's notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class Regions(NamedTuple):
    """State of each region, ``[env, agent]``; but for capital and trade, of the last period."""

    capital: float32[:, :]
    output: float32[:, :]
    consumption: float32[:, :]
    emissions: float32[:, :]
    mitigation: float32[:, :]
    balance: float32[:, :]
    reserve: float32[:, :]


class Climate(NamedTuple):
    """Carbon of atmosphere, upper and lower ocean, and temperature of atmosphere and ocean, ``[env, box]``."""

    carbon: float32[:, :]
    temperature: float32[:, :]


class Bargain(NamedTuple):
    """Proposals, ``[env, proposer, other]``, what each region has agreed to, ``[env, agent]``, and the mask; levels."""

    promise: int32[:, :, :]
    ask: int32[:, :, :]
    pledge: int32[:, :]
    action_mask: int32[:, :, :]
    """``[env, agent, choice]``; 0 forbids a choice in the next step."""


class Paths(NamedTuple):
    """Paths that nobody decides on, which all environments share: ``[period, agent]`` unless said otherwise."""

    production: float32[:, :]
    labour: float32[:, :]
    intensity: float32[:, :]
    abatement: float32[:, :]
    profile: float32[:, :, :]
    """``[period, agent, feature]``: part of what a region observes."""
    world: float32[:, :]
    """``[period, 2]``: emissions by use of land, and forcing by other gases."""
    credit: float32[:]
    """``[agent]``: debt at which imports stop."""
    capital_reset_pool: float32[:, :]
    """``[start, agent]``: capital at which episodes start."""


class Globe(NamedTuple):
    """All regions, what they share, and what becomes of them."""

    regions: Regions
    climate: Climate
    bargain: Bargain
    paths: Paths

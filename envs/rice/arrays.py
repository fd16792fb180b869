"""Arrays of RICE, as named tuples for NumPy and Numba kernels.

Annotations are in Numba's notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class Regions(NamedTuple):
    """State of each region, ``[env, agent]``.

    All but capital and trade are of the last period.
    """

    capital: float32[:, :]
    output: float32[:, :]
    consumption: float32[:, :]
    emissions: float32[:, :]
    mitigation: float32[:, :]
    balance: float32[:, :]
    reserve: float32[:, :]


class Climate(NamedTuple):
    """Carbon and temperatures, ``[env, box]``.

    Carbon of atmosphere, upper and lower ocean; temperature of atmosphere and ocean.
    """

    carbon: float32[:, :]
    temperature: float32[:, :]


class Bargain(NamedTuple):
    """Proposals, agreements and mask, in levels.

    Proposals are ``[env, proposer, other]``, agreed mitigation is ``[env, agent]``.
    """

    promise: int32[:, :, :]
    ask: int32[:, :, :]
    pledge: int32[:, :]
    action_mask: int32[:, :, :]
    """``[env, agent, choice]``; 0 forbids a choice in the next step."""


class Paths(NamedTuple):
    """Exogenous paths, shared by all environments.

    ``[period, agent]`` unless stated.
    """

    production: float32[:, :]
    labour: float32[:, :]
    intensity: float32[:, :]
    abatement: float32[:, :]
    profile: float32[:, :, :]
    """``[period, agent, feature]``: part of a region's observation."""
    world: float32[:, :]
    """``[period, 2]``: emissions from land use, and forcing by other gases."""
    credit: float32[:]
    """``[agent]``: debt that stops imports."""
    capital_reset_pool: float32[:, :]
    """``[start, agent]``: capital at the start of episodes."""


class Globe(NamedTuple):
    """All regions, their shared state, and the results of a step."""

    regions: Regions
    climate: Climate
    bargain: Bargain
    paths: Paths

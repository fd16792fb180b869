"""Arrays of the COVID-19 economy, as named tuples for NumPy and Numba kernels.

Annotations are in Numba's notation. Shapes are ``[env, state]`` unless stated; shares are of the state's population.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class People(NamedTuple):
    """Shares of people, with sum 1; the dead are among the recovered."""

    susceptible: float32[:, :]
    infected: float32[:, :]
    recovered: float32[:, :]
    vaccinated: float32[:, :]


class Economy(NamedTuple):
    """Deaths and work of the day, and filters ``[env, state, filter]``.

    The filters hold changes of stringency.
    """

    new_deaths: float32[:, :]
    unemployment: float32[:, :]
    productivity: float32[:, :]
    filters: float32[:, :, :]


class Measures(NamedTuple):
    """Current levels, past levels ``[env, day, state]``, and days until a choice."""

    stringency: int32[:, :]
    past_stringency: int32[:, :, :]
    subsidy: int32[:]
    cooldown: int32[:, :]


class Traits(NamedTuple):
    """Parameters of states.

    ``[state]``; `filter_weight` is ``[state, filter]`` and `shown` is ``[state, trait]``.
    """

    transmission_slope: float32[:]
    transmission_intercept: float32[:]
    unemployment_floor: float32[:]
    filter_weight: float32[:, :]
    population_share: float32[:]
    shown: float32[:, :]


class Welfare(NamedTuple):
    """Weight of health, and parameters of the deaths and income indices, ``[agent]``."""

    health_weight: float32[:]
    health_low: float32[:]
    health_scale: float32[:]
    economy_low: float32[:]
    economy_scale: float32[:]


class Country(NamedTuple):
    """All arrays of a country, without the starts."""

    people: People
    economy: Economy
    measures: Measures
    traits: Traits
    welfare: Welfare


class Starts(NamedTuple):
    """State of every episode before its first day.

    ``[state]``, ``[state, filter]`` and ``[day, state]``.
    """

    start_infected: float32[:]
    start_recovered: float32[:]
    start_filters: float32[:, :]
    start_past_stringency: int32[:, :]
    start_stringency: int32[:]


class Outcome(NamedTuple):
    """Outputs of a step: governors', government's, and national averages."""

    rewards_governor: float32[:, :]
    rewards_government: float32[:, :]
    observations_governor_seen: float32[:, :, :]
    observations_government_seen: float32[:, :, :]
    observations_governor_action_mask: int32[:, :, :]
    observations_government_action_mask: int32[:, :, :]
    final_observations_governor_seen: float32[:, :, :]
    final_observations_government_seen: float32[:, :, :]
    terminated: int32[:]
    truncated: int32[:]
    national: float32[:, :]

"""Arrays of the COVID-19 economy, as named tuples that kernels in NumPy and in Numba take whole.

Annotations are in Numba's notation. ``[env, state]`` unless said otherwise; shares are of the state's population.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class People(NamedTuple):
    """Shares of people, which add up to 1; those who died are among the recovered."""

    susceptible: float32[:, :]
    infected: float32[:, :]
    recovered: float32[:, :]
    vaccinated: float32[:, :]


class Economy(NamedTuple):
    """The day's deaths, work, and the filtered changes of stringency ``[env, state, filter]``."""

    new_deaths: float32[:, :]
    unemployment: float32[:, :]
    productivity: float32[:, :]
    filters: float32[:, :, :]


class Measures(NamedTuple):
    """Levels as they are, those of the last days ``[env, day, state]``, and days until the next choice."""

    stringency: int32[:, :]
    past_stringency: int32[:, :, :]
    subsidy: int32[:]
    cooldown: int32[:, :]


class Traits(NamedTuple):
    """Parameters of states: ``[state]``, `filter_weight` ``[state, filter]`` and `shown` ``[state, trait]``."""

    transmission_slope: float32[:]
    transmission_intercept: float32[:]
    unemployment_floor: float32[:]
    filter_weight: float32[:, :]
    population_share: float32[:]
    shown: float32[:, :]


class Welfare(NamedTuple):
    """Weight of health, and what makes indices of deaths and incomes, ``[agent]``."""

    health_weight: float32[:]
    health_low: float32[:]
    health_scale: float32[:]
    economy_low: float32[:]
    economy_scale: float32[:]


class Country(NamedTuple):
    """All of a country but where its episodes start."""

    people: People
    economy: Economy
    measures: Measures
    traits: Traits
    welfare: Welfare


class Starts(NamedTuple):
    """State of every episode before its first day: ``[state]``, ``[state, filter]`` and ``[day, state]``."""

    start_infected: float32[:]
    start_recovered: float32[:]
    start_filters: float32[:, :]
    start_past_stringency: int32[:, :]
    start_stringency: int32[:]


class Outcome(NamedTuple):
    """Arrays that a step writes for the trainer, of the governors and of the government, and national averages."""

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

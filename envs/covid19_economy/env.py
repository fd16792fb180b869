"""COVID-19 economy: config, arrays and spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import Field

from warpdrive_min.backends.base import Constant
from warpdrive_min.config import (
    Config,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
)
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Environment, scene_in, sources_in
from warpdrive_min.spaces import Discrete

from . import data

N_LEVELS: Final = 10
"""Levels of stringency, 1 to 10."""
N_STATES: Final = data.N_STATES
GOVERNMENT: Final = N_STATES
"""Index of the federal government; governors come before it."""
SEEN_BY_GOVERNOR: Final = 22
"""Number of features of a governor's observation."""
SEEN_BY_GOVERNMENT: Final = 4 * N_STATES + 11
"""Number of features of the government's observation.

Four of each state, eight averages, and three about itself.
"""
N_NATIONAL: Final = 8
"""Number of averages over the people of all states."""


class Covid19EconomyConfig(Config):
    """Config of the COVID-19 economy; a step is a day, money is in 2019 USD."""

    PLACE: ClassVar[str] = "covid19_economy"

    episode_length: PositiveInt = 540
    """Days until truncation."""
    stringency_days: PositiveInt = 28
    """Days until a governor's next choice."""
    subsidy_days: PositiveInt = 90
    """Days until the government's next choice."""
    num_subsidy_levels: Annotated[PositiveInt, Field(le=1_000)] = 20
    """Number of subsidy levels above zero."""
    max_annual_subsidy: NonNegativeFloat = 20_000.0
    """Subsidy of the highest level, USD per person and year."""
    interest_rate: NonNegativeFloat = 0.03
    """Cost of the money paid as subsidies, per USD."""
    vaccination_start: NonNegativeInt = 296
    """Days before the first vaccination; 296 is 12 January 2021."""
    daily_vaccinations_per_million: Annotated[float, Field(ge=0, le=1e6)] = 3_000.0
    """Daily vaccinations per million people, while some are susceptible."""
    too_sick_to_work: UnitFloat = 0.1
    """Share of the infected who cannot work."""
    risk_aversion: PositiveFloat = 2.0
    """Relative risk aversion of the utility of income."""
    start_spread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Largest relative change of each state's infected at the start.

    Drawn for each environment and episode.
    """

    @property
    def subsidy_unit(self) -> float:
        """Subsidy per level, as a share of a person's full-employment production."""
        return self.max_annual_subsidy / self.num_subsidy_levels / data.load().gdp_per_head


class Covid19Economy(Environment):
    """51 US governors set stringency; the federal government pays subsidies.

    A step is a day, from 23 March 2020. Agents 0 to 50 are the governors of the states in alphabetical order (with
    DC), agent 51 is the government. Both have their own arrays: ``observations_governor_seen``
    ``(n_envs, 51, 22)``, ``observations_government_seen`` ``(n_envs, 1, 215)``, and so on.

    | action | governor | government |
    |---|---|---|
    | 0 | leave the level as it is | leave it as it is |
    | k | stringency k, 1 to 10 | subsidy level k - 1 |

    A choice holds for ``stringency_days`` or ``subsidy_days``; until then others are masked and have no effect.

    Reward: the day's welfare of the state or of the nation. Truncated at ``episode_length``, never terminated.

    See ``docs/environments/covid19_economy.md`` for equations, features and data.

    Source: Trott, Srinivasa, van der Wal, Haneuse, Zheng 2021, "Building a Foundation for Data-Driven, Interpretable,
    and Robust Policy Design using the AI Economist", arXiv 2108.02904.
    """

    name = "Covid19Economy"
    tolerance = 1e-4
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    roles: Mapping[str, Sequence[int]] = {"governor": range(N_STATES), "government": [GOVERNMENT]}

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `Covid19EconomyConfig` from keyword arguments."""
        super().__init__(env_backend)
        self.config = Covid19EconomyConfig(**config)
        self.num_agents = N_STATES + 1
        self.episode_length = self.config.episode_length
        self.action_space = dict.fromkeys(self.roles["governor"], Discrete(N_LEVELS + 1))
        self.action_space[GOVERNMENT] = Discrete(self.config.num_subsidy_levels + 2)

    @property
    def bytes_per_step(self) -> int:
        """Bytes of a step, in words of 4, each counted once.

        A state: 14 read (4 of people, 5 filters, 2 past levels, the level, the wait, the action), 49 written (the same
        except the action and one past level; deaths, 2 of work, the reward, 22 observed, 11 of the mask). The nation:
        4 read, 230 and the mask written.
        """
        return 4 * (63 * N_STATES + 236 + self.config.num_subsidy_levels)

    @property
    def ops_per_step(self) -> int:
        """Operations of a step.

        A state: 12 of people, 60 of work, 70 of welfare, 16 of averages, 20 to observe.
        """
        return 178 * N_STATES + 80

    def get_constants(self) -> dict[str, Constant]:
        """Return the compiled-in constants."""
        config, fitted = self.config, data.load()
        rest = 1 - config.risk_aversion
        return {
            "N_STATES": N_STATES,
            "N_LEVELS": N_LEVELS,
            "N_SUBSIDIES": config.num_subsidy_levels + 1,
            "N_FILTERS": data.N_FILTERS,
            "N_NATIONAL": N_NATIONAL,
            "SEEN_BY_GOVERNOR": SEEN_BY_GOVERNOR,
            "SEEN_BY_GOVERNMENT": SEEN_BY_GOVERNMENT,
            "DELAY": fitted.transmission_delay,
            "STRINGENCY_DAYS": config.stringency_days,
            "SUBSIDY_DAYS": config.subsidy_days,
            "VACCINATION_START": config.vaccination_start,
            "DAILY_VACCINATIONS": config.daily_vaccinations_per_million / 1e6,
            "REMOVAL_RATE": fitted.removal_rate,
            "MORTALITY": fitted.mortality,
            "FILTER_DECAY": np.exp(-1 / fitted.filter_decay).tolist(),
            "TOO_SICK_TO_WORK": config.too_sick_to_work,
            "SUBSIDY_UNIT": config.subsidy_unit,
            "INTEREST_RATE": config.interest_rate,
            "IS_LOGARITHMIC": rest == 0,
            "ONE_MINUS_AVERSION": float(rest),
            "INV_ONE_MINUS_AVERSION": 1 / rest if rest else 0.0,
            "START_SPREAD": config.start_spread,
            "INV_EPISODE_LENGTH": 1 / config.episode_length,
            "INV_STRINGENCY_DAYS": 1 / config.stringency_days,
            "INV_SUBSIDY_DAYS": 1 / config.subsidy_days,
            "INV_SUBSIDY_LEVELS": 1 / config.num_subsidy_levels,
        }

    def get_data_dictionary(self) -> DataFeed:
        """Return the arrays of each environment's state, and the shared ones."""
        fitted, feed = data.load(), DataFeed()
        of_states = np.zeros(N_STATES, np.float32)
        for name in (
            *("susceptible", "infected", "recovered", "vaccinated"),
            *("new_deaths", "unemployment", "productivity"),
        ):
            feed.add_data(name, of_states, per_env=True)
        feed.add_data("filters", np.zeros((N_STATES, data.N_FILTERS), np.float32), per_env=True)
        feed.add_data("national", np.zeros(N_NATIONAL, np.float32), per_env=True)
        feed.add_data("stringency", np.zeros(N_STATES, np.int32), per_env=True)
        feed.add_data("past_stringency", np.zeros((fitted.transmission_delay, N_STATES), np.int32), per_env=True)
        feed.add_data("subsidy", np.zeros((), np.int32), per_env=True)
        feed.add_data("cooldown", np.zeros(N_STATES + 1, np.int32), per_env=True)
        before = fitted.stringency_before[-fitted.transmission_delay :]
        feed.add_data("start_past_stringency", before)
        feed.add_data("start_stringency", before[-1])
        low, high = (
            np.maximum(fitted.transmission_slope * level + fitted.transmission_intercept, 0) / fitted.removal_rate
            for level in (N_LEVELS, 1)
        )
        shared = {
            "start_infected": fitted.infected,
            "start_recovered": fitted.recovered,
            "start_filters": fitted.filters_at_start,
            "transmission_slope": fitted.transmission_slope,
            "transmission_intercept": fitted.transmission_intercept,
            "unemployment_floor": fitted.unemployment_floor,
            "filter_weight": fitted.filter_weight,
            "population_share": fitted.population_share,
            "shown": np.stack([high, low, fitted.unemployment_floor / 10, 10 * fitted.population_share], axis=1),
            "health_weight": fitted.health_weight,
            "health_low": -fitted.deaths_open,
            "health_scale": 1 / (fitted.deaths_open - fitted.deaths_closed),
            "economy_low": fitted.utility_closed,
            "economy_scale": 1 / (fitted.utility_open - fitted.utility_closed),
        }
        for name, values in shared.items():
            feed.add_data(name, values.astype(np.float32))
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """Return the arrays that a trainer reads and writes."""
        feed = DataFeed()
        for role, agents in self.roles.items():
            n, n_seen = len(agents), SEEN_BY_GOVERNOR if role == "governor" else SEEN_BY_GOVERNMENT
            n_choices = self.action_space[agents[0]].n
            for name in (f"observations_{role}_seen", f"final_observations_{role}_seen"):
                feed.add_data(name, np.zeros((n, n_seen), np.float32), per_env=True)
            feed.add_data(f"observations_{role}_action_mask", np.ones((n, n_choices), np.int32), per_env=True)
            feed.add_data(f"sampled_actions_{role}", np.zeros((n, 1), np.int32), per_env=True)
            feed.add_data(f"rewards_{role}", np.zeros(n, np.float32), per_env=True)
        feed.add_data("terminated", np.zeros((), np.int32), per_env=True)
        feed.add_data("truncated", np.zeros((), np.int32), per_env=True)
        return feed

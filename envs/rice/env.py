"""RICE: config, arrays and spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from warpdrive_min.backends.base import Constant
from warpdrive_min.config import Config, PoolSize, PositiveFloat, PositiveInt, Seed, UnitFloat
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Environment, scene_in, sources_in, trainer_arrays
from warpdrive_min.errors import ConfigError, known
from warpdrive_min.spaces import MultiDiscrete

from . import data
from .arrays import Climate, Regions

N_WORLD = 6
"""Number of world features: time, two temperatures, three boxes of carbon."""
POSITIVE = (
    "years",
    "abatement_exponent",
    "forcing_steps",
    "temperature_of_doubling",
    "carbon_atmosphere",
    "carbon_upper_ocean",
    "carbon_lower_ocean",
    "carbon_equilibrium",
    "upper_ocean_equilibrium",
    "lower_ocean_equilibrium",
    "debt_multiple",
    "substitution",
)
"""Parameters used as divisors or in logarithms."""


class RiceConfig(Config):
    """Config of RICE."""

    PLACE: ClassVar[str] = "rice"

    episode_length: PositiveInt = 20
    """Steps until truncation, of five years each.

    With negotiation, three steps take five years. The regions are calibrated to the first hundred years.
    """
    num_regions: Annotated[PositiveInt, Field(ge=2, le=data.N_REGIONS)] = data.N_REGIONS
    """Number of regions, from the top of `parameters.json`."""
    num_levels: Annotated[PositiveInt, Field(ge=2, le=100)] = 10
    """Number of levels of each rate."""
    trade: bool = False
    """Enable trade of goods, with export limits and tariffs."""
    negotiation: bool = False
    """Enable proposals of mitigation rates, with three steps per period.

    Regions propose to each other, and accept or reject.
    """
    min_consumption: PositiveFloat = 0.01
    """Smallest consumption in the utility, 1,000 USD per person and year."""
    parameters: Mapping[str, float] = Field(default_factory=dict)
    """Values that replace world parameters of `parameters.json`, by name."""
    reset_pool_size: PoolSize = 0
    """Starts: 0, 2015; from 2, a row of a pool of this size per episode."""
    capital_spread: UnitFloat = 0.5
    """Largest relative change of a region's capital of 2015 in the pool."""
    seed: Seed | None = None
    """Seed of the pool; None: 0."""

    def _check(self) -> None:
        longest = 60 * self.n_stages
        self._require("episode_length", self.episode_length <= longest, f"must be at most {longest}, 300 years")
        self._require("reset_pool_size", self.reset_pool_size != 1, "must be 0 or at least 2")
        self._require("capital_spread", self.capital_spread < 1, "must be less than 1")
        values = self.world
        for name in self.parameters:
            if name not in data.world():
                raise ConfigError.of("parameters", f"must be known ({known(data.world())})", name)
        for name in POSITIVE:
            self._require("parameters", values[name] > 0, f"must have {name!r} above 0")
        self._require("parameters", values["utility_elasticity"] != 1, "must have 'utility_elasticity' other than 1")

    @property
    def world(self) -> dict[str, float]:
        """Parameters shared by all regions, by name."""
        return {**data.world(), **self.parameters}

    @property
    def paths(self) -> dict[str, NDArray[np.float32]]:
        """Exogenous paths by name: all arrays of `Paths` except the starts."""
        return data.paths(self.world, self.num_regions, -(-self.episode_length // self.n_stages))

    @property
    def n_stages(self) -> int:
        """Steps per period: propose, answer and act, or only act."""
        return 3 if self.negotiation else 1

    @property
    def n_agents(self) -> int:
        """Number of regions."""
        return self.num_regions

    @property
    def n_public(self) -> int:
        """Number of public features of each region.

        Capital, output, emissions, mitigation, and with trade the balance.
        """
        return 5 if self.trade else 4

    @property
    def n_features(self) -> int:
        """Number of features of an observation."""
        bargain = 4 + 4 * self.n_agents if self.negotiation else 0
        return N_WORLD + data.N_PROFILE + self.n_public + self.n_agents * (1 + self.n_public) + bargain

    @property
    def action_levels(self) -> list[int]:
        """Levels of each type of action.

        In order: mitigation and savings; trade; promises, demands and answers.
        """
        n_types = self.n_acts + (2 * self.n_agents if self.negotiation else 0)
        return [self.num_levels] * n_types + [2] * (self.n_agents if self.negotiation else 0)

    @property
    def n_acts(self) -> int:
        """Number of action types without negotiation."""
        return 3 + 2 * self.n_agents if self.trade else 2

    @property
    def n_starts(self) -> int:
        """Number of starts in the pool, at least 1."""
        return max(1, self.reset_pool_size)

    @property
    def starts(self) -> NDArray[np.float32]:
        """Capital at the start, ``(n_starts, n_agents)``, 10^12 USD.

        In a pool it is uniform around the capital of 2015.
        """
        capital = data.regions(self.num_regions)["capital"]
        if not self.reset_pool_size:
            return capital[None].astype(np.float32)
        spread = self.capital_spread
        factors = np.random.default_rng(self.seed or 0).uniform(1 - spread, 1 + spread, (self.n_starts, self.n_agents))
        return (capital * factors).astype(np.float32)


class Rice(Environment):
    """Climate economy of 27 regions; each sets mitigation and savings for five years.

    | action | range |
    |---|---|
    | 0: mitigation rate | level / (``num_levels`` - 1) |
    | 1: savings rate | level / ``num_levels`` |

    With ``trade`` and N regions, also:

    | action | range |
    |---|---|
    | 2: share of output that may be exported | level / (``num_levels`` - 1) |
    | 3 to N+2: imports from each region, of own output | level / (``num_levels`` - 1) |
    | N+3 to 2N+2: tariff on each region | level / (``num_levels`` - 1) |

    | observation, P public entries | unit |
    |---|---|
    | 0: steps done | ``episode_length`` |
    | 1, 2: temperature of atmosphere and ocean | 5 K |
    | 3 to 5: carbon of atmosphere, upper and lower ocean | that of the equilibrium |
    | 6 to 9: own population, technology, carbon intensity, cost of mitigation | 10^9, 10, kg/USD, 0.1 |
    | 10 to P+9: own public entries | |
    | P+10 to P+N+9: is it oneself | 0 or 1 |
    | the rest: public entries of each region | |

    Public entries are log(capital) / 4, log(1 + output) / 4, emissions / 10 and the mitigation rate of the last
    step. With trade the balance is added: as a share of the debt that stops imports, clipped to +-1.

    With ``negotiation`` a period has three stages: propose, answer and act. A mask allows the actions of the current
    stage. More actions and observations:

    | action | range |
    |---|---|
    | promise to each region, and demand of each: least mitigation | as mitigation |
    | answer to each region's proposal | 0 no, 1 yes |

    | observation | unit |
    |---|---|
    | stage | one of three is 1 |
    | least mitigation that one has agreed to | 1 |
    | of each region: own promise to it and demand of it, its promise and its demand | 1 |

    The reward is the utility of a period's consumption. Never terminated, truncated at ``episode_length``.

    Source: Nordhaus, DICE-2016R; Zhang et al. 2022, "AI for Global Climate Cooperation", appendices A, B and I. See
    ``docs/environments/rice.md`` for choices where the sources are open or differ.
    """

    name = "Rice"
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    tolerance = 5e-3

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `RiceConfig` from keyword arguments."""
        super().__init__(env_backend)
        self.config = RiceConfig(**config)
        self.seed = self.config.seed or 0
        self.num_agents = self.config.n_agents
        self.episode_length = self.config.episode_length
        self.masks_actions = self.config.negotiation
        self.action_space = {agent: MultiDiscrete(self.config.action_levels) for agent in range(self.num_agents)}

    @property
    def bytes_per_step(self) -> int:
        """Bytes of a step, in words of 4, each counted once.

        An agent: actions, capital, balance and reserve read; 7 of its state, reward and observation written. With
        negotiation its proposals and its pledge are read and written, and its mask is written. An environment: 5 of the
        climate and the time read; these and three flags written.
        """
        config = self.config
        bargain = 4 * self.n_partners + 2 + self.n_choices if config.negotiation else 0
        return 4 * (self.num_agents * (len(config.action_levels) + 11 + config.n_features + bargain) + 15)

    @property
    def ops_per_step(self) -> int:
        """Operations of a step.

        An agent: 3 powers and 2 logarithms of 25 each, 50 more; with trade one power per partner.
        """
        partner = 40 * self.num_agents if self.config.trade else 0
        return self.num_agents * (175 + partner) + 60

    @property
    def n_partners(self) -> int:
        """Length of a row of proposals; 1 (unused) without negotiation."""
        return self.num_agents if self.config.negotiation else 1

    @property
    def n_choices(self) -> int:
        """Length of a row of the mask; 1 (unused) without negotiation."""
        return sum(self.config.action_levels) if self.config.negotiation else 1

    def get_constants(self) -> dict[str, Constant]:
        """Return the compiled-in constants."""
        config, w = self.config, self.config.world
        return {
            "N_FEATURES": config.n_features,
            "N_PUBLIC": config.n_public,
            "N_TYPES": len(config.action_levels),
            "N_LEVELS": config.num_levels,
            "N_STARTS": config.n_starts,
            "TRADE": config.trade,
            "NEGOTIATION": config.negotiation,
            "N_STAGES": config.n_stages,
            "N_ACTS": config.n_acts,
            "N_PARTNERS": self.n_partners,
            "N_CHOICES": self.n_choices,
            "YEARS": w["years"],
            "CAPITAL_SHARE": w["capital_share"],
            "KEPT_CAPITAL": (1 - w["depreciation"]) ** w["years"],
            "DAMAGE_LINEAR": w["damage_linear"],
            "DAMAGE_QUADRATIC": w["damage_quadratic"],
            "ABATEMENT_EXPONENT": w["abatement_exponent"],
            "FORCING": w["forcing_of_doubling"] / np.log(2),
            "FEEDBACK": w["forcing_of_doubling"] / w["temperature_of_doubling"],
            "WARMING_SPEED": w["warming_speed"],
            "OCEAN_LOSS": w["ocean_loss"],
            "OCEAN_SPEED": w["ocean_speed"],
            "CARBON_EQUILIBRIUM": w["carbon_equilibrium"],
            "UPPER_EQUILIBRIUM": w["upper_ocean_equilibrium"],
            "LOWER_EQUILIBRIUM": w["lower_ocean_equilibrium"],
            "ATMOSPHERE_TO_UPPER": w["carbon_to_ocean"],
            "UPPER_TO_ATMOSPHERE": w["carbon_to_ocean"] * w["carbon_equilibrium"] / w["upper_ocean_equilibrium"],
            "UPPER_TO_LOWER": w["carbon_to_deep"],
            "LOWER_TO_UPPER": w["carbon_to_deep"] * w["upper_ocean_equilibrium"] / w["lower_ocean_equilibrium"],
            "EMITTED_CARBON": w["years"] * w["carbon_of_co2"],
            "START_ATMOSPHERE": w["carbon_atmosphere"],
            "START_UPPER": w["carbon_upper_ocean"],
            "START_LOWER": w["carbon_lower_ocean"],
            "START_AIR": w["temperature_atmosphere"],
            "START_OCEAN": w["temperature_ocean"],
            "UTILITY_EXPONENT": 1 - w["utility_elasticity"],
            "MIN_CONSUMPTION": config.min_consumption,
            "INTEREST": 1 + w["balance_interest"],
            "SUBSTITUTION": w["substitution"],
            "INVERSE_SUBSTITUTION": 1 / w["substitution"],
            "DOMESTIC": w["domestic_preference"],
            "FOREIGN": w["foreign_preference"] / (self.num_agents - 1),
        }

    def get_data_dictionary(self) -> DataFeed:
        """Return state and paths; and the one start, if no pool is used."""
        feed = DataFeed()
        for name in Regions._fields:
            row = np.zeros(self.num_agents, np.float32)
            feed.add_data(name, row, per_env=True, log_data_across_episode=True)
        for name, n_boxes in zip(Climate._fields, (3, 2), strict=True):
            feed.add_data(name, np.zeros(n_boxes, np.float32), per_env=True)
        for name in ("promise", "ask"):
            feed.add_data(name, np.zeros((self.num_agents, self.n_partners), np.int32), per_env=True)
        feed.add_data("pledge", np.zeros(self.num_agents, np.int32), per_env=True)
        for name, array in self.config.paths.items():
            feed.add_data(name, array)
        if not self.config.reset_pool_size:
            feed.add_data("capital_reset_pool", self.config.starts)
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """Return the arrays that a trainer reads and writes."""
        feed = trainer_arrays(self.num_agents, self.config.n_features, len(self.config.action_levels))
        feed.add_data("action_mask", np.ones((self.num_agents, self.n_choices), np.int32), per_env=True)
        return feed

    def get_reset_pool_dictionary(self) -> DataFeed:
        """Return the pool of starts, if rows are drawn from it."""
        feed = DataFeed()
        if self.config.reset_pool_size:
            feed.add_pool_for_reset("capital_reset_pool", self.config.starts, reset_target="capital")
        return feed

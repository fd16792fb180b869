"""RICE in plain NumPy, over environments and regions: the environment is the last axis, so that rows are long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from warpdrive_min.errors import require

from .batch import Array, Batch, Floats, Indices


class Rice(Batch):
    """RICE without trade and negotiation; arrays are ``(..., n_agents, n_envs)``.

    Raises:
        ConfigError: Regions trade or negotiate, or starts are drawn from a pool.
    """

    def __init__(self, config: Any, n_envs: int, seed: int) -> None:
        super().__init__(config, n_envs, seed)
        require(not config.trade, "plain Rice", "knows no trade", config.trade)
        require(not config.negotiation, "plain Rice", "knows no negotiation", config.negotiation)
        require(not config.reset_pool_size, "plain Rice", "takes one start", config.reset_pool_size)
        self.parameters = config.world
        n = config.n_agents
        self.paths = config.paths
        self.first_capital: Floats = config.starts[0][:, None]
        self.capital, self.output, self.consumption, self.emissions, self.mitigation, self.rewards = np.zeros(
            (6, n, n_envs), np.float32
        )
        self.carbon, self.temperature = np.zeros((3, n_envs), np.float32), np.zeros((2, n_envs), np.float32)
        self.show(np.zeros((config.n_features, n, n_envs), np.float32))
        self.observations[14 + np.arange(n), np.arange(n)] = 1
        self.restart(np.arange(n_envs))
        self.observe()
        self.seen_at_first = self.observations[..., 0].copy()

    def draw(self) -> Array:
        """Draw both levels."""
        return self.generator.integers(self.config.num_levels, size=(2, *self.capital.shape), dtype=np.int8)

    def as_sampled(self, actions: Array) -> Array:
        """Put environments first, and types last."""
        return actions.T

    def arrays(self) -> Mapping[str, Array]:
        """Return views."""
        names = ["capital", "output", "consumption", "emissions", "mitigation", "carbon", "temperature"]
        names += ["rewards", "observations", "final_observations"]
        return {"_timestep_": self.timestep} | {name: getattr(self, name).T for name in names}

    def advance(self, actions: Array) -> None:
        """Produce, pollute, warm and consume; all environments may be in different periods."""
        w, period = self.parameters, self.timestep - 1
        now = {name: path[period].T for name, path in self.paths.items() if name not in ("profile", "credit")}
        np.divide(actions[0], self.config.num_levels - 1, out=self.mitigation)
        savings = actions[1] / np.float32(self.config.num_levels)
        air = self.temperature[0]
        gross = now["production"] * self.capital ** np.float32(w["capital_share"])
        kept = 1 - w["damage_linear"] * air - w["damage_quadratic"] * air * air
        cost = now["abatement"] * self.mitigation ** np.float32(w["abatement_exponent"])
        np.multiply(np.maximum(kept, 0) * np.maximum(1 - cost, 0), gross, out=self.output)
        np.multiply(now["intensity"] * (1 - self.mitigation), gross, out=self.emissions)
        self.capital *= (1 - w["depreciation"]) ** w["years"]
        self.capital += w["years"] * savings * self.output
        np.multiply(self.output, 1 - savings, out=self.consumption)
        self.warm(now["world"][0], self.paths["world"][self.timestep, 1])
        each = np.maximum(self.consumption / now["labour"], self.config.min_consumption)
        exponent = 1 - w["utility_elasticity"]
        np.multiply(now["labour"], (each ** np.float32(exponent) - 1) / exponent, out=self.rewards)
        self.observe()

    def warm(self, land: Array, other_forcing: Array) -> None:
        """Move carbon and heat between the boxes."""
        w, (atmosphere, upper, lower), (air, ocean) = self.parameters, self.carbon.copy(), self.temperature.copy()
        risen = w["carbon_to_ocean"] * w["carbon_equilibrium"] / w["upper_ocean_equilibrium"] * upper
        lifted = w["carbon_to_deep"] * w["upper_ocean_equilibrium"] / w["lower_ocean_equilibrium"] * lower
        sunk, buried = w["carbon_to_ocean"] * atmosphere - risen, w["carbon_to_deep"] * upper - lifted
        emitted = w["years"] * w["carbon_of_co2"] * (self.emissions.sum(0) + land)
        self.carbon += np.stack([emitted - sunk, sunk - buried, buried])
        lost = w["forcing_of_doubling"] / w["temperature_of_doubling"] * air + w["ocean_loss"] * (air - ocean)
        forcing = w["forcing_of_doubling"] * np.log2(self.carbon[0] / w["carbon_equilibrium"]) + other_forcing
        self.temperature[0] += w["warming_speed"] * (forcing - lost)
        self.temperature[1] += w["ocean_speed"] * (air - ocean)

    def observe(self) -> None:
        """Write what changes of the observations of all regions."""
        w, seen, n = self.parameters, self.observations, self.config.n_agents
        seen[0] = self.timestep / np.float32(self.episode_length)
        seen[1:3] = self.temperature[:, None] / 5
        boxes = ("carbon_equilibrium", "upper_ocean_equilibrium", "lower_ocean_equilibrium")
        seen[3:6] = self.carbon[:, None] / np.array([w[name] for name in boxes], np.float32)[:, None, None]
        seen[6:10] = self.paths["profile"][self.timestep].T
        public = np.log(self.capital) / 4, np.log1p(self.output) / 4, self.emissions / 10, self.mitigation
        for column, values in enumerate(public):
            seen[10 + column] = values
            seen[14 + n + column :: 4] = values[:, None]

    def restart(self, envs: Indices) -> None:
        """Go back to 2015, and show it."""
        w = self.parameters
        self.capital[:, envs] = self.first_capital
        for array in (self.output, self.consumption, self.emissions, self.mitigation):
            array[:, envs] = 0
        boxes = ("carbon_atmosphere", "carbon_upper_ocean", "carbon_lower_ocean")
        self.carbon[:, envs] = np.array([w[name] for name in boxes], np.float32)[:, None]
        layers = ("temperature_atmosphere", "temperature_ocean")
        self.temperature[:, envs] = np.array([w[name] for name in layers], np.float32)[:, None]
        if hasattr(self, "seen_at_first"):
            self.observations[..., envs] = self.seen_at_first[..., None]

"""The COVID-19 economy in plain NumPy, over states and environments, the last axis, so that rows are long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np

from warpdrive_min.envs import Covid19Economy as Shared
from warpdrive_min.errors import require

from .batch import Array, Batch, Floats, Indices

PEOPLE: Final = ("susceptible", "infected", "recovered", "vaccinated")
GOVERNORS: Final = 51


class Covid19Economy(Batch):
    """The COVID-19 economy, whose last agent is the government; arrays are ``(..., n_states, n_envs)``.

    Raises:
        ConfigError: Starts are drawn.
    """

    def __init__(self, config: Any, n_envs: int, seed: int) -> None:
        super().__init__(config, n_envs, seed)
        require(not config.start_spread, "plain Covid19Economy", "takes one start", config.start_spread)
        made = Shared(**config.to_dict())
        feed, constants = made.get_data_dictionary(), cast(dict[str, Any], made.get_constants())
        given = {name: np.asarray(entry["data"]) for name, entry in feed.items()}
        self.given = given
        self.removal, self.mortality = np.float32(constants["REMOVAL_RATE"]), np.float32(constants["MORTALITY"])
        self.doses = np.float32(constants["DAILY_VACCINATIONS"])
        self.decay = np.array(constants["FILTER_DECAY"], np.float32)[:, None, None]
        self.unit = np.float32(constants["SUBSIDY_UNIT"])
        self.slope, self.intercept, self.floor = (
            given[name][:, None] for name in ("transmission_slope", "transmission_intercept", "unemployment_floor")
        )
        self.share = given["population_share"]
        self.weight = given["filter_weight"].T[..., None].copy()
        self.health, self.health_low, self.health_scale, self.economy_low, self.economy_scale = (
            given[name][:, None]
            for name in ("health_weight", "health_low", "health_scale", "economy_low", "economy_scale")
        )
        self.days = np.array([*[config.stringency_days] * GOVERNORS, config.subsidy_days], np.int32)[:, None]
        self.people = np.zeros((4, GOVERNORS, n_envs), np.float32)
        self.filters = np.zeros((5, GOVERNORS, n_envs), np.float32)
        self.new_deaths, self.unemployment, self.productivity = np.zeros((3, GOVERNORS, n_envs), np.float32)
        self.national = np.zeros((8, n_envs), np.float32)
        self.level = np.zeros((GOVERNORS + 1, n_envs), np.int32)
        """Stringency of the states, and the subsidy."""
        self.past = np.zeros((len(given["start_past_stringency"]), GOVERNORS, n_envs), np.int32)
        self.cooldown = np.zeros((GOVERNORS + 1, n_envs), np.int32)
        self.rewards = np.zeros((GOVERNORS + 1, n_envs), np.float32)
        self.show(np.zeros((given["shown"].shape[1] + 18, GOVERNORS, n_envs), np.float32))
        self.of_government = np.zeros((4 * GOVERNORS + 11, n_envs), np.float32)
        self.final_of_government = np.zeros_like(self.of_government)
        self.observations[17] = self.health[:-1]
        self.observations[18:] = given["shown"].T[..., None]
        self.restart(np.arange(n_envs))

    def draw(self) -> Array:
        """Draw an action for each agent."""
        choices = np.array([*[11] * GOVERNORS, self.config.num_subsidy_levels + 2])[:, None]
        drawn: Array = (self.generator.random((GOVERNORS + 1, self.n_envs), np.float32) * choices).astype(np.int32)
        return drawn

    def as_sampled(self, actions: Array) -> Array:
        """Put environments first, and add the axis of types."""
        return actions.T[..., None]

    def sampled(self, actions: Array) -> Mapping[str, Array]:
        """Return the actions of both roles."""
        both = self.as_sampled(actions)
        return {"sampled_actions_governor": both[:, :-1], "sampled_actions_government": both[:, -1:]}

    def arrays(self) -> Mapping[str, Array]:
        """Return views."""
        masks = {
            "governor": np.broadcast_to(self.cooldown[:-1].T[..., None] == 0, (self.n_envs, GOVERNORS, 11)).copy(),
            "government": np.repeat(self.cooldown[-1:].T[..., None] == 0, self.config.num_subsidy_levels + 2, axis=2),
        }
        for mask in masks.values():
            mask[..., 0] = True
        return {
            **{name: self.people[index].T for index, name in enumerate(PEOPLE)},
            "filters": self.filters.transpose(2, 1, 0),
            "new_deaths": self.new_deaths.T,
            "unemployment": self.unemployment.T,
            "productivity": self.productivity.T,
            "national": self.national.T,
            "stringency": self.level[:-1].T,
            "subsidy": self.level[-1],
            "past_stringency": self.past.transpose(2, 0, 1),
            "cooldown": self.cooldown.T,
            "_timestep_": self.timestep,
            "observations_governor_seen": self.observations.T,
            "observations_government_seen": self.of_government.T[:, None],
            **{f"observations_{role}_action_mask": mask for role, mask in masks.items()},
            "final_observations_governor_seen": self.final_observations.T,
            "final_observations_government_seen": self.final_of_government.T[:, None],
            "rewards_governor": self.rewards[:-1].T,
            "rewards_government": self.rewards[-1:].T,
        }

    def advance(self, actions: Array) -> None:
        """Take the choices, then a day of the epidemic and of the economy."""
        self.filters *= self.decay
        self.filters += self.choose(actions)
        # The step before has counted: `timestep` is that of the day's end.
        day, slot = self.timestep - 1, (self.timestep - 1) % len(self.past)
        env = np.arange(self.n_envs)
        delayed = self.past[slot, :, env].T
        self.past[slot, :, env] = self.level[:-1].T
        susceptible, infected, recovered, vaccinated = self.people
        infections = np.maximum(self.slope * delayed.astype(np.float32) + self.intercept, 0) * susceptible * infected
        np.minimum(infections, susceptible, out=infections)
        removed = self.removal * infected
        susceptible -= infections
        shots = np.minimum(np.where(day >= self.config.vaccination_start, self.doses, np.float32(0)), susceptible)
        susceptible -= shots
        vaccinated += shots
        infected += infections
        infected -= removed
        recovered += removed
        np.multiply(removed, self.mortality, out=self.new_deaths)
        self.work()
        self.score()
        self.observe(np.s_[:])

    def choose(self, actions: Array) -> Floats:
        """Take the choices of those who may choose; returns by how much stringency changes."""
        is_choice = (self.cooldown == 0) & (actions > 0)
        level = np.where(is_choice, actions, self.level)
        level[-1] -= is_choice[-1]
        change = (level[:-1] - self.level[:-1]).astype(np.float32)
        self.level[:] = level
        np.maximum(np.where(is_choice, self.days, self.cooldown) - 1, 0, out=self.cooldown)
        return change

    def work(self) -> None:
        """Find who works, and the averages of the nation."""
        signal = (self.weight * self.filters).sum(0)
        np.minimum(np.logaddexp(signal, np.float32(0)) + self.floor, 100, out=self.unemployment)
        sick = np.float32(self.config.too_sick_to_work)
        able = 1 - self.mortality * self.people[2] - sick * self.people[1]
        np.multiply(able, 1 - self.unemployment * np.float32(0.01), out=self.productivity)
        for row, values in enumerate((*self.people, self.unemployment, self.productivity, self.new_deaths)):
            np.matmul(self.share, values, out=self.national[row])
        np.matmul(self.share, self.level[:-1].astype(np.float32), out=self.national[7])

    def score(self) -> None:
        """Give the rewards."""
        paid = self.unit * self.level[-1].astype(np.float32)
        net = self.national[5] - np.float32(self.config.interest_rate) * paid
        income = np.clip(np.concatenate([self.productivity + paid, net[None]]), np.float32(0.1), np.float32(3))
        rest = np.float32(1 - self.config.risk_aversion)
        utility = 1 + np.log(income) if rest == 0 else 1 + (income**rest - 1) / rest
        deaths = np.concatenate([self.new_deaths, self.national[6:7]])
        health = (-deaths - self.health_low) * self.health_scale
        wealth = (utility - self.economy_low) * self.economy_scale
        self.rewards[:] = self.health * health + (1 - self.health) * wealth

    def observe(self, envs: Any) -> None:
        """Write what both roles of these environments see."""
        seen, nation = self.observations, self.of_government
        timestep = self.timestep[envs]
        every = np.arange(self.n_envs)[envs]
        level = self.level[:-1, envs] * np.float32(0.1)
        ill, deaths = self.people[1][:, envs] * np.float32(100), self.new_deaths[:, envs] * np.float32(100_000)
        idle = self.unemployment[:, envs] * np.float32(0.1)
        paid = self.level[-1, envs] * np.float32(1 / self.config.num_subsidy_levels)
        wait = self.cooldown[:, envs] * (1 / self.days).astype(np.float32)
        day = timestep * np.float32(1 / self.config.episode_length)
        scale = np.array([1, 100, 1, 1, 0.1, 1, 100_000, 0.1], np.float32)[:, None]
        averages = self.national[:, envs] * scale
        delayed = self.past[timestep % len(self.past), :, every].T * np.float32(0.1)
        susceptible, _, recovered, vaccinated = self.people[:, :, envs]
        columns = (level, delayed, wait[:-1], susceptible, ill, recovered, vaccinated, deaths, idle)
        rows = (self.productivity[:, envs], paid, *averages[[1, 6, 4, 7]], day, wait[-1])
        for column, values in enumerate((*columns, *rows)):
            seen[column][:, envs] = values
        nation[:, envs] = np.concatenate([level, ill, deaths, idle, averages, paid[None], wait[-1:], day[None]])

    def restart(self, envs: Indices) -> None:
        """Put environments at the recorded start."""
        given = self.given
        infected, recovered = given["start_infected"], given["start_recovered"]
        people = np.stack([1 - infected - recovered, infected, recovered, np.zeros_like(infected)])
        self.people[:, :, envs] = people[..., None]
        self.filters[:, :, envs] = given["start_filters"].T[..., None]
        self.new_deaths[:, envs] = 0
        self.level[:-1, envs] = given["start_stringency"][:, None]
        self.level[-1, envs] = 0
        self.past[:, :, envs] = given["start_past_stringency"][..., None]
        self.cooldown[:, envs] = 0
        self.work()
        self.observe(envs)

    def keep_last(self, envs: Indices) -> None:
        """Keep what was seen last."""
        super().keep_last(envs)
        self.final_of_government[:, envs] = self.of_government[:, envs]

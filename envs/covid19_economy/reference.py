"""COVID-19 economy in NumPy, batched: the reference, and backend `cpu`.

Phases: `decide`, `spread`, `work`, `score`, `observe`, `start`. Arrays are ``(n_envs, n_states)`` unless stated.
Exponentials and logarithms are those of `maths.cuh`, and sums over states run in order: exact builds are bit-identical
on every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.arrays import Clock, rows
from warpdrive_min.kernels.maths_numpy import exp, log
from warpdrive_min.rng import STREAM_START, philox, uniform

from .arrays import Country, Measures, Outcome, Starts

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Envs = NDArray[np.intp]

ONE: Final = np.float32(1)
LINEAR_ABOVE: Final = np.float32(15)
"""Argument above which softplus(x) equals x in float32."""
MIN_INCOME, MAX_INCOME = np.float32(0.1), np.float32(3)
"""Bounds of the income in the utility."""
PER_CENT: Final = np.float32(0.01)
TENTH, HUNDRED, HUNDRED_THOUSAND = np.float32(0.1), np.float32(100), np.float32(100_000)
"""Scales of observations.

Levels and per cents in tens, infected in per cent, deaths per day in 100,000 people.
"""


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants ``c``."""

    def step(
        country: Country,
        starts: Starts,
        sampled_actions_governor: Ints,
        sampled_actions_government: Ints,
        clock: Clock,
        outcome: Outcome,
    ) -> None:
        economy, measures = country.economy, country.measures
        change = decide(c, measures, sampled_actions_governor[..., 0], sampled_actions_government[:, 0, 0])
        delayed = remember(c, measures, clock.timestep)
        spread(c, country, delayed, clock.timestep)
        economy.filters[:] = economy.filters * np.float32(c.FILTER_DECAY) + change[..., None]
        work(c, country)
        outcome.national[:] = nation(country)
        score(c, country, outcome)
        clock.timestep[:] += 1
        outcome.terminated[:] = 0
        outcome.truncated[:] = clock.timestep >= c.EPISODE_LENGTH
        clock.done[:] = outcome.truncated
        observe(c, country, clock.timestep, outcome)
        if c.AUTO_RESET and clock.done.any():
            ended = np.flatnonzero(clock.done)
            outcome.final_observations_governor_seen[ended] = outcome.observations_governor_seen[ended]
            outcome.final_observations_government_seen[ended] = outcome.observations_government_seen[ended]
            restart(ended, country, starts, clock, outcome)

    def reset(country: Country, starts: Starts, clock: Clock, outcome: Outcome, force: int) -> None:
        ended = np.flatnonzero((clock.done != 0) | (force != 0))
        clock.done[ended] = 0
        restart(ended, country, starts, clock, outcome)

    def restart(envs: Envs, country: Country, starts: Starts, clock: Clock, outcome: Outcome) -> None:
        start(c, envs, country, starts, clock)
        clock.timestep[envs] = 0
        clock.episode[envs] += 1
        # Fancy indexing copies the restarted rows; results are written back below.
        people, economy, measures, traits, welfare = country
        restarted = Country(rows(people, envs), rows(economy, envs), rows(measures, envs), traits, welfare)
        shown = rows(outcome, envs)
        shown.national[:] = nation(restarted)
        observe(c, restarted, clock.timestep[envs], shown)
        for name in ("national", *(name for name in Outcome._fields if name.startswith("observations"))):
            getattr(outcome, name)[envs] = getattr(shown, name)

    return {"step": step, "reset": reset}


def decide(c: Any, measures: Measures, governors: Ints, government: Ints) -> Floats:
    """Apply the allowed choices in place; return each state's stringency change.

    Action 0 keeps a level, action k sets stringency k or subsidy k - 1. A choice holds for some days. Forbidden or
    invalid actions change nothing.
    """
    free = measures.cooldown == 0
    chosen = np.concatenate([governors, government[:, None]], axis=1)
    is_choice = free & (chosen > 0) & (chosen <= np.array([*[c.N_LEVELS] * c.N_STATES, c.N_SUBSIDIES]))
    days = np.array([*[c.STRINGENCY_DAYS] * c.N_STATES, c.SUBSIDY_DAYS])
    measures.cooldown[:] = np.maximum(np.where(is_choice, days, measures.cooldown) - 1, 0)
    level = np.where(is_choice[:, :-1], governors, measures.stringency)
    change: Floats = (level - measures.stringency).astype(np.float32)
    measures.stringency[:] = level
    measures.subsidy[:] = np.where(is_choice[:, -1], government - 1, measures.subsidy)
    return change


def remember(c: Any, measures: Measures, timestep: Ints) -> Ints:
    """Return each state's stringency `DELAY` days ago, and store today's."""
    env, slot = np.arange(len(timestep)), timestep % c.DELAY
    delayed: Ints = measures.past_stringency[env, slot]
    measures.past_stringency[env, slot] = measures.stringency
    return delayed


def spread(c: Any, country: Country, delayed: Ints, timestep: Ints) -> None:
    """Advance the epidemic by a day, in place: infect, vaccinate, recover, die."""
    (susceptible, infected, recovered, vaccinated), traits = country.people, country.traits
    rate = traits.transmission_slope * delayed.astype(np.float32) + traits.transmission_intercept
    infections = np.minimum((np.maximum(rate, np.float32(0)) * susceptible) * infected, susceptible)
    removed = c.REMOVAL_RATE * infected
    left = susceptible - infections
    doses = np.where(timestep >= c.VACCINATION_START, c.DAILY_VACCINATIONS, np.float32(0))
    shots = np.minimum(doses[:, None], left)
    susceptible[:] = left - shots
    infected[:] = (infected + infections) - removed
    recovered[:] = recovered + removed
    vaccinated[:] = vaccinated + shots
    country.economy.new_deaths[:] = c.MORTALITY * removed


def work(c: Any, country: Country) -> None:
    """Write unemployment, per cent, and production, as a share of its potential."""
    people, economy, _, traits, _ = country
    signal = np.zeros_like(economy.unemployment)
    for k in range(c.N_FILTERS):
        signal = signal + traits.filter_weight[:, k] * economy.filters[..., k]
    softplus = np.where(signal > LINEAR_ABOVE, signal, log(ONE + exp(np.minimum(signal, LINEAR_ABOVE))))
    economy.unemployment[:] = np.minimum(softplus + traits.unemployment_floor, HUNDRED)
    able = (ONE - c.MORTALITY * people.recovered) - c.TOO_SICK_TO_WORK * people.infected
    economy.productivity[:] = able * (ONE - economy.unemployment * PER_CENT)


def nation(country: Country) -> Floats:
    """Return averages over people, ``(n_envs, 8)``.

    They cover the four groups, the day's deaths, work and stringency.
    """
    people, economy, measures, traits, _ = country
    of_states = (*people, economy.unemployment, economy.productivity, economy.new_deaths, measures.stringency)
    totals = np.zeros((len(measures.subsidy), len(of_states)), np.float32)
    for index, values in enumerate(of_states):
        parts = traits.population_share * values.astype(np.float32)
        for state in range(parts.shape[1]):  # in the same order in every language
            totals[:, index] += parts[:, state]
    return totals


def score(c: Any, country: Country, outcome: Outcome) -> None:
    """Write the rewards: the day's welfare of each state and of the nation."""
    _, economy, measures, _, welfare = country
    paid = c.SUBSIDY_UNIT * measures.subsidy.astype(np.float32)
    averages = outcome.national
    deaths = np.concatenate([economy.new_deaths, averages[:, 6:7]], axis=1)
    incomes = [economy.productivity + paid[:, None], (averages[:, 5] - c.INTEREST_RATE * paid)[:, None]]
    income = np.clip(np.concatenate(incomes, axis=1), MIN_INCOME, MAX_INCOME)
    health = (-deaths - welfare.health_low) * welfare.health_scale
    wealth = (utility(c, income) - welfare.economy_low) * welfare.economy_scale
    total = welfare.health_weight * health + (ONE - welfare.health_weight) * wealth
    outcome.rewards_governor[:] = total[:, :-1]
    outcome.rewards_government[:] = total[:, -1:]


def utility(c: Any, income: Floats) -> Floats:
    """Return the utility of constant relative risk aversion; 1 for an income of 1."""
    logarithm = log(income)
    if c.IS_LOGARITHMIC:
        return ONE + logarithm
    power: Floats = exp(c.ONE_MINUS_AVERSION * logarithm)
    return ONE + (power - ONE) * np.float32(c.INV_ONE_MINUS_AVERSION)


def observe(c: Any, country: Country, timestep: Ints, outcome: Outcome) -> None:
    """Write the observations and action masks of governors and government."""
    people, economy, measures, traits, welfare = country
    day = (timestep.astype(np.float32) * c.INV_EPISODE_LENGTH)[:, None]
    delayed = measures.past_stringency[np.arange(len(timestep)), timestep % c.DELAY]
    paid = measures.subsidy.astype(np.float32)[:, None] * c.INV_SUBSIDY_LEVELS
    wait = measures.cooldown[:, :-1].astype(np.float32) * c.INV_STRINGENCY_DAYS
    wait_government = measures.cooldown[:, -1:].astype(np.float32) * c.INV_SUBSIDY_DAYS
    stringency = measures.stringency.astype(np.float32) * TENTH
    infected, deaths = people.infected * HUNDRED, economy.new_deaths * HUNDRED_THOUSAND
    unemployment = economy.unemployment * TENTH
    scale = np.array([ONE, HUNDRED, ONE, ONE, TENTH, ONE, HUNDRED_THOUSAND, TENTH])
    averages = outcome.national * scale

    seen = outcome.observations_governor_seen
    columns = (
        stringency,
        delayed.astype(np.float32) * TENTH,
        wait,
        people.susceptible,
        infected,
        people.recovered,
        people.vaccinated,
        deaths,
        unemployment,
        economy.productivity,
        paid,
        averages[:, 1:2],
        averages[:, 6:7],
        averages[:, 4:5],
        averages[:, 7:8],
        day,
        wait_government,
    )
    for column, values in enumerate(columns):
        seen[..., column] = values
    seen[..., len(columns)] = welfare.health_weight[:-1]
    seen[..., len(columns) + 1 :] = traits.shown

    of_nation = outcome.observations_government_seen[:, 0]
    of_nation[:, : 4 * c.N_STATES] = np.concatenate([stringency, infected, deaths, unemployment], axis=1)
    of_nation[:, 4 * c.N_STATES :] = np.concatenate([averages, paid, wait_government, day], axis=1)

    for mask, waiting in (
        (outcome.observations_governor_action_mask, measures.cooldown[:, :-1]),
        (outcome.observations_government_action_mask, measures.cooldown[:, -1:]),
    ):
        mask[..., 0] = 1
        mask[..., 1:] = (waiting == 0)[..., None]


def start(c: Any, envs: Envs, country: Country, starts: Starts, clock: Clock) -> None:
    """Set environments to the start of an episode, in place."""
    people, economy, measures, _, _ = country
    low, high = clock.reset_seed
    word = philox(clock.episode[envs, None], envs[:, None], np.arange(c.N_STATES), STREAM_START, low, high)[0]
    more = ONE + c.START_SPREAD * (np.float32(2) * uniform(word) - ONE)
    infected = starts.start_infected * more
    people.infected[envs] = infected
    people.recovered[envs] = starts.start_recovered
    people.susceptible[envs] = (ONE - infected) - starts.start_recovered
    people.vaccinated[envs] = 0
    economy.filters[envs] = starts.start_filters
    economy.new_deaths[envs] = 0
    measures.stringency[envs] = starts.start_stringency
    measures.past_stringency[envs] = starts.start_past_stringency
    measures.subsidy[envs] = 0
    measures.cooldown[envs] = 0
    started = country._replace(people=rows(people, envs), economy=rows(economy, envs))
    work(c, started)
    economy.unemployment[envs], economy.productivity[envs] = started.economy.unemployment, started.economy.productivity

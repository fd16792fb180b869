"""One state's day and welfare, for kernel_numba.py; mirrors agent.cuh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.core_numba import clip, exp, log

ZERO, ONE = np.float32(0), np.float32(1)
LINEAR_ABOVE, PER_CENT = np.float32(15), np.float32(0.01)
MIN_INCOME, MAX_INCOME = np.float32(0.1), np.float32(3)
TENTH, HUNDRED, HUNDRED_THOUSAND = np.float32(0.1), np.float32(100), np.float32(100_000)
SUSCEPTIBLE, INFECTED, RECOVERED, VACCINATED, UNEMPLOYMENT, PRODUCTIVITY, NEW_DEATHS, STRINGENCY = range(8)
"""Columns of the national averages."""
N_TRAITS: Final = 4


class State(NamedTuple):
    """Device functions for one state."""

    choose: Callable[..., Any]
    unemployed: Callable[..., Any]
    produced: Callable[..., Any]
    live: Callable[..., Any]
    welfare_of: Callable[..., Any]


def state_functions(c: Any) -> State:
    """Close the device functions over the constants."""
    n_filters, delay = c.N_FILTERS, c.DELAY
    removal_rate, mortality, too_sick = c.REMOVAL_RATE, c.MORTALITY, c.TOO_SICK_TO_WORK
    first_day, daily = c.VACCINATION_START, c.DAILY_VACCINATIONS
    decay = tuple(np.float32(each) for each in c.FILTER_DECAY)
    is_logarithmic, power, inv_power = c.IS_LOGARITHMIC, c.ONE_MINUS_AVERSION, c.INV_ONE_MINUS_AVERSION

    @cuda.jit(device=True)
    def choose(cooldown, env, agent, action, last, days):
        """Apply a choice if allowed; return True if applied."""
        is_choice = cooldown[env, agent] == 0 and action > 0 and action <= last
        cooldown[env, agent] = max(int32((days if is_choice else cooldown[env, agent]) - 1), int32(0))
        return is_choice

    @cuda.jit(device=True)
    def produced(recovered, infected, unemployment):
        """Return the production as a share of everybody's potential.

        Sick and unemployed people do not produce.
        """
        able = (ONE - mortality * recovered) - too_sick * infected
        return able * (ONE - unemployment * PER_CENT)

    @cuda.jit(device=True)
    def unemployed(filters, state, traits):
        """Return unemployment, per cent, from filtered stringency changes.

        The filters are ``[state, filter]``.
        """
        signal = ZERO
        for k in range(n_filters):
            signal = signal + traits.filter_weight[state, k] * filters[state, k]
        softplus = signal if signal > LINEAR_ABOVE else log(ONE + exp(signal))
        return min(float32(softplus + traits.unemployment_floor[state]), HUNDRED)

    @cuda.jit(device=True)
    def live(env, state, level, timestep, people, economy, measures, traits):
        """Advance a state by a day: epidemic and work."""
        change = float32(level - measures.stringency[env, state])
        slot = timestep % delay
        delayed = float32(measures.past_stringency[env, slot, state])
        measures.stringency[env, state] = level
        measures.past_stringency[env, slot, state] = level

        healthy, ill = people.susceptible[env, state], people.infected[env, state]
        rate = traits.transmission_slope[state] * delayed + traits.transmission_intercept[state]
        infections = min((max(rate, ZERO) * healthy) * ill, healthy)
        removed = removal_rate * ill
        left = healthy - infections
        shots = min(daily if timestep >= first_day else ZERO, left)
        now_ill, now_over = (ill + infections) - removed, people.recovered[env, state] + removed
        people.susceptible[env, state] = left - shots
        people.infected[env, state] = now_ill
        people.recovered[env, state] = now_over
        people.vaccinated[env, state] = people.vaccinated[env, state] + shots
        economy.new_deaths[env, state] = mortality * removed

        for k in range(n_filters):
            economy.filters[env, state, k] = economy.filters[env, state, k] * decay[k] + change
        idle = unemployed(economy.filters[env], state, traits)
        economy.unemployment[env, state] = idle
        economy.productivity[env, state] = produced(now_over, now_ill, idle)

    @cuda.jit(device=True)
    def utility(income):
        logarithm = log(clip(income, MIN_INCOME, MAX_INCOME))
        if is_logarithmic:
            return ONE + logarithm
        return ONE + (exp(power * logarithm) - ONE) * inv_power

    @cuda.jit(device=True)
    def welfare_of(agent, deaths, income, welfare):
        """Return an agent's welfare of a day's deaths and income."""
        weight = welfare.health_weight[agent]
        health = (-deaths - welfare.health_low[agent]) * welfare.health_scale[agent]
        wealth = (utility(income) - welfare.economy_low[agent]) * welfare.economy_scale[agent]
        return weight * health + (ONE - weight) * wealth

    return State(choose, unemployed, produced, live, welfare_of)

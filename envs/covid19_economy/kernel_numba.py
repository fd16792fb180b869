"""COVID-19 economy in Numba, with the phases of reference.py.

Phases: decide, spread, work, score, observe, start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint8

from warpdrive_min.kernels.arrays import Clock
from warpdrive_min.kernels.core_numba import STREAM_START, agent_at, any_ended, env_at, philox, take_ended, uniform

from .agent_numba import (
    HUNDRED,
    HUNDRED_THOUSAND,
    INFECTED,
    N_TRAITS,
    NEW_DEATHS,
    ONE,
    PRODUCTIVITY,
    RECOVERED,
    STRINGENCY,
    TENTH,
    UNEMPLOYMENT,
    VACCINATED,
    ZERO,
    state_functions,
)
from .arrays import Country, Outcome, Starts


class Block(NamedTuple):
    """Shared memory of a block: elapsed share of the episode, and end flags."""

    day: float32[:]
    ended: uint8[:]


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    choose, unemployed, produced, live, welfare_of = state_functions(c)
    threads, envs_per_block, auto_reset = c.THREADS, c.ENVS_PER_BLOCK, c.AUTO_RESET
    n_agents, n_states, n_national, n_filters, delay = c.N_AGENTS, c.N_STATES, c.N_NATIONAL, c.N_FILTERS, c.DELAY
    n_levels, n_subsidies, episode_length = c.N_LEVELS, c.N_SUBSIDIES, c.EPISODE_LENGTH
    stringency_days, subsidy_days = c.STRINGENCY_DAYS, c.SUBSIDY_DAYS
    subsidy_unit, interest_rate, start_spread = c.SUBSIDY_UNIT, c.INTEREST_RATE, c.START_SPREAD
    inv_length, inv_levels = c.INV_EPISODE_LENGTH, c.INV_SUBSIDY_LEVELS
    inv_stringency_days, inv_subsidy_days = c.INV_STRINGENCY_DAYS, c.INV_SUBSIDY_DAYS
    government, n_items, two = n_states, envs_per_block * n_agents, np.float32(2)

    @cuda.jit(device=True)
    def shared_memory():
        return Block(
            cuda.shared.array(envs_per_block, float32),
            cuda.shared.array(envs_per_block, uint8),
        )

    @cuda.jit(device=True)
    def average(env, which, country):
        """Return a national average, summed in the order of the states."""
        people, economy = country.people, country.economy
        of_states = people.susceptible
        if which == INFECTED:
            of_states = people.infected
        elif which == RECOVERED:
            of_states = people.recovered
        elif which == VACCINATED:
            of_states = people.vaccinated
        elif which == UNEMPLOYMENT:
            of_states = economy.unemployment
        elif which == PRODUCTIVITY:
            of_states = economy.productivity
        elif which == NEW_DEATHS:
            of_states = economy.new_deaths
        total = ZERO
        for state in range(n_states):
            value = float32(country.measures.stringency[env, state]) if which == STRINGENCY else of_states[env, state]
            total = total + country.traits.population_share[state] * value
        return total

    @cuda.jit(device=True)
    def nation(block, country, national, restarted, n_envs):
        """Write the averages of every environment, or only of restarted ones.

        Call after a block barrier.
        """
        for item in range(cuda.threadIdx.x, envs_per_block * n_national, threads):
            local, env, which = agent_at(item, envs_per_block, n_national)
            if env < n_envs and not (restarted and block.ended[local] == 0):
                national[env, which] = average(env, which, country)

    @cuda.jit(device=True)
    def shown_average(national, env, which):
        value = national[env, which]
        if which == INFECTED:
            value = value * HUNDRED
        elif which == NEW_DEATHS:
            value = value * HUNDRED_THOUSAND
        elif which in (UNEMPLOYMENT, STRINGENCY):
            value = value * TENTH
        return value

    @cuda.jit(device=True)
    def show_nation(block, local, env, country, national, row):
        """Write the government's observation of itself and the nation."""
        for which in range(n_national):
            row[4 * n_states + which] = shown_average(national, env, which)
        measures = country.measures
        row[4 * n_states + n_national] = float32(measures.subsidy[env]) * inv_levels
        row[4 * n_states + n_national + 1] = float32(measures.cooldown[env, government]) * inv_subsidy_days
        row[4 * n_states + n_national + 2] = block.day[local]

    @cuda.jit(device=True)
    def show_state(block, local, env, state, country, clock, national, row, of_states):
        """Write a governor's observation, and the state's part of the government's."""
        people, economy, measures, traits, welfare = country
        level = float32(measures.stringency[env, state]) * TENTH
        ill = people.infected[env, state] * HUNDRED
        deaths = economy.new_deaths[env, state] * HUNDRED_THOUSAND
        idle = economy.unemployment[env, state] * TENTH
        of_states[state] = level
        of_states[n_states + state] = ill
        of_states[2 * n_states + state] = deaths
        of_states[3 * n_states + state] = idle
        row[0] = level
        row[1] = float32(measures.past_stringency[env, clock.timestep[env] % delay, state]) * TENTH
        row[2] = float32(measures.cooldown[env, state]) * inv_stringency_days
        row[3] = people.susceptible[env, state]
        row[4] = ill
        row[5] = people.recovered[env, state]
        row[6] = people.vaccinated[env, state]
        row[7] = deaths
        row[8] = idle
        row[9] = economy.productivity[env, state]
        row[10] = float32(measures.subsidy[env]) * inv_levels
        row[11] = shown_average(national, env, INFECTED)
        row[12] = shown_average(national, env, NEW_DEATHS)
        row[13] = shown_average(national, env, UNEMPLOYMENT)
        row[14] = shown_average(national, env, STRINGENCY)
        row[15] = block.day[local]
        row[16] = float32(measures.cooldown[env, government]) * inv_subsidy_days
        row[17] = welfare.health_weight[state]
        for trait in range(N_TRAITS):
            row[18 + trait] = traits.shown[state, trait]

    @cuda.jit(device=True)
    def observe(block, country, clock, outcome, restarted, n_envs):
        """Write rows and masks of every environment, or only of restarted ones."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and not (restarted and block.ended[local] == 0):
                is_final = auto_reset and not restarted and block.ended[local] != 0
                may_choose = country.measures.cooldown[env, agent] == 0
                of_states = outcome.observations_government_seen[env, 0]
                if is_final:
                    of_states = outcome.final_observations_government_seen[env, 0]
                if agent == government:
                    show_nation(block, local, env, country, outcome.national, of_states)
                    for choice in range(n_subsidies + 1):
                        outcome.observations_government_action_mask[env, 0, choice] = choice == 0 or may_choose
                else:
                    row = outcome.observations_governor_seen[env, agent]
                    if is_final:
                        row = outcome.final_observations_governor_seen[env, agent]
                    show_state(block, local, env, agent, country, clock, outcome.national, row, of_states)
                    for choice in range(n_levels + 1):
                        outcome.observations_governor_action_mask[env, agent, choice] = choice == 0 or may_choose

    @cuda.jit(device=True)
    def put(env, state, country, starts, clock):
        """Set a state to the start of an episode."""
        people, economy, measures = country.people, country.economy, country.measures
        words = philox(clock.episode[env], env, state, STREAM_START, clock.reset_seed[0], clock.reset_seed[1])
        more = ONE + start_spread * (two * uniform(words[0]) - ONE)
        ill, over = starts.start_infected[state] * more, starts.start_recovered[state]
        people.infected[env, state] = ill
        people.recovered[env, state] = over
        people.susceptible[env, state] = (ONE - ill) - over
        people.vaccinated[env, state] = ZERO
        economy.new_deaths[env, state] = ZERO
        measures.stringency[env, state] = starts.start_stringency[state]
        for k in range(n_filters):
            economy.filters[env, state, k] = starts.start_filters[state, k]
        for day in range(delay):
            measures.past_stringency[env, day, state] = starts.start_past_stringency[day, state]
        idle = unemployed(starts.start_filters, state, country.traits)
        economy.unemployment[env, state] = idle
        economy.productivity[env, state] = produced(over, ill, idle)

    @cuda.jit(device=True)
    def start(block, country, starts, clock, outcome, n_envs):
        """Start and observe the next episode of the block's ended environments.

        Call after a block barrier.
        """
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and block.ended[local] != 0:
                country.measures.cooldown[env, agent] = 0
                if agent == government:
                    country.measures.subsidy[env] = 0
                else:
                    put(env, agent, country, starts, clock)
        cuda.syncthreads()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs and block.ended[local] != 0:
                clock.timestep[env] = 0
                clock.episode[env] += 1
                block.day[local] = ZERO
        nation(block, country, outcome.national, True, n_envs)
        cuda.syncthreads()
        observe(block, country, clock, outcome, True, n_envs)

    @cuda.jit
    def step(
        country: Country,
        starts: Starts,
        sampled_actions_governor: int32[:, :, :],
        sampled_actions_government: int32[:, :, :],
        clock: Clock,
        outcome: Outcome,
        n_envs: int32,
    ):
        block = shared_memory()
        people, economy, measures, traits, welfare = country

        # decide, spread and work
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                if agent == government:
                    action = sampled_actions_government[env, 0, 0]
                    if choose(measures.cooldown, env, agent, action, n_subsidies, subsidy_days):
                        measures.subsidy[env] = action - 1
                else:
                    action = sampled_actions_governor[env, agent, 0]
                    is_choice = choose(measures.cooldown, env, agent, action, n_levels, stringency_days)
                    level = action if is_choice else measures.stringency[env, agent]
                    live(env, agent, level, clock.timestep[env], people, economy, measures, traits)
        cuda.syncthreads()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                timestep = clock.timestep[env] + 1
                out_of_time = timestep >= episode_length
                clock.timestep[env] = timestep
                block.day[local] = float32(timestep) * inv_length
                block.ended[local] = out_of_time
                outcome.terminated[env] = 0
                outcome.truncated[env] = out_of_time
                clock.done[env] = out_of_time
        nation(block, country, outcome.national, False, n_envs)
        cuda.syncthreads()

        # score
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                paid = subsidy_unit * float32(measures.subsidy[env])
                if agent == government:
                    deaths, income = outcome.national[env, NEW_DEATHS], outcome.national[env, PRODUCTIVITY]
                    income = income - interest_rate * paid
                    outcome.rewards_government[env, 0] = welfare_of(agent, deaths, income, welfare)
                else:
                    deaths, income = economy.new_deaths[env, agent], economy.productivity[env, agent] + paid
                    outcome.rewards_governor[env, agent] = welfare_of(agent, deaths, income, welfare)
        observe(block, country, clock, outcome, False, n_envs)
        if auto_reset and any_ended(block.ended, n_envs):
            cuda.syncthreads()  # the last day has been observed
            start(block, country, starts, clock, outcome, n_envs)

    @cuda.jit
    def reset(country: Country, starts: Starts, clock: Clock, outcome: Outcome, force: int32, n_envs: int32):
        block = shared_memory()
        take_ended(block.ended, clock, force, envs_per_block, threads, n_envs)
        if any_ended(block.ended, n_envs):
            start(block, country, starts, clock, outcome, n_envs)

    return {"step": step, "reset": reset}

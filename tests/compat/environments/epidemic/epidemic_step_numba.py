"""The epidemic in Numba: a thread for each state, and one for the federal government, as in CUDA C."""
# ruff: noqa: F403, F405

import math

import numba.cuda as numba_driver
from numba import boolean, float32, int32

try:
    from warp_drive.numba_includes.env_config import *
except ImportError as error:
    raise Exception("warp_drive.numba_includes.env_config is not available") from error


@numba_driver.jit(device=True)
def closed(stringency, env_id, state_id, timestep, lag, n_levels):
    return float32(stringency[env_id, max(timestep - lag, 0), state_id] / float32(n_levels - 1))


@numba_driver.jit(device=True)
def nation(population):
    total = float32(0)
    for state in range(wkNumberAgents - 1):
        total += population[state]
    return total


@numba_driver.jit(device=True)
def add_up(arr, env_id):
    total = float32(0)
    for state in range(wkNumberAgents - 1):
        total += arr[env_id, state]
    arr[env_id, wkNumberAgents - 1] = total


@numba_driver.jit(device=True)
def spread(
    susceptible,
    infected,
    recovered,
    deaths,
    vaccinated,
    new_deaths,
    population,
    contacts,
    people,
    dose_share,
    recovery_rate,
    mortality,
    travel_share,
    env_id,
    state_id,
):
    healthy, ill = susceptible[env_id, state_id], infected[env_id, state_id]
    # The government's column still holds the total of the last step.
    pressure = (float32(1) - travel_share) * ill / population[state_id]
    pressure += travel_share * infected[env_id, wkNumberAgents - 1] / people
    cases = min(healthy, contacts * healthy * pressure)
    resolved = recovery_rate * ill
    doses = min(healthy - cases, population[state_id] * dose_share)
    susceptible[env_id, state_id] = healthy - cases - doses
    infected[env_id, state_id] = ill + cases - resolved
    recovered[env_id, state_id] += (float32(1) - mortality) * resolved + doses
    deaths[env_id, state_id] += mortality * resolved
    vaccinated[env_id, state_id] += doses
    new_deaths[env_id, state_id] = mortality * resolved


@numba_driver.jit(device=True)
def observe(obs, env_id, state_id, feature, value, agents_last):
    if agents_last:
        obs[env_id, feature, state_id] = value
    else:
        obs[env_id, state_id, feature] = value


@numba_driver.jit(
    (
        float32[:, ::1],  # susceptible
        float32[:, ::1],  # infected
        float32[:, ::1],  # recovered
        float32[:, ::1],  # deaths
        float32[:, ::1],  # vaccinated
        float32[:, ::1],  # unemployment
        float32[:, ::1],  # output
        float32[:, ::1],  # debt
        int32[:, :, ::1],  # stringency
        int32[:, ::1],  # subsidy_level
        float32[:, ::1],  # new_deaths
        float32[::1],  # population
        float32[::1],  # transmission
        float32[::1],  # closing_effect
        float32[::1],  # job_sensitivity
        int32,  # num_stringency_levels
        int32,  # num_subsidy_levels
        int32,  # subsidy_interval
        int32,  # closing_delay
        int32,  # vaccination_start
        float32,  # vaccination_share
        float32,  # recovery_rate
        float32,  # mortality
        float32,  # travel_share
        float32,  # base_unemployment
        float32,  # interest_rate
        float32,  # max_subsidy_per_person
        boolean,  # agents_last
        float32[::1],  # lag_weights
        float32[:, :, ::1],  # state_obs
        float32[:, :, ::1],  # federal_obs
        int32[:, :, ::1],  # state_actions
        int32[:, :, ::1],  # federal_actions
        int32[::1],  # done
        int32[::1],  # env_timestep
        int32,  # episode_length
    )
)
def NumbaEpidemicStep(
    susceptible,
    infected,
    recovered,
    deaths,
    vaccinated,
    unemployment,
    output,
    debt,
    stringency,
    subsidy_level,
    new_deaths,
    population,
    transmission,
    closing_effect,
    job_sensitivity,
    num_stringency_levels,
    num_subsidy_levels,
    subsidy_interval,
    closing_delay,
    vaccination_start,
    vaccination_share,
    recovery_rate,
    mortality,
    travel_share,
    base_unemployment,
    interest_rate,
    max_subsidy_per_person,
    agents_last,
    lag_weights,
    state_obs,
    federal_obs,
    state_actions,
    federal_actions,
    done,
    env_timestep,
    episode_length,
):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    n_states = wkNumberAgents - 1
    timestep = env_timestep[env_id] + 1
    people = nation(population)

    if agent_id < n_states:
        stringency[env_id, timestep, agent_id] = state_actions[env_id, agent_id, 0]
    elif agent_id == n_states and (timestep - 1) % subsidy_interval == 0:
        subsidy_level[env_id, 0] = federal_actions[env_id, 0, 0]
    # Everyone has read the step counter, and the government has set the subsidies.
    numba_driver.syncthreads()

    subsidy_share = float32(subsidy_level[env_id, 0] / float32(num_subsidy_levels - 1))
    if agent_id == n_states:
        env_timestep[env_id] = timestep
    if agent_id < n_states:
        delayed = closed(stringency, env_id, agent_id, timestep, closing_delay, num_stringency_levels)
        spread(
            susceptible,
            infected,
            recovered,
            deaths,
            vaccinated,
            new_deaths,
            population,
            transmission[agent_id] * math.exp(-closing_effect[agent_id] * delayed),
            people,
            vaccination_share if timestep >= vaccination_start else float32(0),
            recovery_rate,
            mortality,
            travel_share,
            env_id,
            agent_id,
        )
        lagged = float32(0)
        for lag in range(lag_weights.shape[0]):
            lagged += lag_weights[lag] * closed(stringency, env_id, agent_id, timestep, lag, num_stringency_levels)
        # The softplus keeps unemployment above its base, smoothly.
        excess = job_sensitivity[agent_id] * math.log1p(math.exp(float32(6) * lagged - float32(3))) / float32(6)
        unemployed = min(float32(1), base_unemployment + excess)
        able = population[agent_id] - deaths[env_id, agent_id] - infected[env_id, agent_id]
        subsidy = population[agent_id] * max_subsidy_per_person * subsidy_share
        unemployment[env_id, agent_id] = unemployed
        output[env_id, agent_id] = able * (float32(1) - unemployed) + subsidy
        debt[env_id, agent_id] = (float32(1) + interest_rate) * debt[env_id, agent_id] + subsidy
    numba_driver.syncthreads()

    time = float32(timestep / float32(episode_length))
    if agent_id == n_states:
        for arr in (susceptible, infected, recovered, deaths, vaccinated, output, debt):
            add_up(arr, env_id)
        mean = float32(0)
        for state in range(n_states):
            mean += unemployment[env_id, state] * population[state]
        unemployment[env_id, n_states] = mean / people
        federal_obs[env_id, 0, 0] = infected[env_id, n_states] / people
        federal_obs[env_id, 0, 1] = deaths[env_id, n_states] / people
        federal_obs[env_id, 0, 2] = vaccinated[env_id, n_states] / people
        federal_obs[env_id, 0, 3] = unemployment[env_id, n_states]
        federal_obs[env_id, 0, 4] = debt[env_id, n_states] / people
        federal_obs[env_id, 0, 5] = subsidy_share
        federal_obs[env_id, 0, 6] = time
        for state in range(n_states):
            federal_obs[env_id, 0, 7 + state] = infected[env_id, state] / population[state]
            level = closed(stringency, env_id, state, timestep, 0, num_stringency_levels)
            federal_obs[env_id, 0, 7 + n_states + state] = level
        if timestep == episode_length:
            done[env_id] = 1
    if agent_id < n_states:
        residents = population[agent_id]
        observe(state_obs, env_id, agent_id, 0, susceptible[env_id, agent_id] / residents, agents_last)
        observe(state_obs, env_id, agent_id, 1, infected[env_id, agent_id] / residents, agents_last)
        observe(state_obs, env_id, agent_id, 2, recovered[env_id, agent_id] / residents, agents_last)
        observe(state_obs, env_id, agent_id, 3, deaths[env_id, agent_id] / residents, agents_last)
        observe(state_obs, env_id, agent_id, 4, vaccinated[env_id, agent_id] / residents, agents_last)
        observe(state_obs, env_id, agent_id, 5, unemployment[env_id, agent_id], agents_last)
        observe(state_obs, env_id, agent_id, 6, output[env_id, agent_id] / residents, agents_last)
        level = closed(stringency, env_id, agent_id, timestep, 0, num_stringency_levels)
        observe(state_obs, env_id, agent_id, 7, level, agents_last)
        observe(state_obs, env_id, agent_id, 8, subsidy_share, agents_last)
        observe(state_obs, env_id, agent_id, 9, time, agents_last)


@numba_driver.jit(
    (
        float32[:, ::1],  # output
        float32[:, ::1],  # debt
        float32[:, ::1],  # new_deaths
        float32[::1],  # population
        float32,  # health_weight
        float32,  # debt_weight
        float32[:, ::1],  # state_rewards
        float32[:, ::1],  # federal_rewards
    )
)
def NumbaEpidemicRewards(
    output, debt, new_deaths, population, health_weight, debt_weight, state_rewards, federal_rewards
):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    n_states = wkNumberAgents - 1
    if agent_id < n_states:
        health = float32(-1000) * new_deaths[env_id, agent_id] / population[agent_id]
        wealth = math.log(output[env_id, agent_id] / population[agent_id] + float32(0.01))
        state_rewards[env_id, agent_id] = health_weight * health + (float32(1) - health_weight) * wealth
    # The government's reward is made of the states'.
    numba_driver.syncthreads()

    if agent_id == n_states:
        people = nation(population)
        welfare = float32(0)
        for state in range(n_states):
            welfare += state_rewards[env_id, state] * population[state]
        federal_rewards[env_id, 0] = (welfare - debt_weight * debt[env_id, n_states]) / people

"""Towns in Numba, with a thread for each agent."""
# ruff: noqa: F403, F405

import math

import numba.cuda as numba_driver
from numba import boolean, float32, int32
from warp_drive.numba_includes.env_config import *


@numba_driver.jit(device=True)
def closed(closing, env_id, town, timestep, num_levels):
    return float32(closing[env_id, max(timestep, 0), town] / float32(num_levels - 1))


@numba_driver.jit(device=True)
def add_up(arr, env_id):
    total = float32(0)
    for town in range(wkNumberAgents - 1):
        total += arr[env_id, town]
    arr[env_id, wkNumberAgents - 1] = total


@numba_driver.jit(device=True)
def observe(town_obs, env_id, town, feature, value, agents_last):
    if agents_last:
        town_obs[env_id, feature, town] = value
    else:
        town_obs[env_id, town, feature] = value


@numba_driver.jit(
    (
        float32[:, ::1],  # wealth
        float32[:, ::1],  # paid
        int32[:, :, ::1],  # closing
        int32[:, ::1],  # subsidy
        float32[::1],  # growth
        int32,  # num_levels
        int32,  # interval
        float32,  # grant
        boolean,  # agents_last
        float32[::1],  # lag_weights
        float32[:, :, ::1],  # town_obs
        float32[:, :, ::1],  # council_obs
        int32[:, :, ::1],  # town_actions
        int32[:, :, ::1],  # council_actions
        int32[::1],  # done
        int32[::1],  # env_timestep
        int32,  # episode_length
    )
)
def NumbaTownsStep(
    wealth,
    paid,
    closing,
    subsidy,
    growth,
    num_levels,
    interval,
    grant,
    agents_last,
    lag_weights,
    town_obs,
    council_obs,
    town_actions,
    council_actions,
    done,
    env_timestep,
    episode_length,
):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    n_towns = wkNumberAgents - 1
    timestep = env_timestep[env_id] + 1
    time = float32(timestep / float32(episode_length))
    if agent_id < n_towns:
        closing[env_id, timestep, agent_id] = town_actions[env_id, agent_id, 0]
    elif agent_id == n_towns and (timestep - 1) % interval == 0:
        subsidy[env_id, 0] = council_actions[env_id, 0, 0]
    # Everyone has read the step counter, and the council has set the subsidy.
    numba_driver.syncthreads()

    share = float32(subsidy[env_id, 0] / float32(19))
    if agent_id < n_towns:
        costs = float32(0)
        for lag in range(lag_weights.shape[0]):
            costs += lag_weights[lag] * closed(closing, env_id, agent_id, timestep - lag, num_levels)
        paid[env_id, agent_id] += grant * share
        kept = wealth[env_id, agent_id] * growth[agent_id] * (float32(1) - costs / float32(2))
        wealth[env_id, agent_id] = kept + grant * share
        observe(town_obs, env_id, agent_id, 0, wealth[env_id, agent_id], agents_last)
        observe(town_obs, env_id, agent_id, 1, growth[agent_id], agents_last)
        observe(town_obs, env_id, agent_id, 2, closed(closing, env_id, agent_id, timestep, num_levels), agents_last)
        observe(town_obs, env_id, agent_id, 3, share, agents_last)
        observe(town_obs, env_id, agent_id, 4, time, agents_last)
    numba_driver.syncthreads()

    if agent_id == n_towns:
        env_timestep[env_id] = timestep
        for arr in (wealth, paid):
            add_up(arr, env_id)
        council_obs[env_id, 0, 0] = wealth[env_id, n_towns]
        council_obs[env_id, 0, 1] = paid[env_id, n_towns]
        council_obs[env_id, 0, 2] = share
        council_obs[env_id, 0, 3] = time
        for town in range(n_towns):
            council_obs[env_id, 0, 4 + town] = closed(closing, env_id, town, timestep, num_levels)
        if timestep == episode_length:
            done[env_id] = 1


@numba_driver.jit((float32[:, ::1], float32[:, ::1], float32, float32[:, ::1], float32[:, ::1]))
def NumbaTownsRewards(wealth, paid, cost, town_rewards, council_rewards):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    n_towns = int32(wkNumberAgents - 1)
    if agent_id < n_towns:
        town_rewards[env_id, agent_id] = math.log(wealth[env_id, agent_id] + float32(0.01))
    # The council's reward is made of the towns'.
    numba_driver.syncthreads()

    if agent_id == n_towns:
        total = float32(0)
        for town in range(n_towns):
            total += town_rewards[env_id, town]
        council_rewards[env_id, 0] = total / n_towns - cost * paid[env_id, n_towns]

"""The orchard in Numba: a thread for each tree."""

import numba.cuda as numba_driver
from numba import float32
from warp_drive.numba_includes.env_config import wkNumberAgents


@numba_driver.jit
def NumbaOrchardStep(
    fruit, season, price, bonus, num_levels, observations, actions, rewards, done, env_timestep, episode_length
):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id == 0:
        season[env_id] += 1
        price[env_id] *= float32(1.25)
        env_timestep[env_id] += 1
    numba_driver.syncthreads()
    if agent_id < wkNumberAgents:
        picked = actions[env_id, agent_id, 0]
        before = fruit[env_id, agent_id]
        rewards[env_id, agent_id] = picked * before * price[env_id] + bonus[agent_id]
        fruit[env_id, agent_id] = before * (1 - picked / num_levels) + float32(2) ** -season[env_id]
        observations[env_id, agent_id, 0] = fruit[env_id, agent_id]
        observations[env_id, agent_id, 1] = price[env_id]
        observations[env_id, agent_id, 2] = season[env_id] / episode_length
    if agent_id == 0:
        done[env_id] = env_timestep[env_id] >= episode_length

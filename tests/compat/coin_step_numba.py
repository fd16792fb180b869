"""Coins in Numba, with WarpDrive's actions ``(n_envs, n_agents)`` without types."""

import numba.cuda as numba_driver
from warp_drive.numba_includes.env_config import wkNumberAgents


@numba_driver.jit
def NumbaCoinsStep(sum_arr, action_arr, obs_arr, rewards_arr, done_arr, env_timestep_arr, episode_length):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id == 0:
        env_timestep_arr[env_id] += 1
    numba_driver.syncthreads()
    if agent_id < wkNumberAgents:
        sum_arr[env_id, agent_id] += action_arr[env_id, agent_id]
        obs_arr[env_id, agent_id, 0] = sum_arr[env_id, agent_id]
        obs_arr[env_id, agent_id, 1] = env_timestep_arr[env_id]
        rewards_arr[env_id, agent_id] = action_arr[env_id, agent_id]
        if agent_id == 0 and env_timestep_arr[env_id] == episode_length:
            done_arr[env_id] = 1

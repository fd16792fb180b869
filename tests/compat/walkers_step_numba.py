"""Walkers in Numba, as a WarpDrive user writes it."""
# ruff: noqa: F403, F405

import numba.cuda as numba_driver
from numba import float32, int32

from tests.compat.walkers_moves_numba import wrap

try:
    from warp_drive.numba_includes.env_config import *
except ImportError as error:
    raise Exception("warp_drive.numba_includes.env_config is not available") from error


@numba_driver.jit(
    (int32[:, ::1], int32[:, :, ::1], float32[:, :, ::1], float32[:, ::1], int32[::1], int32[::1], float32, int32)
)
def NumbaWalkersStep(
    cell_arr, action_arr, obs_arr, rewards_arr, done_arr, env_timestep_arr, reward_per_meeting, episode_length
):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id == 0:
        env_timestep_arr[env_id] += 1
    action = action_arr[env_id, agent_id, 0]
    move = 1 if action == 1 else -1 if action == 2 else 0
    cell_arr[env_id, agent_id] = wrap(cell_arr[env_id, agent_id] + move)
    numba_driver.syncthreads()
    meetings = -1
    for other in range(wkNumberAgents):
        if cell_arr[env_id, other] == cell_arr[env_id, agent_id]:
            meetings += 1
    obs_arr[env_id, agent_id, 0] = cell_arr[env_id, agent_id] / float32(2 * wkNumberAgents)
    obs_arr[env_id, agent_id, 1] = meetings
    obs_arr[env_id, agent_id, 2] = env_timestep_arr[env_id] / float32(episode_length)
    rewards_arr[env_id, agent_id] = reward_per_meeting * meetings
    if agent_id == 0 and env_timestep_arr[env_id] == episode_length:
        done_arr[env_id] = 1


@numba_driver.jit
def sizes(out):
    """Config with which the module was loaded."""
    out[0] = wkNumberEnvs
    out[1] = wkNumberAgents
    out[2] = wkBlocksPerEnv
    out[3] = wrap(2 * wkNumberAgents + 1)

"""Kernel of WarpDrive's tests: halve x, double y, then finish."""
# ruff: noqa: F403, F405

from numba import cuda as numba_driver
from numba import int32
from warp_drive.numba_includes.core.random import *
from warp_drive.numba_includes.core.reset import *
from warp_drive.numba_includes.env_config import *


@numba_driver.jit
def halve_and_double(x, y, done, factor, target, step, episode_length):
    n_reached = numba_driver.shared.array(1, dtype=int32)
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id == 0:
        n_reached[0] = 0
    numba_driver.syncthreads()
    if agent_id < wkNumberAgents:
        x[env_id, agent_id] = x[env_id, agent_id] / factor
        y[env_id, agent_id] = y[env_id, agent_id] * factor
        if y[env_id, agent_id] >= target:
            numba_driver.atomic.add(n_reached, 0, 1)
    numba_driver.syncthreads()
    if agent_id == 0 and (step == episode_length or n_reached[0] > 0):
        done[env_id] = 1

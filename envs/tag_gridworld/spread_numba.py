"""Tag GridWorld in Numba with several blocks per environment; mirrors spread.cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import (
    conclude,
    natural,
    split,
)

from .agent_numba import FAR, agent_functions
from .arrays import Nearest, Positions, Starts


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    move_agent, start_agent, squared_distance, reward, seen = agent_functions(c)
    threads, blocks_per_env, auto_reset = c.THREADS, c.BLOCKS_PER_ENV, c.AUTO_RESET
    n_agents, n_features, episode_length = c.N_AGENTS, c.N_FEATURES, c.EPISODE_LENGTH
    runner = n_agents - 1
    share = -(-n_agents // blocks_per_env)  # agents per block
    lanes = math.gcd(32 if n_features > 16 else 8, threads)  # threads per row
    length = np.float32(episode_length)

    @cuda.jit
    def move(
        positions: Positions,
        nearest: Nearest,
        sampled_actions: int32[:, :, :],
        rewards: float32[:, :],
        _timestep_: int32[:],
        n_envs: int32,
    ):
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            agent = natural(index)
            move_agent(env, agent, positions, sampled_actions, rewards)
            if agent == runner:
                _timestep_[env] += 1
                nearest.nearest_distance[env] = FAR
                nearest.nearest_tagger[env] = n_agents

    @cuda.jit
    def approach(positions: Positions, nearest: Nearest, restarts: int32[:], restarted: int32, n_envs: int32):
        """Find the smallest squared distance of a tagger.

        Each block reduces first, so that blocks queue up instead of threads.
        """
        least = cuda.shared.array(1, int32)
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        if restarted == 0 or restarts[env] != 0:
            if cuda.threadIdx.x == 0:
                least[0] = FAR
            cuda.syncthreads()
            own = int32(FAR)
            for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
                agent = natural(index)
                if agent != runner:
                    own = min(own, squared_distance(positions, env, agent))
            if own != FAR:
                cuda.atomic.min(least, 0, own)
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                cuda.atomic.min(nearest.nearest_distance, env, least[0])

    @cuda.jit
    def name_nearest(positions: Positions, nearest: Nearest, restarts: int32[:], restarted: int32, n_envs: int32):
        """Find the nearest tagger's id, the lowest among equals.

        Each block reduces first; for partial observations.
        """
        lowest = cuda.shared.array(1, int32)
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        if restarted == 0 or restarts[env] != 0:
            if cuda.threadIdx.x == 0:
                lowest[0] = n_agents
            cuda.syncthreads()
            for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
                agent = natural(index)
                if agent != runner and squared_distance(positions, env, agent) == nearest.nearest_distance[env]:
                    cuda.atomic.min(lowest, 0, int32(agent))
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                cuda.atomic.min(nearest.nearest_tagger, env, lowest[0])

    @cuda.jit
    def observe(
        positions: Positions,
        nearest: Nearest,
        clock: Clock,
        results: Results,
        restarts: int32[:],
        restarted: int32,
        clears_done: int32,
        n_envs: int32,
    ):
        """Write the rows, and after a move the rewards and flags.

        It is the last kernel of a restart.
        """
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        if restarted == 0 or restarts[env] != 0:
            is_tagged, out_of_time = nearest.nearest_distance[env] == 0, clock.timestep[env] >= episode_length
            progress = float32(clock.timestep[env]) / length
            is_final = auto_reset and restarted == 0 and (is_tagged or out_of_time)
            lane = cuda.threadIdx.x % lanes
            for index in range(first + cuda.threadIdx.x // lanes, min(first + share, n_agents), threads // lanes):
                self = natural(index)
                for column in range(lane, n_features, lanes):
                    value = seen(progress, nearest.nearest_tagger[env], env, positions, self, column)
                    if is_final:
                        results.final_observations[env, self, column] = value
                    else:
                        results.observations[env, self, column] = value
                if restarted == 0 and lane == 0:
                    results.rewards[env, self] += reward(self, is_tagged)
            if first == 0 and cuda.threadIdx.x == 0:
                if restarted != 0:
                    clock.episode[env] += 1
                    if clears_done != 0:
                        clock.done[env] = 0
                else:
                    conclude(env, is_tagged, out_of_time, clock, results)

    @cuda.jit
    def start(
        positions: Positions,
        starts: Starts,
        nearest: Nearest,
        clock: Clock,
        restarts: int32[:],
        force: int32,
        n_envs: int32,
    ):
        """Set the agents of ended (or all) environments to their start.

        Records the restarted environments for the following kernels.
        """
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        ends = force != 0 or clock.done[env] != 0
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            agent = natural(index)
            if agent == runner:
                restarts[env] = ends
            if ends:
                start_agent(env, agent, positions, starts, clock)
                if agent == runner:
                    clock.timestep[env] = 0
                    nearest.nearest_distance[env] = FAR
                    nearest.nearest_tagger[env] = n_agents

    kernels = (move, approach, name_nearest, observe, start)
    return {kernel.__name__: kernel for kernel in kernels}

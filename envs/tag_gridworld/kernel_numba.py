"""Tag GridWorld in Numba: phases of reference.py, layout of kernel.cu.

Phases: move, approach, score, observe, start.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint8

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import agent_at, any_ended, conclude, env_at, natural, split

from .agent_numba import FAR, ONE, ZERO, agent_functions
from .arrays import Positions, Starts


class Block(NamedTuple):
    """Shared memory of a block.

    It holds taggers' squared distances to the runner, the nearest one, time, ends, and the shared observation.
    """

    approached: int32[:, :]
    distance: int32[:]
    nearest: int32[:]
    progress: float32[:]
    ended: uint8[:]
    of_all: float32[:, :]


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    move, place, squared_distance, reward, seen = agent_functions(c)
    threads, envs_per_block, auto_reset = c.THREADS, c.ENVS_PER_BLOCK, c.AUTO_RESET
    n_agents, n_rows, n_features = c.N_AGENTS, c.N_ROWS, c.N_FEATURES
    episode_length, full = c.EPISODE_LENGTH, c.USE_FULL_OBSERVATION

    runner = n_agents - 1
    n_items = envs_per_block * n_agents
    bins = 1 if n_agents < 32 else 32  # avoids a queue of a warp's threads at one address
    lanes = math.gcd(32 if n_features > 16 else 8, threads)  # threads per row
    length = np.float32(episode_length)
    is_staged = (
        full and n_rows > 8
    )  # columns wait in shared memory, so that rows are written one after the other, complete

    @cuda.jit(device=True)
    def shared_memory():
        return Block(
            cuda.shared.array((envs_per_block, bins), int32),
            cuda.shared.array(envs_per_block, int32),
            cuda.shared.array(envs_per_block, int32),
            cuda.shared.array(envs_per_block, float32),
            cuda.shared.array(envs_per_block, uint8),
            cuda.shared.array((envs_per_block if is_staged else 1, n_features), float32),
        )

    @cuda.jit(device=True)
    def clear(block, local):
        """Reset the nearest tagger. Call a block barrier afterwards."""
        for each in range(bins):
            block.approached[local, natural(each)] = FAR
        block.nearest[local] = n_agents

    @cuda.jit(device=True)
    def approach(block, positions, n_envs):
        """Compute the taggers' smallest distances. Call a block barrier afterwards."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and agent != runner:
                cuda.atomic.min(block.approached, (local, agent % bins), squared_distance(positions, env, agent))

    @cuda.jit(device=True)
    def settle(block, local):
        """Reduce them to the smallest distance. Call a block barrier afterwards."""
        least = int32(FAR)
        for each in range(bins):
            least = min(least, block.approached[local, natural(each)])
        block.distance[local] = least

    @cuda.jit(device=True)
    def name_nearest(block, positions, n_envs):
        """Find the nearest tagger's id, the lowest among equals.

        Call a block barrier afterwards.
        """
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            is_tagger = env < n_envs and agent != runner
            if is_tagger and squared_distance(positions, env, agent) == block.distance[local]:
                cuda.atomic.min(block.nearest, local, int32(agent))

    @cuda.jit(device=True)
    def marks(row, column):
        """True if a column of a full row marks the agent itself.

        The shared row of all agents has no mark.
        """
        return n_rows > 1 and column == 3 * n_agents + row

    @cuda.jit(device=True)
    def observe(block, positions, observations, ends, everyone, n_envs):
        """Write final rows to ``ends``, and the other rows if ``everyone``."""
        if full:  # a thread writes columns, which are equal for all agents except for their own mark
            for item in range(cuda.threadIdx.x, envs_per_block * n_features, threads):
                each, column = split(item, n_features)
                local, env = env_at(each, envs_per_block)
                if env < n_envs and (everyone or block.ended[local] != 0):
                    of_column = seen(block.progress[local], 0, env, positions, n_agents, column)
                    if is_staged:
                        block.of_all[local, column] = of_column
                    else:
                        rows = ends if block.ended[local] != 0 else observations
                        for index in range(n_rows):
                            row = natural(index)
                            rows[env, row, column] = ONE if marks(row, column) else of_column
            if is_staged:
                cuda.syncthreads()
                for each in range(envs_per_block):
                    local, env = env_at(each, envs_per_block)
                    if env < n_envs and (everyone or block.ended[local] != 0):
                        rows = ends if block.ended[local] != 0 else observations
                        for item in range(cuda.threadIdx.x, n_rows * n_features, threads):
                            row, column = split(item, n_features)
                            rows[env, row, column] = ONE if marks(row, column) else block.of_all[local, column]
            return
        for row in range(cuda.threadIdx.x // lanes, n_items, threads // lanes):
            local, env, self = agent_at(row, envs_per_block, n_agents)
            if env < n_envs and (everyone or block.ended[local] != 0):
                rows = ends if block.ended[local] != 0 else observations
                for index in range(cuda.threadIdx.x % lanes, n_features, lanes):
                    column = natural(index)
                    rows[env, self, column] = seen(
                        block.progress[local], block.nearest[local], env, positions, self, column
                    )

    @cuda.jit(device=True)
    def start(block, positions, starts, clock, n_envs):
        """Start the next episode of the block's ended environments.

        Call after a block barrier.
        """
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and block.ended[local] != 0:
                place(env, agent, positions, starts, clock)
        cuda.syncthreads()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs and block.ended[local] != 0:
                clock.timestep[env] = 0
                clock.episode[env] += 1
                block.progress[local] = ZERO
                clear(block, local)
        cuda.syncthreads()
        if not full:
            # Environments without a restart compute the same minima again.
            approach(block, positions, n_envs)
            cuda.syncthreads()
            for local in range(cuda.threadIdx.x, envs_per_block, threads):
                settle(block, local)
            cuda.syncthreads()
            name_nearest(block, positions, n_envs)
            cuda.syncthreads()

    @cuda.jit
    def step(
        positions: Positions,
        starts: Starts,
        sampled_actions: int32[:, :, :],
        clock: Clock,
        results: Results,
        is_observed: int32,
        n_envs: int32,
    ):
        block = shared_memory()

        # move
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                timestep = clock.timestep[env] + 1
                clock.timestep[env] = timestep
                block.progress[local] = float32(timestep) / length
                block.ended[local] = timestep >= episode_length
                clear(block, local)
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                move(env, agent, positions, sampled_actions, results.rewards)
        cuda.syncthreads()
        approach(block, positions, n_envs)
        cuda.syncthreads()

        # score
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                settle(block, local)
                is_tagged, out_of_time = block.distance[local] == 0, block.ended[local] != 0
                conclude(env, is_tagged, out_of_time, clock, results)
                block.ended[local] = is_tagged or out_of_time
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                results.rewards[env, agent] += reward(agent, block.distance[local] == 0)
        if not full:
            name_nearest(block, positions, n_envs)
        cuda.syncthreads()

        ends = results.final_observations if auto_reset else results.observations
        if is_observed != 0:
            observe(block, positions, results.observations, ends, True, n_envs)
        if auto_reset and any_ended(block.ended, n_envs):
            if is_observed == 0:
                observe(block, positions, ends, ends, False, n_envs)
            cuda.syncthreads()  # the old cells have been observed
            start(block, positions, starts, clock, n_envs)
            if is_observed != 0:
                observe(block, positions, results.observations, results.observations, False, n_envs)

    @cuda.jit
    def reset(positions: Positions, starts: Starts, clock: Clock, results: Results, force: int32, n_envs: int32):
        block = shared_memory()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                clear(block, local)
                block.ended[local] = force != 0 or clock.done[env] != 0
                clock.done[env] = 0
        cuda.syncthreads()
        if any_ended(block.ended, n_envs):
            start(block, positions, starts, clock, n_envs)
            observe(block, positions, results.observations, results.observations, False, n_envs)

    return {"step": step, "reset": reset}

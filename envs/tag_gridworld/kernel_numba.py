"""Tag GridWorld in Numba. Phases as in reference.py: move, approach, score, observe, start; layout as in kernel.cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint8

from envs.tag_gridworld.agent_numba import FAR, ZERO, agent_functions
from warpdrive_min.kernels.core_numba import pool_row


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    moved, squared_distance, reward, seen = agent_functions(c)
    threads, envs_per_block, auto_reset = c.THREADS, c.ENVS_PER_BLOCK, c.AUTO_RESET
    n_agents, n_features, n_starts = c.N_AGENTS, c.N_FEATURES, c.N_STARTS
    episode_length, full = c.EPISODE_LENGTH, c.USE_FULL_OBSERVATION

    runner = n_agents - 1
    n_items = envs_per_block * n_agents
    bins = 1 if n_agents < 32 else 32  # so that the threads of a warp do not queue up at one address
    lanes = math.gcd(32 if n_features > 16 else 8, threads)  # threads that write one row
    length = np.float32(episode_length)

    @cuda.jit(device=True)
    def clear(approached, nearest, local):
        """Forget who is near. Afterwards the block waits."""
        for each in range(bins):
            approached[local, each] = FAR
        nearest[local] = n_agents

    @cuda.jit(device=True)
    def approach(approached, n_envs, loc_x, loc_y):
        """Find how near taggers are. Afterwards the block waits."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and agent != runner:
                cuda.atomic.min(approached, (local, agent % bins), squared_distance(loc_x, loc_y, env, agent))

    @cuda.jit(device=True)
    def settle(approached, distance, local):
        """Find how near the nearest one is. Afterwards the block waits."""
        least = int32(FAR)
        for each in range(bins):
            least = min(least, approached[local, each])
        distance[local] = least

    @cuda.jit(device=True)
    def name_nearest(distance, nearest, n_envs, loc_x, loc_y):
        """Find who that is, the lowest id among equals. Afterwards the block waits."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            is_tagger = env < n_envs and agent != runner
            if is_tagger and squared_distance(loc_x, loc_y, env, agent) == distance[local]:
                cuda.atomic.min(nearest, local, int32(agent))

    @cuda.jit(device=True)
    def observe(nearest, progress, ended, n_envs, restarted, loc_x, loc_y, observations, final_observations):
        """Write the rows of every environment, or only of those that restarted."""
        for row in range(cuda.threadIdx.x // lanes, n_items, threads // lanes):
            local, self = row // n_agents, row % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and not (restarted and ended[local] == 0):
                is_final = auto_reset and not restarted and ended[local] != 0
                for column in range(cuda.threadIdx.x % lanes, n_features, lanes):
                    value = seen(progress[local], nearest[local], env, loc_x, loc_y, self, column)
                    if is_final:
                        final_observations[env, self, column] = value
                    else:
                        observations[env, self, column] = value

    @cuda.jit(device=True)
    def any_ended(ended, n_envs):
        """Tell, to all threads of the block alike, whether an environment of it ended."""
        found = False
        for local in range(envs_per_block):
            if cuda.blockIdx.x * envs_per_block + local < n_envs and ended[local] != 0:
                found = True
        return found

    @cuda.jit(device=True)
    def start(
        approached, distance, nearest, progress, ended, n_envs,
        loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, _timestep_, _episode_, _reset_seed_,
    ):  # fmt: skip
        """Start the next episode of the environments of this block that ended; the block has waited before."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and ended[local] != 0:
                row = pool_row(_episode_[env], env, _reset_seed_[0], _reset_seed_[1], n_starts)
                loc_x[env, agent] = loc_x_reset_pool[row, agent]
                loc_y[env, agent] = loc_y_reset_pool[row, agent]
        cuda.syncthreads()
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and ended[local] != 0:
                _timestep_[env] = 0
                _episode_[env] += 1
                progress[local] = ZERO
                clear(approached, nearest, local)
        cuda.syncthreads()
        if not full:
            # Of environments that go on the same minima are taken once more.
            approach(approached, n_envs, loc_x, loc_y)
            cuda.syncthreads()
            for local in range(cuda.threadIdx.x, envs_per_block, threads):
                settle(approached, distance, local)
            cuda.syncthreads()
            name_nearest(distance, nearest, n_envs, loc_x, loc_y)
            cuda.syncthreads()

    @cuda.jit
    def step(
        loc_x: int32[:, :],
        loc_y: int32[:, :],
        loc_x_reset_pool: int32[:, :],
        loc_y_reset_pool: int32[:, :],
        sampled_actions: int32[:, :, :],
        rewards: float32[:, :],
        observations: float32[:, :, :],
        final_observations: float32[:, :, :],
        terminated: int32[:],
        truncated: int32[:],
        _done_: int32[:],
        _timestep_: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        n_envs: int32,
    ):
        approached = cuda.shared.array((envs_per_block, bins), int32)
        distance = cuda.shared.array(envs_per_block, int32)
        nearest = cuda.shared.array(envs_per_block, int32)
        progress = cuda.shared.array(envs_per_block, float32)
        ended = cuda.shared.array(envs_per_block, uint8)

        # move: until the score the rewards hold what the wall costs
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                timestep = _timestep_[env] + 1
                _timestep_[env] = timestep
                progress[local] = float32(timestep) / length
                ended[local] = timestep >= episode_length
                clear(approached, nearest, local)
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                x, y, cost = moved(loc_x[env, agent], loc_y[env, agent], sampled_actions[env, agent, 0])
                loc_x[env, agent] = x
                loc_y[env, agent] = y
                rewards[env, agent] = cost
        cuda.syncthreads()
        approach(approached, n_envs, loc_x, loc_y)
        cuda.syncthreads()

        # score
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                settle(approached, distance, local)
                is_tagged, out_of_time = distance[local] == 0, ended[local] != 0
                terminated[env] = is_tagged
                truncated[env] = out_of_time and not is_tagged
                _done_[env] = is_tagged or out_of_time
                ended[local] = is_tagged or out_of_time
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                rewards[env, agent] += reward(agent, distance[local] == 0)
        if not full:
            name_nearest(distance, nearest, n_envs, loc_x, loc_y)
        cuda.syncthreads()

        observe(nearest, progress, ended, n_envs, False, loc_x, loc_y, observations, final_observations)
        if auto_reset and any_ended(ended, n_envs):
            cuda.syncthreads()  # the old cells have been observed
            start(
                approached, distance, nearest, progress, ended, n_envs,
                loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, _timestep_, _episode_, _reset_seed_,
            )  # fmt: skip
            observe(nearest, progress, ended, n_envs, True, loc_x, loc_y, observations, final_observations)

    @cuda.jit
    def reset(
        loc_x: int32[:, :],
        loc_y: int32[:, :],
        loc_x_reset_pool: int32[:, :],
        loc_y_reset_pool: int32[:, :],
        observations: float32[:, :, :],
        _done_: int32[:],
        _timestep_: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        force: int32,
        n_envs: int32,
    ):
        approached = cuda.shared.array((envs_per_block, bins), int32)
        distance = cuda.shared.array(envs_per_block, int32)
        nearest = cuda.shared.array(envs_per_block, int32)
        progress = cuda.shared.array(envs_per_block, float32)
        ended = cuda.shared.array(envs_per_block, uint8)

        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                clear(approached, nearest, local)
                ended[local] = force != 0 or _done_[env] != 0
                _done_[env] = 0
        cuda.syncthreads()
        if any_ended(ended, n_envs):
            start(
                approached, distance, nearest, progress, ended, n_envs,
                loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, _timestep_, _episode_, _reset_seed_,
            )  # fmt: skip
            observe(nearest, progress, ended, n_envs, True, loc_x, loc_y, observations, observations)

    return {"step": step, "reset": reset}

"""Kernels of environments of one agent in Numba, around what an action leads to and where episodes start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import conclude, philox, pool_row, uniform
from warpdrive_min.rng import STREAM_START

ONE, TWO = np.float32(1), np.float32(2)


def kernels(
    c: Any,
    load: Callable[..., Any],
    outcome: Callable[..., Any],
    observe: Callable[..., Any],
    draw_start: Callable[..., Any],
) -> dict[str, Any]:
    """Return the kernels ``step`` and ``reset`` of an environment.

    Args:
        c: The constants.
        load: `load_2` or `load_4`, as the state has components.
        outcome: Device function, returns what an action leads to from a state: a state, what is seen of it, the
            reward, and whether the dynamics end the episode.
        observe: Device function, returns what is seen of a state.
        draw_start: Device function, returns a state from the four words of an episode.
    """
    threads, envs_per_block = c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset, pool_size = c.EPISODE_LENGTH, c.AUTO_RESET, c.RESET_POOL_SIZE

    @cuda.jit
    def step(
        state: float32[:, :, :],
        state_reset_pool: float32[:, :, :],
        sampled_actions,  # int32 or float32, as the environment's action space says
        clock: Clock,
        results: Results,
        n_envs: int32,
    ):
        """Step every environment; with AUTO_RESET, go on to the next episode where one ended."""
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                s, seen, reward, is_terminal = outcome(load(state, env), sampled_actions[env, 0, 0])
                timestep = clock.timestep[env] + 1
                out_of_time = timestep >= episode_length
                results.rewards[env, 0] = reward
                conclude(env, is_terminal, out_of_time, clock, results)
                if auto_reset and (is_terminal or out_of_time):
                    store(results.final_observations, env, seen)
                    s = start(env, clock, state_reset_pool)
                    seen = observe(s)
                    clock.episode[env] += 1
                    timestep = 0
                clock.timestep[env] = timestep
                store(state, env, s)
                store(results.observations, env, seen)

    @cuda.jit
    def reset(
        state: float32[:, :, :],
        state_reset_pool: float32[:, :, :],
        clock: Clock,
        results: Results,
        force: int32,
        n_envs: int32,
    ):
        """Restart the finished environments, or all."""
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and (clock.done[env] != 0 or force != 0):
                s = start(env, clock, state_reset_pool)
                store(state, env, s)
                store(results.observations, env, observe(s))
                clock.episode[env] += 1
                clock.timestep[env] = 0
                clock.done[env] = 0

    @cuda.jit(device=True)
    def start(env, clock, pool):
        """Return the start of an environment's next episode: a row of the pool, or one that is drawn."""
        episode, seed = clock.episode[env], clock.reset_seed
        if pool_size >= 1:
            return load(pool, pool_row(episode, env, seed[0], seed[1], pool_size) if pool_size >= 2 else 0)
        return draw_start(philox(episode, env, 0, STREAM_START, seed[0], seed[1]))

    return {"step": step, "reset": reset}


@cuda.jit(device=True)
def load_2(source, row):
    return source[row, 0, 0], source[row, 0, 1]


@cuda.jit(device=True)
def load_4(source, row):
    return source[row, 0, 0], source[row, 0, 1], source[row, 0, 2], source[row, 0, 3]


@cuda.jit(device=True)
def store(to, row, values):
    for index in range(len(values)):
        to[row, 0, index] = values[index]


@cuda.jit(device=True)
def symmetric(word, limit):
    """Return a float32 uniform within plus or minus a limit."""
    return (uniform(word) * TWO - ONE) * limit

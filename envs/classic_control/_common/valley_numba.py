"""The valley of both mountain cars in Numba: how a car rolls, arrives and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.core_numba import clip, maths, philox, pool_row, uniform
from warpdrive_min.rng import STREAM_START

ZERO, THREE = np.float32(0), np.float32(3)


class Valley(NamedTuple):
    """The device functions of one valley, and its kernel ``reset``."""

    roll: Callable[..., Any]
    is_at_goal: Callable[..., Any]
    start: Callable[..., Any]
    store: Callable[..., Any]
    reset: Any


def valley(c: Any) -> Valley:
    """Close the functions over the constants."""
    _, cos = maths(c.EXACT)
    threads, envs_per_block, pool_size = c.THREADS, c.ENVS_PER_BLOCK, c.RESET_POOL_SIZE
    gravity, max_speed, min_position, max_position = c.GRAVITY, c.MAX_SPEED, c.MIN_POSITION, c.MAX_POSITION
    goal_position, goal_velocity = c.GOAL_POSITION, c.GOAL_VELOCITY
    start_offset, start_width = c.START_OFFSET, c.START_WIDTH

    @cuda.jit(device=True)
    def roll(x, v, push):
        """Advance by one step with the motor's push in m/step^2."""
        v = clip(v + (push - gravity * cos(THREE * x)), -max_speed, max_speed)
        x = clip(x + v, min_position, max_position)
        return x, (ZERO if x == min_position and v < ZERO else v)

    @cuda.jit(device=True)
    def is_at_goal(x, v):
        return x >= goal_position and v >= goal_velocity

    @cuda.jit(device=True)
    def start(env, episode, seed, pool):
        """Return the start of an environment's next episode."""
        if pool_size >= 1:
            row = pool_row(episode, env, seed[0], seed[1], pool_size) if pool_size >= 2 else 0
            return pool[row, 0, 0], pool[row, 0, 1]
        word = philox(episode, env, 0, STREAM_START, seed[0], seed[1])[0]
        # The sum goes first: the other way round, contraction to FMA would change the start.
        return (uniform(word) + start_offset) * start_width, ZERO

    @cuda.jit(device=True)
    def store(to, env, x, v):
        to[env, 0, 0] = x
        to[env, 0, 1] = v

    @cuda.jit
    def reset(
        state: float32[:, :, :],
        observations: float32[:, :, :],
        _timestep_: int32[:],
        _done_: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        state_reset_pool: float32[:, :, :],
        force: int32,
        n_envs: int32,
    ):
        """Restart the finished environments, or all."""
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and (_done_[env] != 0 or force != 0):
                x, v = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                store(state, env, x, v)
                store(observations, env, x, v)
                _episode_[env] += 1
                _timestep_[env] = 0
                _done_[env] = 0

    return Valley(roll, is_at_goal, start, store, reset)

"""Pendulum in Numba. Phases: move, score, observe, start. One agent, so a thread has an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.core_numba import clip, maths, philox, pool_row, uniform, wrap
from warpdrive_min.rng import STREAM_START

ONE, TWO = np.float32(1), np.float32(2)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)
    threads, envs_per_block = c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset, pool_size = c.EPISODE_LENGTH, c.AUTO_RESET, c.RESET_POOL_SIZE
    gravity_gain, torque_gain, time_step = c.GRAVITY_GAIN, c.TORQUE_GAIN, c.TIME_STEP
    max_velocity, max_torque = c.MAX_VELOCITY, c.MAX_TORQUE
    velocity_cost, torque_cost = c.VELOCITY_COST, c.TORQUE_COST
    start_angle, start_velocity, pi, two_pi = c.START_ANGLE, c.START_VELOCITY, c.PI, c.TWO_PI

    @cuda.jit(device=True)
    def principal(angle):
        """Return the same angle within +-pi; one that is there already keeps its bits."""
        return angle if abs(angle) <= pi else wrap(angle + pi, two_pi) - pi

    @cuda.jit(device=True)
    def move(angle, velocity, torque):
        """Advance by one semi-implicit Euler step."""
        pushed = velocity + (gravity_gain * sin(angle) + torque_gain * torque) * time_step
        moved = clip(pushed, -max_velocity, max_velocity)
        return angle + time_step * moved, moved

    @cuda.jit(device=True)
    def score(angle, velocity, torque):
        """Return the reward of a step from the state before it."""
        return -(angle * angle + velocity_cost * velocity * velocity + torque_cost * torque * torque)

    @cuda.jit(device=True)
    def observe(to, env, angle, velocity):
        to[env, 0, 0] = cos(angle)
        to[env, 0, 1] = sin(angle)
        to[env, 0, 2] = velocity

    @cuda.jit(device=True)
    def symmetric(word, limit):
        return (uniform(word) * TWO - ONE) * limit

    @cuda.jit(device=True)
    def start(env, episode, seed, pool):
        """Return the start of an environment's next episode."""
        if pool_size >= 1:
            row = pool_row(episode, env, seed[0], seed[1], pool_size) if pool_size >= 2 else 0
            return pool[row, 0, 0], pool[row, 0, 1]
        words = philox(episode, env, 0, STREAM_START, seed[0], seed[1])
        return symmetric(words[0], start_angle), symmetric(words[1], start_velocity)

    @cuda.jit(device=True)
    def store(to, env, angle, velocity):
        to[env, 0, 0] = angle
        to[env, 0, 1] = velocity

    @cuda.jit
    def step(
        state: float32[:, :, :],
        sampled_actions: float32[:, :, :],
        observations: float32[:, :, :],
        final_observations: float32[:, :, :],
        rewards: float32[:, :],
        _timestep_: int32[:],
        _done_: int32[:],
        terminated: int32[:],
        truncated: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        state_reset_pool: float32[:, :, :],
        n_envs: int32,
    ):
        """Step every environment."""
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                angle, velocity = principal(state[env, 0, 0]), state[env, 0, 1]
                torque = clip(sampled_actions[env, 0, 0], -max_torque, max_torque)
                rewards[env, 0] = score(angle, velocity, torque)
                angle, velocity = move(angle, velocity, torque)
                timestep = _timestep_[env] + 1
                done = timestep >= episode_length
                terminated[env] = 0
                truncated[env] = done
                _done_[env] = done
                if auto_reset and done:
                    observe(final_observations, env, angle, velocity)
                    angle, velocity = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                    _episode_[env] += 1
                    timestep = 0
                _timestep_[env] = timestep
                store(state, env, angle, velocity)
                observe(observations, env, angle, velocity)

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
                angle, velocity = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                store(state, env, angle, velocity)
                observe(observations, env, angle, velocity)
                _episode_[env] += 1
                _timestep_[env] = 0
                _done_[env] = 0

    return {"step": step, "reset": reset}

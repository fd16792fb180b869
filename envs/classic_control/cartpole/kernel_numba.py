"""CartPole in Numba. Phases: move, judge, start. One agent, so a thread has an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.core_numba import maths, philox, pool_row, uniform
from warpdrive_min.rng import STREAM_START

ONE, TWO, FOUR_THIRDS = np.float32(1), np.float32(2), np.float32(4 / 3)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)
    threads, envs_per_block = c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset, pool_size = c.EPISODE_LENGTH, c.AUTO_RESET, c.RESET_POOL_SIZE
    gravity, force_size, time_step = c.GRAVITY, c.FORCE, c.TIME_STEP
    pole_mass, total_mass, pole_mass_length, half_length = c.POLE_MASS, c.TOTAL_MASS, c.POLE_MASS_LENGTH, c.HALF_LENGTH
    max_angle, max_position, start_range = c.MAX_ANGLE, c.MAX_POSITION, c.START_RANGE

    @cuda.jit(device=True)
    def move(x, x_dot, theta, theta_dot, action):
        """Advance by one explicit Euler step."""
        sin_theta, cos_theta = sin(theta), cos(theta)
        force = force_size if action == 1 else -force_size
        push = (force + pole_mass_length * theta_dot * theta_dot * sin_theta) / total_mass
        inertia = half_length * (FOUR_THIRDS - pole_mass * cos_theta * cos_theta / total_mass)
        theta_acc = (gravity * sin_theta - cos_theta * push) / inertia
        x_acc = push - pole_mass_length * theta_acc * cos_theta / total_mass
        return (
            x + time_step * x_dot,
            x_dot + time_step * x_acc,
            theta + time_step * theta_dot,
            theta_dot + time_step * theta_acc,
        )

    @cuda.jit(device=True)
    def symmetric(word):
        return (uniform(word) * TWO - ONE) * start_range

    @cuda.jit(device=True)
    def start(env, episode, seed, pool):
        """Return the start of an environment's next episode."""
        if pool_size >= 1:
            row = pool_row(episode, env, seed[0], seed[1], pool_size) if pool_size >= 2 else 0
            return pool[row, 0, 0], pool[row, 0, 1], pool[row, 0, 2], pool[row, 0, 3]
        words = philox(episode, env, 0, STREAM_START, seed[0], seed[1])
        return symmetric(words[0]), symmetric(words[1]), symmetric(words[2]), symmetric(words[3])

    @cuda.jit(device=True)
    def store(to, env, x, x_dot, theta, theta_dot):
        to[env, 0, 0] = x
        to[env, 0, 1] = x_dot
        to[env, 0, 2] = theta
        to[env, 0, 3] = theta_dot

    @cuda.jit
    def step(
        state: float32[:, :, :],
        sampled_actions: int32[:, :, :],
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
                x, x_dot, theta, theta_dot = move(
                    state[env, 0, 0], state[env, 0, 1], state[env, 0, 2], state[env, 0, 3], sampled_actions[env, 0, 0]
                )
                timestep = _timestep_[env] + 1
                failed = abs(x) > max_position or abs(theta) > max_angle
                out_of_time = timestep >= episode_length and not failed
                done = failed or out_of_time
                rewards[env, 0] = ONE
                terminated[env] = failed
                truncated[env] = out_of_time
                _done_[env] = done
                if auto_reset and done:
                    store(final_observations, env, x, x_dot, theta, theta_dot)
                    x, x_dot, theta, theta_dot = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                    _episode_[env] += 1
                    timestep = 0
                _timestep_[env] = timestep
                store(state, env, x, x_dot, theta, theta_dot)
                store(observations, env, x, x_dot, theta, theta_dot)

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
                x, x_dot, theta, theta_dot = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                store(state, env, x, x_dot, theta, theta_dot)
                store(observations, env, x, x_dot, theta, theta_dot)
                _episode_[env] += 1
                _timestep_[env] = 0
                _done_[env] = 0

    return {"step": step, "reset": reset}

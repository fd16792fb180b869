"""Acrobot in Numba. Phases: move, observe, judge, start. One agent, so a thread has an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.core_numba import clip, maths, philox, pool_row, uniform, wrap
from warpdrive_min.rng import STREAM_START

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    sin, cos = maths(c.EXACT)
    threads, envs_per_block = c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset, pool_size = c.EPISODE_LENGTH, c.AUTO_RESET, c.RESET_POOL_SIZE
    inertia_1, inertia_2, coupling = c.INERTIA_1, c.INERTIA_2, c.COUPLING
    weight_1, weight_2, torque_size = c.WEIGHT_1, c.WEIGHT_2, c.TORQUE
    length_1, length_2, goal_height = c.LENGTH_1, c.LENGTH_2, c.GOAL_HEIGHT
    max_velocity_1, max_velocity_2 = c.MAX_VELOCITY_1, c.MAX_VELOCITY_2
    time_step, half_step, sixth_step, start_range = c.TIME_STEP, c.HALF_STEP, c.SIXTH_STEP, c.START_RANGE
    pi, two_pi = c.PI, c.TWO_PI

    @cuda.jit(device=True)
    def slope(state, torque):
        """Return the derivative of the state by time, by the equations of the book; its cos(x - pi/2) is sin x."""
        angle_1, angle_2, velocity_1, velocity_2 = state
        sin_2, cos_2 = sin(angle_2), cos(angle_2)
        d_1 = inertia_1 + TWO * coupling * cos_2
        d_2 = inertia_2 + coupling * cos_2
        ratio = d_2 / d_1
        phi_2 = weight_2 * sin(angle_1 + angle_2)
        swing = coupling * velocity_2 * (velocity_2 + TWO * velocity_1) * sin_2
        phi_1 = weight_1 * sin(angle_1) + phi_2 - swing
        pull = coupling * velocity_1 * velocity_1 * sin_2
        acc_2 = (torque + ratio * phi_1 - pull - phi_2) / (inertia_2 - d_2 * ratio)
        acc_1 = -(d_2 * acc_2 + phi_1) / d_1
        return velocity_1, velocity_2, acc_1, acc_2

    @cuda.jit(device=True)
    def advance(state, by, time):
        return state[0] + time * by[0], state[1] + time * by[1], state[2] + time * by[2], state[3] + time * by[3]

    @cuda.jit(device=True)
    def principal(angle):
        """Return the same angle within +-pi; one that is there already keeps its bits."""
        return angle if abs(angle) <= pi else wrap(angle + pi, two_pi) - pi

    @cuda.jit(device=True)
    def move(state, action):
        """Advance by one Runge-Kutta step."""
        torque = float32(action - 1) * torque_size
        slope_1 = slope(state, torque)
        slope_2 = slope(advance(state, slope_1, half_step), torque)
        slope_3 = slope(advance(state, slope_2, half_step), torque)
        slope_4 = slope(advance(state, slope_3, time_step), torque)
        total = advance(advance(advance(slope_1, slope_2, TWO), slope_3, TWO), slope_4, ONE)
        angle_1, angle_2, velocity_1, velocity_2 = advance(state, total, sixth_step)
        return (
            principal(angle_1),
            principal(angle_2),
            clip(velocity_1, -max_velocity_1, max_velocity_1),
            clip(velocity_2, -max_velocity_2, max_velocity_2),
        )

    @cuda.jit(device=True)
    def observe(state):
        angle_1, angle_2, velocity_1, velocity_2 = state
        return cos(angle_1), sin(angle_1), cos(angle_2), sin(angle_2), velocity_1, velocity_2

    @cuda.jit(device=True)
    def height(seen):
        """Return the height of the tip above the fixed joint."""
        return -length_1 * seen[0] - length_2 * (seen[0] * seen[2] - seen[1] * seen[3])

    @cuda.jit(device=True)
    def symmetric(word):
        return (uniform(word) * TWO - ONE) * start_range

    @cuda.jit(device=True)
    def start(env, episode, seed, pool):
        """Return the start of an environment's next episode."""
        if pool_size >= 1:
            row = pool_row(episode, env, seed[0], seed[1], pool_size) if pool_size >= 2 else 0
            return load(pool, row)
        words = philox(episode, env, 0, STREAM_START, seed[0], seed[1])
        return symmetric(words[0]), symmetric(words[1]), symmetric(words[2]), symmetric(words[3])

    @cuda.jit(device=True)
    def load(source, row):
        return source[row, 0, 0], source[row, 0, 1], source[row, 0, 2], source[row, 0, 3]

    @cuda.jit(device=True)
    def store(to, env, state):
        to[env, 0, 0] = state[0]
        to[env, 0, 1] = state[1]
        to[env, 0, 2] = state[2]
        to[env, 0, 3] = state[3]

    @cuda.jit(device=True)
    def show(to, env, seen):
        store(to, env, seen)
        to[env, 0, 4] = seen[4]
        to[env, 0, 5] = seen[5]

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
                s = move(load(state, env), sampled_actions[env, 0, 0])
                seen = observe(s)
                timestep = _timestep_[env] + 1
                reached = height(seen) > goal_height
                out_of_time = timestep >= episode_length and not reached
                done = reached or out_of_time
                rewards[env, 0] = ZERO if reached else -ONE
                terminated[env] = reached
                truncated[env] = out_of_time
                _done_[env] = done
                if auto_reset and done:
                    show(final_observations, env, seen)
                    s = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                    seen = observe(s)
                    _episode_[env] += 1
                    timestep = 0
                _timestep_[env] = timestep
                store(state, env, s)
                show(observations, env, seen)

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
                s = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                store(state, env, s)
                show(observations, env, observe(s))
                _episode_[env] += 1
                _timestep_[env] = 0
                _done_[env] = 0

    return {"step": step, "reset": reset}

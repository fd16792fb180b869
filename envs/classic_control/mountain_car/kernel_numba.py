"""MountainCar in Numba. Phases: move, judge, start. One agent, so a thread has an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

from envs.classic_control._common.valley_numba import valley

REWARD = np.float32(-1)


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    roll, is_at_goal, start, store, reset = valley(c)
    threads, envs_per_block = c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset, force_size = c.EPISODE_LENGTH, c.AUTO_RESET, c.FORCE

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
                push = float32(sampled_actions[env, 0, 0] - 1) * force_size
                x, v = roll(state[env, 0, 0], state[env, 0, 1], push)
                timestep = _timestep_[env] + 1
                arrived = is_at_goal(x, v)
                out_of_time = timestep >= episode_length and not arrived
                done = arrived or out_of_time
                rewards[env, 0] = REWARD
                terminated[env] = arrived
                truncated[env] = out_of_time
                _done_[env] = done
                if auto_reset and done:
                    store(final_observations, env, x, v)
                    x, v = start(env, _episode_[env], _reset_seed_, state_reset_pool)
                    _episode_[env] += 1
                    timestep = 0
                _timestep_[env] = timestep
                store(state, env, x, v)
                store(observations, env, x, v)

    return {"step": step, "reset": reset}

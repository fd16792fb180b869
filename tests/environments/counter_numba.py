"""Counter in Numba, in WarpDrive's style: a block per environment."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32


def build(c: Any) -> dict[str, Any]:
    """Return step and custom reset."""
    n_agents, episode_length, limit = c.N_AGENTS, c.EPISODE_LENGTH, c.LIMIT

    @cuda.jit
    def step(
        count: int32[:, :],
        place: float32[:, :],
        weights: float32[:],
        sampled_actions: int32[:, :, :],
        observations: float32[:, :, :],
        rewards: float32[:, :],
        _timestep_: int32[:],
        _done_: int32[:],
        step_size: int32,
        n_envs: int32,
    ):
        env, agent = cuda.blockIdx.x, cuda.threadIdx.x
        if env < n_envs and agent < n_agents:
            count[env, agent] += step_size * sampled_actions[env, agent, 0]
            observations[env, agent, 0] = count[env, agent]
            observations[env, agent, 1] = place[env, agent]
            rewards[env, agent] = weights[agent] * float32(count[env, agent])
        cuda.syncthreads()
        if env < n_envs and agent == 0:
            _timestep_[env] += 1
            is_done = _timestep_[env] >= episode_length
            for other in range(n_agents):
                is_done = is_done or count[env, other] >= limit
            if is_done:
                _done_[env] = 1

    @cuda.jit
    def reset(count: int32[:, :], step_size: int32, n_envs: int32):
        for env in range(cuda.blockIdx.x, n_envs, cuda.gridDim.x):
            for agent in range(cuda.threadIdx.x, n_agents, cuda.blockDim.x):
                count[env, agent] = -step_size

    return {"NumbaCounterStep": step, "CudaCounterReset": reset}

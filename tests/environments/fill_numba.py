"""`fill` in Numba."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32


def build(c: Any) -> dict[str, Any]:
    """Return the kernel."""
    n_agents, threads, envs_per_block = c.N_AGENTS, c.THREADS, c.ENVS_PER_BLOCK

    @cuda.jit
    def fill(target: float32[:, ::1], offset: int32[:], scale: float32, n_envs: int32):
        for item in range(cuda.threadIdx.x, envs_per_block * n_agents, threads):
            env, agent = cuda.blockIdx.x * envs_per_block + item // n_agents, item % n_agents
            if env < n_envs:
                target[env, agent] += scale * float32(env * n_agents + agent) + float32(offset[0])

    return {"fill": fill}

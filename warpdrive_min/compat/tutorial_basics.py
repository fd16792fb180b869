"""Kernel of WarpDrive's first Numba tutorial."""

from __future__ import annotations

from typing import Any

from numba import cuda

__all__ = ["cuda_increment"]


@cuda.jit  # type: ignore[untyped-decorator]
def cuda_increment(data: Any, num_agents: Any) -> None:
    """Add the environment's and the agent's index to (n_envs, num_agents) elements."""
    env, agent = cuda.blockIdx.x, cuda.threadIdx.x
    if agent < num_agents:
        data[env, agent] += env + agent

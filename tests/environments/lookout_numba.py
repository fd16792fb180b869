"""Lookout in Numba. Phases: count and show, judge."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32

from tests.environments.lookout import LastParts, Parts
from warpdrive_min.kernels.arrays import Clock


def build(c: Any) -> dict[str, Any]:
    """Return step and reset."""
    n_agents, threads, envs_per_block = c.N_AGENTS, c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset = c.EPISODE_LENGTH, c.AUTO_RESET

    @cuda.jit(device=True)
    def show(agent, time, total, parts, env):
        numbers, hour, plan, mask = parts[0], parts[1], parts[2], parts[3]
        numbers[env, agent, 0] = time
        numbers[env, agent, 1] = total
        hour[env, agent] = float32(time) / float32(2)
        for cell in range(6):
            plan[env, agent, cell // 3, cell % 3] = 10 * agent + total + cell
        for choice in range(3):
            mask[env, agent, choice] = choice != (time + agent) % 3

    @cuda.jit
    def step(
        total: int32[:, :],
        sampled_actions: int32[:, :, :],
        rewards: float32[:, :],
        parts: Parts,
        last: LastParts,
        terminated: int32[:],
        truncated: int32[:],
        clock: Clock,
        n_envs: int32,
    ):
        first = cuda.blockIdx.x * envs_per_block
        for item in range(cuda.threadIdx.x, envs_per_block * n_agents, threads):
            env, agent = first + item // n_agents, item % n_agents
            if env < n_envs:
                action = sampled_actions[env, agent, 0]
                time, value = clock.timestep[env] + 1, total[env, agent] + action
                is_allowed = parts.observations_action_mask[env, agent, action] != 0
                rewards[env, agent] = float32(action) if is_allowed else float32(-100)
                if auto_reset and time >= episode_length:
                    show(agent, time, value, last, env)
                    time, value = 0, 0
                total[env, agent] = value
                show(agent, time, value, parts, env)
        cuda.syncthreads()
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = first + local
            if env < n_envs:
                time = clock.timestep[env] + 1
                is_done = time >= episode_length
                clock.done[env] = truncated[env] = is_done
                terminated[env] = 0
                clock.timestep[env] = 0 if auto_reset and is_done else time

    @cuda.jit
    def reset(total: int32[:, :], parts: Parts, clock: Clock, force: int32, n_envs: int32):
        first = cuda.blockIdx.x * envs_per_block
        for item in range(cuda.threadIdx.x, envs_per_block * n_agents, threads):
            env, agent = first + item // n_agents, item % n_agents
            if env < n_envs and (force != 0 or clock.done[env] != 0):
                total[env, agent] = 0
                show(agent, 0, 0, parts, env)
        cuda.syncthreads()
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = first + local
            if env < n_envs and (force != 0 or clock.done[env] != 0):
                clock.timestep[env] = clock.done[env] = 0

    return {"step": step, "reset": reset}

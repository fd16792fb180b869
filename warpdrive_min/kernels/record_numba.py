"""Recording of one step of training, in Numba: the rule of `record.cu`."""

# ruff: noqa: N806, SIM102  (constants keep their names in all languages; Numba prunes only an `if` on its own)

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32


def build(c: Any) -> dict[str, Any]:
    """Return the kernel ``record``."""
    N_AGENTS, N_WORDS, HAS_FLAGS, CUTS = c.N_AGENTS, c.N_WORDS, c.HAS_FLAGS, c.CUTS
    ENVS_PER_BLOCK, THREADS = c.ENVS_PER_BLOCK, c.THREADS

    @cuda.jit
    def record(
        rewards: float32[:, :],
        _done_: int32[:],
        terminated: int32[:],
        truncated: int32[:],
        final_observations: float32[:, :],
        reward_row: float32[:, :],
        terminated_row: int32[:],
        truncated_row: int32[:],
        success_row: int32[:],
        running_return: float32[:, :],
        running_steps: int32[:],
        finished_return: float32[:, :],
        finished_steps: int32[:],
        finished_episodes: int32[:],
        cuts: float32[:, :, :],
        n_cut: int32[:],
        n_cuts: int32,
        n_envs: int32,
    ) -> None:
        first_env = cuda.blockIdx.x * ENVS_PER_BLOCK
        for item in range(cuda.threadIdx.x, ENVS_PER_BLOCK * N_AGENTS, THREADS):
            env, agent = first_env + item // N_AGENTS, item % N_AGENTS
            if env < n_envs:
                reward = rewards[env, agent]
                total = float32(running_return[env, agent] + reward)
                reward_row[env, agent] = reward
                if _done_[env] != 0:
                    finished_return[env, agent] += total
                running_return[env, agent] = float32(0) if _done_[env] != 0 else total
        if CUTS:
            n_words = ENVS_PER_BLOCK * N_WORDS if ENVS_PER_BLOCK > 1 or truncated[first_env] != 0 else 0
            for item in range(cuda.threadIdx.x, n_words, THREADS):
                env, word = first_env + item // N_WORDS, item % N_WORDS
                if env < n_envs and truncated[env] != 0 and n_cut[env] < n_cuts:
                    cuts[n_cut[env], env, word] = final_observations[env, word]
            cuda.syncthreads()  # all threads have read n_cut
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            env = first_env + local
            if env < n_envs:
                is_done = _done_[env] != 0
                is_terminated, is_truncated, is_success = is_done, False, _done_[env] == 2
                if HAS_FLAGS:
                    is_terminated, is_truncated = terminated[env] != 0, truncated[env] != 0
                    is_success = is_success or is_terminated
                terminated_row[env] = 1 if is_terminated else 0
                truncated_row[env] = 1 if is_truncated else 0
                success_row[env] = 1 if is_success else 0
                steps = running_steps[env] + 1
                if is_done:
                    finished_steps[env] += steps
                    finished_episodes[env] += 1
                running_steps[env] = 0 if is_done else steps
                if CUTS:
                    if is_truncated:
                        n_cut[env] += 1

    return {"record": record}

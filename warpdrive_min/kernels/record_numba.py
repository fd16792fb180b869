"""Recording of a training step in Numba: the rule of `record.cu`."""

# ruff: noqa: N806, SIM102  (constants keep their names in all languages; Numba prunes only an `if` on its own)

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32

from warpdrive_min.kernels.arguments import Recording


def build(c: Any) -> dict[str, Any]:
    """Return the kernel ``record``."""
    N_AGENTS, N_WORDS, HAS_FLAGS, CUTS = c.N_AGENTS, c.N_WORDS, c.HAS_FLAGS, c.CUTS
    ENVS_PER_BLOCK, THREADS = c.ENVS_PER_BLOCK, c.THREADS

    @cuda.jit
    def record(given: Recording, n_envs: int32) -> None:
        first_env = cuda.blockIdx.x * ENVS_PER_BLOCK
        for item in range(cuda.threadIdx.x, ENVS_PER_BLOCK * N_AGENTS, THREADS):
            env, agent = first_env + item // N_AGENTS, item % N_AGENTS
            if env < n_envs:
                reward = given.rewards[env, agent]
                total = float32(given.running_return[env, agent] + reward)
                given.reward_row[env, agent] = reward
                if given.done[env] != 0:
                    given.finished_return[env, agent] += total
                given.running_return[env, agent] = float32(0) if given.done[env] != 0 else total
        if CUTS:
            n_words = ENVS_PER_BLOCK * N_WORDS if ENVS_PER_BLOCK > 1 or given.truncated[first_env] != 0 else 0
            for item in range(cuda.threadIdx.x, n_words, THREADS):
                env, word = first_env + item // N_WORDS, item % N_WORDS
                if env < n_envs and given.truncated[env] != 0 and given.n_cut[env] < given.n_cuts:
                    given.cuts[given.n_cut[env], env, word] = given.final_observations[env, word]
            cuda.syncthreads()  # all threads have read n_cut
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            env = first_env + local
            if env < n_envs:
                is_done = given.done[env] != 0
                is_terminated, is_truncated, is_success = is_done, False, given.done[env] == 2
                if HAS_FLAGS:
                    is_terminated, is_truncated = given.terminated[env] != 0, given.truncated[env] != 0
                    is_success = is_success or is_terminated
                given.terminated_row[env] = 1 if is_terminated else 0
                given.truncated_row[env] = 1 if is_truncated else 0
                given.success_row[env] = 1 if is_success else 0
                steps = given.running_steps[env] + 1
                if is_done:
                    given.finished_steps[env] += steps
                    given.finished_episodes[env] += 1
                given.running_steps[env] = 0 if is_done else steps
                if CUTS:
                    if is_truncated:
                        given.n_cut[env] += 1
                        if given.n_cut[env] > given.n_cuts:
                            given.faults[env, 0] = max(given.faults[env, 0], given.n_cut[env])
                if HAS_FLAGS:
                    if is_done != (is_terminated or is_truncated):
                        given.faults[env, 1] += 1

    return {"record": record}

"""Generic resets in Numba: the rule of `reset.cu`."""

# ruff: noqa: N806  (constants keep their names in all languages)

from __future__ import annotations

from typing import Any

from numba import cuda, int32

from warpdrive_min.kernels.arguments import Rows
from warpdrive_min.kernels.core_numba import pool_row


def build(c: Any) -> dict[str, Any]:
    """Return the kernels ``reset_rows`` and ``undo_done``.

    Arrays are passed as rows of 32-bit words.
    """
    ENVS_PER_BLOCK, THREADS = c.ENVS_PER_BLOCK, c.THREADS

    @cuda.jit
    def reset_rows(given: Rows, n_envs: int32) -> None:
        for item in range(cuda.threadIdx.x, ENVS_PER_BLOCK * given.n_words, THREADS):
            local = 0 if ENVS_PER_BLOCK == 1 else item // given.n_words
            env = cuda.blockIdx.x * ENVS_PER_BLOCK + local
            if env < n_envs and (given.force != 0 or given.done[env] != 0):
                row = env
                if given.n_rows > 0:
                    row = pool_row(given.episode[env], env, given.reset_seed[0], given.reset_seed[1], given.n_rows)
                given.target[env, item - local * given.n_words] = given.source[row, item - local * given.n_words]

    @cuda.jit
    def undo_done(_done_: int32[:], _timestep_: int32[:], _episode_: int32[:], force: int32, n_envs: int32) -> None:
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            env = cuda.blockIdx.x * ENVS_PER_BLOCK + local
            if env < n_envs and (force != 0 or _done_[env] != 0):
                _episode_[env] += 1
                _timestep_[env] = 0
                _done_[env] = 0

    return {"reset_rows": reset_rows, "undo_done": undo_done}

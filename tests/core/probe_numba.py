"""The kernels of `probe_kernels.cu` in Numba."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64

from warpdrive_min.kernels.core_numba import (
    below,
    clip,
    exp,
    log,
    maths,
    philox,
    pool_row,
    principal,
    uniform,
    word,
    wrap,
)


def build(c: Any) -> dict[str, Any]:
    """Return the kernels ``words``, ``derived`` and ``functions``."""
    sin, cos = maths(c.EXACT)

    @cuda.jit
    def words(counters: int32[:, :], seed: int32[:], out: int32[:, :], n_envs: int32) -> None:
        i = cuda.grid(1)
        if i < n_envs:
            block = philox(counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3], seed[0], seed[1])
            for k in range(4):
                out[i, k] = int32(int64(word(block, k)))

    @cuda.jit
    def derived(
        words: int32[:], seed: int32[:], uniforms: float32[:], integers: int32[:, :], n: int32, n_envs: int32
    ) -> None:
        i = cuda.grid(1)
        if i < n_envs:
            uniforms[i] = uniform(words[i])
            integers[i, 0] = below(int64(words[i]) & 0xFFFFFFFF, n)
            integers[i, 1] = pool_row(words[i], i, seed[0], seed[1], n)

    @cuda.jit
    def functions(x: float32[:], out: float32[:, :], n_envs: int32) -> None:
        i = cuda.grid(1)
        if i < n_envs:
            out[i, 0] = exp(x[i])
            out[i, 1] = log(clip(-x[i] if x[i] < float32(0) else x[i], float32(1e-30), float32(1e30)))
            out[i, 2] = sin(x[i])
            out[i, 3] = cos(x[i])
            out[i, 4] = wrap(x[i], float32(6.2831855))
            out[i, 5] = clip(x[i], float32(-1), float32(2))
            out[i, 6] = principal(x[i])

    return {"words": words, "derived": derived, "functions": functions}

"""Minimal kernel in Numba: the rule of `count.cu`."""

from __future__ import annotations

from typing import Any

from numba import cuda, int32


def build(c: Any) -> dict[str, Any]:
    """Return the kernel ``count``."""

    @cuda.jit
    def count(launches: int32[:]) -> None:
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            launches[0] += 1

    return {"count": count}

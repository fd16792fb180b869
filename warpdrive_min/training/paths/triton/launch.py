"""Launch of a Triton kernel, or only its compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_is_rehearsal = False


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return ``kernel[grid]``, or in a rehearsal a function that only compiles."""
    return partial(kernel.warmup, grid=grid) if _is_rehearsal else kernel[grid]


@contextmanager
def rehearsal() -> Iterator[None]:
    """Compile kernels in place of launching them, within the block."""
    global _is_rehearsal
    _is_rehearsal = True
    try:
        yield
    finally:
        _is_rehearsal = False

"""Launch of a kernel, or only its compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_submit: Callable[[Callable[[], object]], object] | None = None
"""Function that runs others in a thread, in a rehearsal."""


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return ``kernel[grid]`` of Triton, or in a rehearsal a function that only compiles."""
    return partial(kernel.warmup, grid=grid) if _submit is not None else kernel[grid]


def compiled_ahead(load: Callable[[], object]) -> bool:
    """True in a rehearsal, which then compiles a CUDA C program by ``load``."""
    if _submit is not None:
        _submit(load)
    return _submit is not None


@contextmanager
def rehearsal(submit: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """Compile kernels in place of launching them, within the block.

    ``submit`` compiles those in CUDA C; Triton compiles its own.
    """
    global _submit
    _submit = submit
    try:
        yield
    finally:
        _submit = None

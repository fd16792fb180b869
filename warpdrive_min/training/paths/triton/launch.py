"""Launch of a kernel, or only its compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from warpdrive_min.function_manager import KernelPlan


class Compilers(Protocol):
    """Threads that compile kernels, for a rehearsal."""

    def run(self, load: Callable[[], object]) -> None:
        """Compile and load a CUDA C program by ``load``."""

    def prepare_triton(self) -> bool:
        """Make Triton compile in these threads; False if it cannot."""


_compilers: Compilers | None = None
"""Set in a rehearsal."""


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return Triton's ``kernel[grid]``, or in a rehearsal its compilation."""
    if _compilers is None:
        launches: Callable[..., object] = kernel[grid]
        return launches
    return partial(kernel.warmup, grid=grid) if _compilers.prepare_triton() else _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the first launch compiles."""


def compiled_ahead(load: Callable[[], object]) -> bool:
    """True in a rehearsal, which then compiles a CUDA C program by ``load``."""
    if _compilers is not None:
        _compilers.run(load)
    return _compilers is not None


def planned_ahead(plan: KernelPlan) -> bool:
    """True in a rehearsal, which then compiles planned kernels in CUDA C.

    Those in another language compile when they are loaded.
    """
    return plan.functions.backend.language == "cuda_c" and compiled_ahead(plan.build)


@contextmanager
def rehearsal(compilers: Compilers) -> Iterator[None]:
    """Compile kernels in place of launching them, within the block."""
    global _compilers
    _compilers = compilers
    try:
        yield
    finally:
        _compilers = None

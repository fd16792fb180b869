"""Concurrent compilation of kernels, before their first launch."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, Final

import torch

from warpdrive_min.backends.cache import report
from warpdrive_min.collector import collection_paused
from warpdrive_min.training.paths import early
from warpdrive_min.training.paths.triton.launch import rehearsal

PATIENCE_S: Final = 1.0
"""Wait after which the compilation is reported, s."""
WORKERS: Final = 6
"""Most kernels that compile at once; with many, parts that hold the interpreter's lock would delay the slowest."""


@contextmanager
def compiled(device: torch.device, rehearse: Callable[[], None]) -> Iterator[None]:
    """Compile kernels in threads while the block runs; it must launch none.

    Args:
        device: GPU that loads them; on another device, nothing is done.
        rehearse: Function that launches kernels by `launch`; none runs, so outputs stay unset.
    """
    if device.type != "cuda":
        yield
        return
    with collection_paused(), Compilers(device) as compilers:
        with rehearsal(compilers), torch.no_grad():
            rehearse()
        yield
        gc.collect()  # while they compile; else it would interrupt the first iterations
        compilers.finish()


class Compilers(ThreadPoolExecutor):
    """Threads that compile and load kernels.

    Triton's passes and compilers run without the interpreter's lock.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(min(WORKERS, os.cpu_count() or 1))
        self._device = device
        self._kernels: list[Future[Any]] = []
        self._modes = ExitStack()

    def __exit__(self, *error: Any) -> None:
        self._modes.close()
        super().__exit__(*error)

    @cached_property
    def _can_compile_triton(self) -> bool:
        early.wait()
        import triton

        is_possible = hasattr(triton, "AsyncCompileMode")  # else, in older releases, the first launches compile
        if is_possible:
            self._modes.enter_context(triton.AsyncCompileMode(self))
        return is_possible

    def prepare_triton(self) -> bool:
        """Make Triton compile in these threads; False if it cannot.

        Programs in CUDA C do not wait for its import.
        """
        return self._can_compile_triton

    def submit(self, compile_: Callable[[], Any], /, *_: Any, **__: Any) -> Future[Any]:
        """Compile a kernel and load it; its launcher is built by a C compiler."""
        self._kernels.append(super().submit(self._loaded, compile_))
        return self._kernels[-1]

    def run(self, load: Callable[[], object]) -> None:
        """Compile and load a CUDA C program."""
        self._kernels.append(super().submit(self._on_device, load))

    def _on_device(self, load: Callable[[], object]) -> None:
        with torch.cuda.device(self._device):  # a new thread begins with the first GPU
            load()

    def _loaded(self, compile_: Callable[[], Any]) -> Any:
        kernel = compile_()
        self._on_device(lambda: kernel.run)  # the property loads it
        return kernel

    def finish(self) -> None:
        """Wait for all kernels; report it if it takes long."""
        _, unfinished = wait(self._kernels, PATIENCE_S)
        if unfinished:
            report(f"{len(unfinished)} kernels, some seconds")
            wait(unfinished)

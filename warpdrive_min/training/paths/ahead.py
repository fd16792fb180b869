"""Concurrent compilation of Triton's kernels, before their first launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Thread
from typing import Any, Final

import torch

from warpdrive_min.backends.cache import report
from warpdrive_min.training.paths.available import missing_for_triton
from warpdrive_min.training.paths.triton.launch import rehearsal

PATIENCE_S: Final = 1.0
"""Wait after which the compilation is reported, s."""
_imports: list[Thread] = []


def import_triton() -> None:
    """Import Triton and hash its files (0.7 s) in the background, if it is usable."""
    if not _imports and torch.cuda.is_available() and not missing_for_triton():
        _imports.append(Thread(target=_import, daemon=True))
        _imports[0].start()


def _import() -> None:
    from triton.runtime import cache

    cache.triton_key()


@contextmanager
def compiled(device: torch.device, rehearse: Callable[[], None]) -> Iterator[None]:
    """Compile kernels in threads while the block runs; it must launch none.

    Args:
        device: GPU that loads them; on another device, nothing is done.
        rehearse: Function that launches kernels by `launch`; none runs, so outputs stay unset.
    """
    if device.type != "cuda" or missing_for_triton():
        yield
        return
    import_triton()
    for thread in _imports:
        thread.join()
    import triton

    if not hasattr(triton, "AsyncCompileMode"):  # older releases: the first launches compile
        yield
        return
    with Compilers(device) as compilers, triton.AsyncCompileMode(compilers):
        with rehearsal(), torch.no_grad():
            rehearse()
        yield
        compilers.finish()


class Compilers(ThreadPoolExecutor):
    """Threads that compile and load kernels.

    Triton's passes and compilers run without the interpreter's lock.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(os.cpu_count())
        self._device = device
        self._kernels: list[Future[Any]] = []

    def submit(self, compile_: Callable[[], Any], /, *_: Any, **__: Any) -> Future[Any]:
        """Compile a kernel and load it; its launcher is built by a C compiler."""
        self._kernels.append(super().submit(self._loaded, compile_))
        return self._kernels[-1]

    def _loaded(self, compile_: Callable[[], Any]) -> Any:
        kernel = compile_()
        with torch.cuda.device(self._device):
            kernel.run  # noqa: B018  (the property loads it)
        return kernel

    def finish(self) -> None:
        """Wait for all kernels; report it if it takes long."""
        _, unfinished = wait(self._kernels, PATIENCE_S)
        if unfinished:
            report(f"{len(unfinished)} kernels, some seconds")
            wait(unfinished)

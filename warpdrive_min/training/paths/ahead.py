"""Concurrent compilation of Triton's kernels, before their first launch."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

import torch

from warpdrive_min.backends.cache import report
from warpdrive_min.training.paths import early
from warpdrive_min.training.paths.available import missing_for_triton
from warpdrive_min.training.paths.triton.launch import rehearsal

PATIENCE_S: Final = 1.0
"""Wait after which the compilation is reported, s."""


class Compilers(ThreadPoolExecutor):
    """Threads that compile and load Triton's kernels.

    Triton's passes and compilers run without the interpreter's lock.

    Args:
        device: GPU that loads the kernels; on another device, nothing is compiled.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(os.cpu_count())
        self._device = device
        self._kernels: list[Future[Any]] = []
        self._end: Callable[[], object] = lambda: None

    def start(self, rehearse: Callable[[], None]) -> None:
        """Start to compile the kernels that a function launches by `launch`.

        None of them runs, so outputs stay unset. A launch before `finish` would compile its kernel once more.
        """
        if self._device.type != "cuda" or missing_for_triton():
            return
        early.wait()
        import triton

        if not hasattr(triton, "AsyncCompileMode"):  # older releases: the first launches compile
            return
        mode = triton.AsyncCompileMode(self)

        def submit_all() -> None:
            mode.__enter__()
            with rehearsal(), torch.no_grad():
                rehearse()

        of_rehearsal = contextvars.copy_context()  # other launches do not see the mode
        of_rehearsal.run(submit_all)
        self._end = functools.partial(of_rehearsal.run, mode.__exit__, None, None, None)

    def submit(self, compile_: Callable[[], Any], /, *_: Any, **__: Any) -> Future[Any]:
        """Compile a kernel and load it; its launcher is built by a C compiler."""
        self._kernels.append(super().submit(self._loaded, compile_))
        return self._kernels[-1]

    def _loaded(self, compile_: Callable[[], Any]) -> Any:
        kernel = compile_()
        with torch.cuda.device(self._device):
            kernel.run  # noqa: B018  (the property loads it)
        return kernel

    @property
    def is_busy(self) -> bool:
        """True if a kernel is not yet compiled."""
        return not all(kernel.done() for kernel in self._kernels)

    def finish(self) -> None:
        """Wait for all kernels; report it if it takes long."""
        if not self._kernels:
            return
        _, unfinished = wait(self._kernels, PATIENCE_S)
        if unfinished:
            report(f"{len(unfinished)} kernels, some seconds")
        self._end()
        self._kernels.clear()
        self.shutdown()

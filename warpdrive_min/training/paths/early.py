"""Preparations in threads, while `train` imports torch or builds a trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from warpdrive_min.processes import Forks

_threads: Final[list[Thread]] = []
_starts: Final[list[Thread]] = []
"""Those that start the GPU."""
_forks: Final[list[Forks]] = []
"""Processes that compile."""
_releases: Final[list[Callable[[], None]]] = []
"""Functions that release the GPU."""


def run(prepare: Callable[[], object]) -> Thread:
    """Call a function in a thread; a later use reports its error."""

    def attempt() -> None:
        with suppress(Exception):
            prepare()

    thread = Thread(target=attempt, daemon=True)
    _threads.append(thread)
    thread.start()
    return thread


def compile_apart(prepare: Callable[[], object], builds: Sequence[Callable[[], object]]) -> None:
    """Call functions that compile in processes of their own.

    Another one prepares them first. It must be called before any thread starts. Threads would take the interpreter's
    lock and the memory map from the import of torch, and wait for them.
    """
    if builds:
        _forks.append(Forks(prepare, builds))
        run(_forks[-1].wait)


def start_gpu(backend: Any, index: int) -> None:
    """Create the context of a GPU, in a thread."""
    _starts.append(run(lambda: _releases.append(backend.start(index))))


def release() -> None:
    """Release the GPU, which this process will not use, and end compilations."""
    for each in _forks:
        each.kill()
    for thread in _starts:
        thread.join()
    while _releases:
        _releases.pop()()


def wait() -> None:
    """Wait for the end of the preparations."""
    for thread in _threads:
        thread.join()


@functools.cache
def prepare_triton() -> None:
    """Start preparations of Triton in a thread, once.

    Only runs that learn by Triton need them; during torch's import they would delay it.
    """
    run(_prepare_triton)


def _prepare_triton() -> None:
    """Import Triton, hash its files and build its launcher."""
    from triton.runtime.cache import triton_key

    key = Thread(target=triton_key, daemon=True)
    key.start()
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()  # compiled by a C compiler
    key.join()

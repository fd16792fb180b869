"""Preparations in threads, while `train` imports torch or builds a trainer."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from warpdrive_min.backends import BACKENDS, numba_server
from warpdrive_min.errors import WarpDriveError

_threads: Final[list[Thread]] = []


def start(words: Sequence[str]) -> None:
    """Start what a command will need; its words are not checked yet."""
    values = {word.rpartition("=")[2] for word in words}
    if words[:1] != ["train"] or {"host", "cpu"} & values:
        return
    rank = os.environ.get("LOCAL_RANK")
    if rank is None and any(word in ("--gpus", "-n") or "num_gpus" in word for word in words):
        return  # its ranks will do this
    backend: Any = BACKENDS["numba" if "numba" in values else "pycuda"]
    _run(lambda: backend.start(int(rank or 0)))
    if "numba" in values:
        with suppress(WarpDriveError):  # the command reports it
            numba_server.start()


@functools.cache
def prepare_triton() -> None:
    """Start preparations of Triton in a thread, once.

    Only runs that learn by Triton need them; during torch's import they would delay it.
    """
    _run(_prepare_triton)


def wait() -> None:
    """Wait for the end of the preparations."""
    for thread in _threads:
        thread.join()


def _run(prepare: Callable[[], object]) -> None:
    def attempt() -> None:
        with suppress(Exception):  # a later use reports it
            prepare()

    _threads.append(Thread(target=attempt, daemon=True))
    _threads[-1].start()


def _prepare_triton() -> None:
    """Import Triton, hash its files and build its launcher."""
    from triton.runtime.cache import triton_key

    key = Thread(target=triton_key, daemon=True)
    key.start()
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()  # compiled by a C compiler
    key.join()

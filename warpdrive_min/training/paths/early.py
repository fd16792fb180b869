"""Preparations in threads, while `train` imports torch or builds a trainer."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Final

from warpdrive_min.backends import numba_server
from warpdrive_min.errors import WarpDriveError

_threads: Final[list[Thread]] = []


def start(words: Sequence[str]) -> None:
    """Start what a command will need; its words are not checked yet."""
    if words[:1] != ["train"] or {"host", "cpu"} & set(words):
        return
    _run(_start_driver)
    if "numba" in words:
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
    _threads.append(Thread(target=prepare, daemon=True))
    _threads[-1].start()


def _start_driver() -> None:
    with suppress(OSError):  # no GPU; the command reports it
        ctypes.CDLL("libcuda.so.1").cuInit(0)


def _prepare_triton() -> None:
    """Import Triton, hash its files and build its launcher."""
    with suppress(Exception):  # a later use reports it
        from triton.runtime.cache import triton_key

        key = Thread(target=triton_key, daemon=True)
        key.start()
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()  # compiled by a C compiler
        key.join()

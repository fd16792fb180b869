"""Preparations of `train` while it imports torch, which takes seconds."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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
    _threads.append(Thread(target=_prepare, daemon=True))
    _threads[0].start()
    if "numba" in words:
        with suppress(WarpDriveError):  # the command reports it
            numba_server.start()


def wait() -> None:
    """Wait for the end of the preparations."""
    for thread in _threads:
        thread.join()


def _prepare() -> None:
    """Start the CUDA driver; import Triton, hash its files and build its launcher."""
    with suppress(Exception):  # a later use reports it
        if ctypes.CDLL("libcuda.so.1").cuInit(0):
            return  # no GPU
        from triton.runtime.cache import triton_key

        key = Thread(target=triton_key, daemon=True)
        key.start()
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()  # compiled by a C compiler
        key.join()

"""Preparations in threads, while `train` imports torch or builds a trainer."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from warpdrive_min.backends import BACKENDS, numba_server
from warpdrive_min.errors import WarpDriveError

_BACKEND: Final = re.compile(r"(?:--backend|trainer\.env_backend)[ =]['\"]?(\w+)")
_RANKS: Final = re.compile(r" (?:--gpus\b|-[a-z]*n ?\d|\S*\bnum_gpus\b)")
_threads: Final[list[Thread]] = []
_releases: Final[list[Callable[[], None]]] = []
"""Functions that release the GPU."""


def start(words: Sequence[str]) -> None:
    """Start what a command will need; its words are not checked yet."""
    if words[:1] != ["train"] or {"--help", "--explain"} & set(words):
        return
    text, rank = " ".join(words), os.environ.get("LOCAL_RANK")
    chosen = _BACKEND.findall(text)[-1:]
    if chosen in (["host"], ["cpu"]) or (rank is None and _RANKS.search(text)):
        return  # there is no GPU, or each rank starts its own
    backend: Any = BACKENDS["numba" if chosen == ["numba"] else "pycuda"]
    _run(lambda: _releases.append(backend.start(int(rank or 0))))
    if chosen == ["numba"]:
        with suppress(WarpDriveError):  # the command reports it
            numba_server.start()


def release() -> None:
    """Release the GPU, which this process will not use."""
    wait()
    while _releases:
        _releases.pop()()


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

"""Client of the fork server that compiles Numba kernels into the disk cache.

Numba's compiler holds the interpreter's lock, so threads would compile one kernel after the other.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from warpdrive_min.backends.base import Constant, Source
from warpdrive_min.backends.cache import NUMBA_SUFFIX, folder
from warpdrive_min.processes import Child

WORKER: Final = "warpdrive_min.backends.numba_worker"
"""Module of the server."""
LONGEST_JOB: Final = 2**17
"""Bytes of a pickled job; a longer one is not accepted."""
_running: list[tuple[socket.socket, Child]] = []
"""Connection to the server and its process, if it runs."""


class Job(NamedTuple):
    """Inputs of one compilation; a process without a GPU has the same cache key."""

    source: Source
    constants: Mapping[str, Constant]
    name: str
    shapes: Sequence[tuple[int, ...] | None]
    threads: int
    types: tuple[Any, ...]
    capability: tuple[int, int]


def start() -> None:
    """Start the server, if no kernel is cached yet; `stop` ends it."""
    is_possible = importlib.util.find_spec("numba_cuda")
    is_simulated = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
    if _running or not is_possible or is_simulated or any(folder().glob(f"*{NUMBA_SUFFIX}")):
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {WORKER} import serve; serve()"
    with theirs:
        child = Child([sys.executable, "-c", code], stdin=theirs, stderr=subprocess.DEVNULL)
    _running.append((ours, child))


def stop() -> None:
    """End the server and its compilations, if it runs."""
    while _running:
        jobs, child = _running.pop()
        jobs.close()
        child.kill()
        child.wait()


def is_running() -> bool:
    """True if jobs can be submitted."""
    return bool(_running)


def submit(job: Job) -> Callable[[], None]:
    """Start a compilation; return a function that waits for its end.

    A failed compilation ends too.
    """
    end, of_server = os.pipe()
    try:
        with suppress(OSError, pickle.PicklingError):  # then nothing is compiled
            socket.send_fds(_running[0][0], [pickle.dumps(job)], [of_server])
    finally:
        os.close(of_server)

    def wait() -> None:
        os.read(end, 1)  # nothing is written; it ends when all processes have closed the pipe
        os.close(end)

    return wait

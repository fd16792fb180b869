"""Fork server that compiles Numba kernels into the disk cache, several at once.

It needs no GPU, and its processes import neither torch nor environments.
"""

from __future__ import annotations

import gc
import importlib.machinery
import os
import pickle
import signal
import socket
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace

from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.cudadrv import devices

from warpdrive_min.backends import numba_source  # noqa: F401  (for all jobs)
from warpdrive_min.backends.numba_cuda import NumbaKernel, built, compiled
from warpdrive_min.backends.numba_server import LONGEST_JOB, Job
from warpdrive_min.kernels import core_numba  # noqa: F401


def serve() -> None:
    """Fork a process for each job from standard input, until its end."""
    _use_absent_gpu((9, 0))
    with suppress(Exception):  # each job fails for the same reason
        cuda.jit(lambda x: None).compile((cuda.types.float32[::1],))  # what a first compilation prepares
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes are not waited for
    with socket.socket(fileno=sys.stdin.fileno()) as jobs:
        while message := (received := socket.recv_fds(jobs, LONGEST_JOB, 1))[0]:
            if os.fork() == 0:
                try:
                    _compile(pickle.loads(message))
                finally:
                    os._exit(0)
            for descriptor in received[1]:
                os.close(descriptor)


def _compile(job: Job) -> None:
    _use_absent_gpu(job.capability)
    _skip_packages(str(job.source))
    kernel = NumbaKernel(job.name, built(job.source, job.constants)[job.name], bool(job.constants.get("EXACT")))
    compiled(kernel.of_sizes(job.shapes, job.threads), job.types, bool(job.constants.get("EXACT")))


def _use_absent_gpu(capability: tuple[int, int]) -> None:
    """Make Numba compile for a GPU without using it."""
    device = SimpleNamespace(compute_capability=capability)
    cuda.get_current_device = dispatcher.get_current_device = lambda: device
    devices.get_context = lambda: SimpleNamespace(device=device)
    dispatcher._Kernel.bind = lambda kernel: kernel.library.get_cubin()  # noqa: SLF001  (it would load the code)


def _skip_packages(module: str) -> None:
    """Let a module of kernels be imported without its packages.

    They may import torch, which takes seconds.
    """
    path: list[str] | None = None
    parts = module.split(".")[:-1]
    for index in range(len(parts)):
        name = ".".join(parts[: index + 1])
        if name not in sys.modules:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is None or spec.submodule_search_locations is None:
                return
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = spec.submodule_search_locations
        path = list(sys.modules[name].__path__)

"""Measure points with this code, each GPU point in a new process.

Also the program that `Worker.on` starts by path, so that each commit's code measures its own points.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import torch

if __name__ == "__main__":  # started by path, from a checkout or an install
    _outer = "warpdrive_min." if (Path(__file__).resolve().parents[2] / "__init__.py").exists() else ""
    __package__ = f"{_outer}bench.process"

from ..core.case import Job
from ..core.record import Context, Record
from ..workloads.cases import CASES
from ..workloads.setups import every as every  # copies start with all set-ups imported
from ..workloads.shared import ON_GPU
from . import concurrent_setup
from .server import Server
from .worker import Copy, serve


def serve_points(connection: Connection) -> None:
    """Serve requests to measure points of this code."""
    serve(connection, Server(CASES))


start: Final = Copy(serve_points, preload=f"{__package__}.local")
"""Starts a process that measures points of this code."""


def is_on_gpu(job: Job) -> bool:
    """True if a point runs on a GPU of this machine."""
    return torch.cuda.is_available() and job.point["backend"] in ON_GPU


def start_of(job: Job) -> Copy | None:
    """Return the function that starts a point's process; None: use this one."""
    return start if is_on_gpu(job) else None


def run_point(job: Job, context: Context) -> Record:
    """Measure one point."""
    return concurrent_setup.run_point(job, context, start_of(job))


def run_points(
    todo: Sequence[Job], context: Context, at_once: int = 1, *, in_new_processes: bool = False
) -> Iterator[Record]:
    """Measure points, up to ``at_once`` set up at the same time.

    With ``in_new_processes`` those of the CPU have new processes too.
    """
    start_each = (lambda job: start) if in_new_processes else start_of
    return concurrent_setup.run_points(todo, context, start_each, at_once)


if __name__ == "__main__":
    serve_points(Connection(int(sys.argv[1])))

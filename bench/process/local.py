"""Measure points with this code, each GPU point in a new process.

Also the program that `Worker.on` starts by path, so that each commit's code measures its own points.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import torch

if __name__ == "__main__":  # started by path, from a checkout or an install
    _outer = "warpdrive_min." if (Path(__file__).resolve().parents[2] / "__init__.py").exists() else ""
    __package__ = f"{_outer}bench.process"

from warpdrive_min import tracing
from warpdrive_min.errors import WriteError
from warpdrive_min.files import write_atomically

from ..core.case import Job
from ..core.errors import Skip
from ..core.measure import Timed
from ..core.point import point_name
from ..core.record import Context, Record, Status
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


def write_traces(todo: Sequence[Job], folder: Path) -> Iterator[tuple[Status, str]]:
    """Trace each point of repeated work; yield its status and a line.

    Raises:
        WriteError: A file cannot be written.
    """
    for job in todo:
        name = point_name(job.case.name, job.point)
        try:
            yield "ok", f"trace: {_write_trace(job, folder / _file_name(name))}"
        except WriteError:
            raise
        except Skip as skip:
            yield "skipped", f"left out: {name}: {skip}"
        except Exception as error:  # noqa: BLE001  (an error in one point must not lose the others)
            yield "failed", f"failed: {name}: {type(error).__name__}: {error}"
        gc.collect()  # frees the point's memory on a GPU


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.,=-]+", "-", name).strip("-") + ".json"


def _write_trace(job: Job, file: Path) -> Path:
    if job.case.workload is not Timed:
        raise Skip("its work is not repeated in this process")
    with tracing.ranges():
        workload = job.case.setup(job.point)
        assert isinstance(workload, Timed)
        facts = {"case": job.case.name, "point": dict(job.point), "work_per_run": dict(workload.facts.work)}
        return write_atomically(file, tracing.trace(workload.run, workload.synchronize, facts))


if __name__ == "__main__":
    serve_points(Connection(int(sys.argv[1])))

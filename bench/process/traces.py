"""Traces of points, in place of measurements, in this process."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from warpdrive_min import tracing
from warpdrive_min.errors import WriteError

from ..core.case import Job
from ..core.errors import Skip
from ..core.measure import Timed
from ..core.point import point_name
from ..core.record import Status


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
        return tracing.write_trace(file, workload.run, workload.synchronize, facts)

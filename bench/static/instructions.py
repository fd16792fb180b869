"""Records of a CPU's instructions: each kernel of a point on the backend `host`, and the path to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..core.case import Job
from ..core.machine import ROOT
from ..core.measure import Measurement, Metric
from ..core.point import Check, command_line
from ..core.record import CaseVersion, Context, Record, StartTime
from ..process import counts
from ..process.worker import WorkerError
from ..show.columns import Table, metric_column
from .records import point_column

INSTRUCTIONS: Final = CaseVersion(name="instructions", scope="static")
ORACLE: Final = "callgrind's own sum"


def table_of(records: Sequence[Record]) -> Table[Any]:
    """Return the table of instructions."""
    axes = map(point_column, ("program", "part", "kernel", "n_envs", "n_agents"))
    return Table(title="instructions of a run", columns=[*axes, metric_column("instructions")], rows=records)


def chosen(envs: Sequence[str] = ()) -> list[Job]:
    """Return what is counted of some environments; of none: all."""
    return [job for job in counts.points() if not envs or job.point.get("env") in envs or job.case.name in envs]


def records_of(jobs: Sequence[Job], context: Context, root: Path = ROOT) -> list[Record]:
    """Count points on the code under a folder and return a record of each part, or for each point why there is none.

    What was counted of this very code by these tools is not counted again. Waits.
    """
    if not jobs:
        return []
    state = counts.availability()
    try:
        if not state.available:
            raise WorkerError("Skip", f"instructions: {state}")
        counted = counts.kept(jobs, root)
    except WorkerError as error:
        counted = [counts.Count(error=error.kind, reason=error.message)] * len(jobs)
    records = []
    for job, count in zip(jobs, counted, strict=True):
        if count.error:
            status = "skipped" if count.error == "Skip" else "failed"
            reason = count.reason if status == "skipped" else f"{count.error}: {count.reason}"
            records.append(_record(point_of(job), context, status=status, reason=reason))
        for kernel, instructions in count.parts.items():
            records.append(_record(point_of(job, kernel), context, seen=_seen(count, instructions)))
    return records


def point_of(job: Job, kernel: str = "") -> dict[str, Any]:
    """Return the point of a kernel, or of the path: that of what is run, by the axes of machine code."""
    point = {name: value for name, value in job.point.items() if name != "env"}
    named = [str(point[name]) for name in ("implementation", "neighbor_search", "algorithm") if name in point]
    part = " ".join([job.case.name, *(name for name in named if name != "ours")])
    program = {"program": job.point.get("env", job.case.name), "part": part}
    return {**program, **({"kernel": kernel} if kernel else {}), **point, "arch": counts.architecture()}


def _seen(count: counts.Count, instructions: float) -> Measurement:
    check = Check(passed=count.off == 0, max_error=float(count.off), oracle=ORACLE, detail=f"{count.off} too few")
    return Measurement(
        before=check,
        after=check,
        metrics={"instructions": Metric.exactly(instructions, "instructions/run", "lower")},
        notes={"work_per_run": dict(count.work), "compiler": ", ".join(counts.tools())},
    )


def _record(point: dict[str, Any], context: Context, **found: Any) -> Record:
    command = command_line("static", backend=counts.BACKEND, env=point["program"])
    return Record.of(INSTRUCTIONS, point, context, started=StartTime(), command=command, **found)

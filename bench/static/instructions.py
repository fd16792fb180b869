"""Records of a CPU's instructions: each kernel of a point on the backend `host`, and the path to them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from .. import counts
from ..case import Job
from ..machine import ROOT
from ..measure import Measurement, Metric
from ..point import Check
from ..record import CaseVersion, Context, Record
from ..show.columns import Column, Table, metric_column
from ..worker import WorkerError

INSTRUCTIONS: Final = CaseVersion(name="instructions", scope="static")
ORACLE: Final = "callgrind's own sum"


def table_of(records: Sequence[Record]) -> Table[Any]:
    """Return the table of instructions."""
    axes = [Column(name, _axis(name), is_choice=True) for name in ("work", "part", "env", "n_envs", "n_agents")]
    return Table(title="instructions of a run", columns=[*axes, metric_column("instructions")], rows=records)


def _axis(name: str) -> Callable[[Record], str]:
    return lambda record: str(record.point.get(name, ""))


def chosen(envs: Sequence[str] = ()) -> list[Job]:
    """Return what is counted of some environments; of none: all."""
    return [job for job in counts.points() if not envs or job.point.get("env") in envs or job.case.name in envs]


def records_of(jobs: Sequence[Job], context: Context, root: Path = ROOT) -> list[Record]:
    """Count points on the code under a folder and return a record of each part; one says why if nothing can be counted.

    What was counted of this very code by these tools is not counted again. Waits.
    """
    if not jobs:
        return []
    state = counts.availability()
    if not state.available:
        return [_record({"work": "all"}, context, status="skipped", reason=f"instructions: {state}")]
    try:
        counted = counts.kept(jobs, root)
    except WorkerError as error:
        status = "skipped" if error.kind == "Skip" else "failed"
        return [_record({"work": "all"}, context, status=status, reason=f"instructions: {error}")]
    records = []
    for job, count in zip(jobs, counted, strict=True):
        if count.error:
            status = "skipped" if count.error == "Skip" else "failed"
            records.append(_record(point_of(job), context, status=status, reason=f"{count.error}: {count.reason}"))
        for part, instructions in count.parts.items():
            records.append(_record(point_of(job, part), context, seen=_seen(count, instructions)))
    return records


def point_of(job: Job, part: str = "") -> dict[str, Any]:
    """Return the point of a part: that of what is counted, with its case as `work`."""
    return {"work": job.case.name, **({"part": part} if part else {}), **job.point}


def _seen(count: counts.Count, instructions: float) -> Measurement:
    check = Check(passed=count.off == 0, max_error=float(count.off), oracle=ORACLE, detail=f"{count.off} too few")
    return Measurement(
        before=check,
        after=check,
        metrics={"instructions": Metric.exactly(instructions, "instructions/run", "lower")},
        notes={"work_per_run": dict(count.work), "compiler": ", ".join(counts.tools())},
    )


def _record(point: dict[str, Any], context: Context, **found: Any) -> Record:
    words = ["python", "-m", "bench", "static", "--backend", counts.BACKEND]
    env = ["--env", point["env"]] if "env" in point else []
    command = shlex.join([*words, *env])
    return Record.of(INSTRUCTIONS, point, context, started=datetime.now(UTC), command=command, **found)

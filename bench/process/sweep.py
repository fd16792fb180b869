"""Sweep of points into a file, from which it can resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..core.case import Job
from ..core.groups import groups_of
from ..core.measure import Timed
from ..core.record import (
    ALONE,
    Comparison,
    Context,
    Record,
    append,
    existing_files,
    read_results,
    reporting_skipped_lines,
)
from ..judge.evidence import key, name_of, point_key

Runner = Callable[[Sequence[Job], Context], Iterator[Record]]
"""Runs points, in any order, and yields their records."""


def run(todo: Sequence[Job], context: Context, file: Path, runner: Runner) -> Iterator[Record]:
    """Yield each point's record that ``file`` lacks, once written there.

    A point that fails or cannot run here gets a record with the reason.

    Args:
        todo: All points, each as often as it is wanted, also those that the file has.
        context: Facts that their records share.
        file: File of the records.
        runner: Runs the points.
    """
    for record in runner(missing(todo, file), context):
        append(file, record)
        yield record


def read_existing(*files: Path) -> tuple[list[Record], list[Comparison]]:
    """Return the readable records and comparisons of the files that exist."""
    with reporting_skipped_lines() as skipped_lines:
        return read_results(existing_files(*files), skipped_lines)


def missing(todo: Sequence[Job], file: Path) -> list[Job]:
    """Return the points without an ``ok`` record in a file, as often as they lack one."""
    found = [record for record in read_existing(file)[0] if record.taken == ALONE]
    finished = Counter(key(record) for record in found if record.status == "ok")
    groups = groups_of(todo, lambda job: point_key(job.case.name, job.point))
    lacking = {id(job) for point, same in groups.items() for job in same[finished[point] :]}
    return [job for job in todo if id(job) in lacking]


def in_processes(todo: Sequence[Job], n: int) -> list[Job]:
    """Return each timed point n times, for as many processes, and others once.

    One pass over all points follows the other, so that the processes of a point are minutes apart. The last one has the
    reference run and the telemetry.
    """
    passes = [replace(job, is_brief=True) for _ in range(n - 1) for job in todo if job.case.workload is Timed]
    return [*passes, *todo]


def measure_missing(
    todo: Sequence[Job], context: Context, file: Path, runner: Runner, tell: Callable[[str], None]
) -> list[Record]:
    """Run the missing points of a file and return all its records.

    ``tell`` gets a line for each.
    """
    n = len(missing(todo, file))
    for index, record in enumerate(run(todo, context, file, runner), start=1):
        reason = f": {record.reason}" if record.reason else ""
        tell(f"{index}/{n} {name_of(record)}: {record.status}{reason}")
    return read_existing(file)[0]

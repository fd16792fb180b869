"""A sweep: every point of the chosen cases is set up, checked, measured, checked again and recorded."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from bench.case import Case, Point, Preset, Skip, Workload
from bench.cases import CASES
from bench.measure import PLANS
from bench.record import Context, Host, Record, append, read

RESULTS: Final = Path("results")
SWEEPS: Final = RESULTS / "sweeps"
PEERS: Final = RESULTS / "peers"
"""Folder of the records of other people's software, with ours beside it."""

Filters = Mapping[str, Sequence[Any]]
"""Values to keep of each axis, and of "case"; an axis that is not named keeps all."""


@dataclass(frozen=True, slots=True)
class Job:
    """One point of one case."""

    case: Case
    point: Point


def folders() -> list[Path]:
    """Return the folders of records that are there."""
    return [folder for folder in (SWEEPS, PEERS) if folder.is_dir()]


def jobs(preset: Preset, filters: Filters, cases: Mapping[str, Case] = CASES) -> list[Job]:
    """Return the points of a preset that pass the filters."""

    def keeps(case: Case, point: Point) -> bool:
        values = {"case": case.name, **point}
        return all(not kept or (name in values and values[name] in kept) for name, kept in filters.items())

    return [Job(case, point) for case in cases.values() for point in case.points(preset) if keeps(case, point)]


Runner = Callable[[Sequence[Job], Context], Iterator[Record]]
"""Takes points to records, in any order; how and where is its own affair."""


def run(todo: Sequence[Job], context: Context, file: Path, runner: Runner) -> Iterator[Record]:
    """Yield the record of each point, once it is in ``file``; points that stand there already are left out.

    A point that fails or cannot run here is recorded with its reason and does not end the sweep.

    Args:
        todo: The points.
        context: What their records share.
        file: Gets a line for each record.
        runner: How points are run.
    """
    for record in runner(missing(todo, file), context):
        append(file, record)
        yield record


def missing(todo: Sequence[Job], file: Path) -> list[Job]:
    """Return the points that do not stand in a file as ``ok``."""
    finished = _finished(file)
    return [job for job in todo if _key(job.case.name, job.point) not in finished]


def _finished(file: Path) -> set[tuple[Any, ...]]:
    if not file.exists():
        return set()
    return {_key(record.case, record.point) for record in read(file, cut=[]) if record.status == "ok"}


def _key(case: str, point: Point) -> tuple[Any, ...]:
    return (case, *sorted(point.items()))


def run_point(job: Job, context: Context) -> Record:
    """Set up, check, measure, check and record one point."""
    started, clock, host = datetime.now(UTC), time.perf_counter(), Host.before()
    build = partial(Record.of, job.case, job.point, context, started=started)
    workload: Workload | None = None
    try:
        workload = job.case.setup(job.point)
        setup_s = round(time.perf_counter() - clock, 3)  # with whatever had to be compiled
        seen = workload.measure(PLANS[context.preset])
        seen = replace(seen, notes={"setup_s": setup_s, **seen.notes})
        return build(facts=workload.facts, seen=seen, host=host.after(workload.facts.device))
    except Skip as skip:
        return build(status="skipped", reason=str(skip), host=host)
    except Exception as error:  # noqa: BLE001  (whatever breaks one point must not lose the others)
        facts, reason = workload.facts if workload else None, f"{type(error).__name__}: {error}"
        return build(facts=facts, status="failed", reason=reason, host=host)
    finally:
        workload = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

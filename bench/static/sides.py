"""Records of scope `static` from a folder's code: machine and CPU instructions."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from warpdrive_min.processes import is_stopping
from warpdrive_min.terminal import echo

from ..core.case import Job
from ..core.errors import CompareError
from ..core.machine import ROOT, git_state
from ..core.point import Check, Measurement, Metric, command_line, matches
from ..core.record import Context, Record, StartTime, append
from ..options import Choice
from ..process import callgrind as counts
from ..process.interleaved import require_one_code
from ..process.pace import Pace, duration
from ..process.worker import WorkerError
from ..show.labels import plural
from ..workloads.cases import CASES
from ..workloads.outside import config_of
from .capability import CAPABILITIES
from .programs import chosen
from .records import INSTRUCTIONS, MACHINE_CODE, N_CORES, Program, point_of_program, records_of

ARCHITECTURES: Final = ("90",)
ORACLE: Final = "callgrind's own sum"


# ------------------------------------------------------------------ machine code


def architectures(given: Sequence[str] | None) -> list[str]:
    """Return architectures as compilers name them.

    Raises:
        CompareError: An architecture is unknown.
    """
    names = [each if each.startswith("sm_") else f"sm_{each}" for each in given or ARCHITECTURES]
    for name in names:
        if name not in CAPABILITIES:
            raise CompareError(f"--arch: must be one of {', '.join(CAPABILITIES)} (got {name}); choose one of these")
    return names


@dataclass(frozen=True, slots=True)
class Progress:
    """Records of a side, stored as soon as a program is finished."""

    file: Path | None = None
    end: float = math.inf
    """Time of `time.monotonic` after which no program starts."""
    before: list[Record] = field(default_factory=list)
    """Records of the file, from an earlier call."""
    missing: list[str] = field(default_factory=list)
    """Programs that were stopped or not started, as text."""

    def save(self, records: Sequence[Record]) -> None:
        """Append records to the file, if there is one."""
        for record in records:
            if self.file:
                append(self.file, record)

    def goes_on(self) -> bool:
        """True unless the time is over or a signal has arrived."""
        return time.monotonic() < self.end and not is_stopping()

    def has(self, case: str, point: Mapping[str, Any]) -> bool:
        """True if there are records of a case with these axes."""
        return any(each.case == case and point.items() <= each.point.items() for each in self.before)


def compile_programs(
    programs: Sequence[Program],
    archs: Sequence[str],
    context: Context,
    root: Path = ROOT,
    progress: Progress | None = None,
) -> list[Record]:
    """Return the records of programs; print each program and any failures."""
    records: list[Record] = []
    start, progress, pace = time.monotonic(), progress or Progress(), pace_of_programs(len(programs), len(archs))
    all_found = records_of(programs, archs, context, root, goes_on=progress.goes_on)
    for index, (program, found) in enumerate(zip(programs, all_found, strict=True), start=1):
        records += found
        progress.save(found)
        if not found and not progress.goes_on():
            progress.missing.append(f"{program['name']} on {program['backend']}")
            continue
        n_kernels = sum(record.status == "ok" for record in found)
        left = pace.left(time.monotonic() - start, index, len(programs))
        name = f"{program['name']} on {program['backend']}"
        echo(f"{index}/{len(programs)} {name}: {n_kernels} kernels, {left}", err=True)
        for reason in dict.fromkeys(record.reason for record in found if record.reason):
            echo(f"  {found[0].status}: {reason}", err=True)
    return records


def pace_of_programs(n_programs: int, n_archs: int) -> Pace:
    """Return the pace of programs on all cores, if nothing is cached."""
    return Pace(each_s=(4 + 5 * n_archs) / max(1, min(n_programs, N_CORES)), start_s=10)


# ------------------------------------------------------------------ instructions of a CPU


def counted_jobs(envs: Sequence[str] = ()) -> list[Job]:
    """Return the points with counted instructions, of some environments or of all."""
    return [job for job in counts.points(CASES) if not envs or job.point.get("env") in envs or job.case.name in envs]


def count_instructions(jobs: Sequence[Job], context: Context, root: Path = ROOT) -> list[Record]:
    """Count instructions of points; return records per part, or a reason.

    Counts of the same code with the same tools are reused.
    """
    if not jobs:
        return []
    state = counts.availability()
    try:
        if not state.available:
            raise WorkerError("Skip", f"instructions: {state}")
        found = counts.cached_counts(jobs, root)
    except WorkerError as error:
        found = [counts.Count(error=error.kind, reason=error.message)] * len(jobs)
    records = []
    for job, count in zip(jobs, found, strict=True):
        if count.error:
            status = "skipped" if count.error == "Skip" else "failed"
            reason = count.reason if status == "skipped" else f"{count.error}: {count.reason}"
            records.append(_record(point_of(job), context, status=status, reason=reason))
        for kernel, instructions in count.parts.items():
            records.append(_record(point_of(job, kernel), context, seen=_seen(count, instructions)))
    return records


def point_of(job: Job, kernel: str = "") -> dict[str, Any]:
    """Return the point of a job or kernel, by machine code's axes."""
    point = {name: value for name, value in job.point.items() if name != "env"}
    named = [str(point[name]) for name in ("implementation", "neighbor_search", "algorithm") if name in point]
    part = " ".join([job.case.name, *(name for name in named if name != "ours")])
    program = {"program": job.point.get("env", job.case.name), "part": part}
    return {**program, **({"kernel": kernel} if kernel else {}), **point, "arch": counts.architecture()}


def _seen(count: counts.Count, instructions: float) -> Measurement:
    check = Check.within(float(count.off), 0, ORACLE, f"{count.off} too few")
    return Measurement(
        before=check,
        after=check,
        metrics={"instructions": Metric.exact(instructions, "instructions/run", "lower")},
        notes={"work_per_run": dict(count.work), "compiler": ", ".join(counts.tools())},
    )


def _record(point: dict[str, Any], context: Context, **found: Any) -> Record:
    command = command_line("static", backend=counts.BACKEND, env=point["program"])
    return Record.of(INSTRUCTIONS, point, context, started=StartTime(), command=command, **found)


def _instructions(jobs: Sequence[Job], context: Context, root: Path, progress: Progress) -> list[Record]:
    records = count_instructions(jobs, context, root) if progress.goes_on() else []
    if jobs and (is_stopping() or not records):  # counts of a killed process are no failures
        progress.missing.append("instructions of a CPU")
        return []
    progress.save(records)
    return records


# ------------------------------------------------------------------ both


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Programs to compile and points to count, of one side."""

    programs: Sequence[Program] = ()
    archs: Sequence[str] = ()
    jobs: Sequence[Job] = ()

    @classmethod
    def of(cls, wanted: Choice, progress: Progress) -> Work:
        """Return the selected work, without that of an earlier call."""
        programs, archs, jobs = list[Program](), list[str](), list[Job]()
        if not wanted.cases or MACHINE_CODE.name in wanted.cases:
            archs = [arch for arch in architectures(wanted.archs) if _may_pass(wanted, arch=arch)]
            programs = chosen(wanted.envs, (), None, None, config_of(wanted.config)) if archs else []
            programs = [each for each in programs if _may_pass(wanted, program=each["name"], backend=each["backend"])]
            programs = [each for each in programs if not progress.has(MACHINE_CODE.name, point_of_program(each))]
        if (not wanted.cases or INSTRUCTIONS.name in wanted.cases) and not progress.has(INSTRUCTIONS.name, {}):
            conditions = [each for each in wanted.where if each.partition("=")[0] != "kernel"]
            jobs = [job for job in counted_jobs(wanted.envs) if matches(point_of(job), conditions)]
        return cls(programs=programs, archs=archs, jobs=jobs)

    @property
    def n_parts(self) -> int:
        """Number of points to count; 0 without Valgrind."""
        return len(self.jobs) if counts.availability().available else 0

    @property
    def seconds(self) -> float:
        """Duration if nothing is cached: one core counts, and all compile."""
        n, counting_s = len(self.programs), counts.PACE.seconds(self.n_parts)
        return max(counting_s, pace_of_programs(n, len(self.archs)).seconds(n) + counting_s / N_CORES)


def _may_pass(wanted: Choice, **values: str) -> bool:
    """True if points with these values may meet the conditions."""
    return matches(values, [each for each in wanted.where if each.partition("=")[0] in values])


def print_size(*sides: Work) -> None:
    """Print the size of the work of all sides, and its rough duration."""
    n_programs, n_parts = sum(len(side.programs) for side in sides), sum(side.n_parts for side in sides)
    sizes = [f"{plural(n_programs, 'program')} to compile"] if n_programs else []
    sizes += [f"{plural(n_parts, 'part')} to count under Valgrind"] if n_parts else []
    if sizes:
        seconds = sum(side.seconds for side in sides)
        echo(f"{' and '.join(sizes)}, {duration(seconds)} if nothing is cached", err=True)


def selected_records(
    wanted: Choice, context: Context, root: Path = ROOT, progress: Progress | None = None
) -> list[Record]:
    """Return the selected records of the code in a folder."""
    progress = progress or Progress()
    work = Work.of(wanted, progress)
    with ThreadPoolExecutor(2) as pool:  # each waits for its own processes
        compiled = pool.submit(compile_programs, work.programs, work.archs, context, root, progress)
        counted = pool.submit(_instructions, work.jobs, context, root, progress)
        records = [*progress.before, *compiled.result(), *counted.result()]
    return [record for record in records if record.status != "ok" or matches(record.point, wanted.where)]


def records_of_side(
    wanted: Choice, letter: str, context: Context, progress: Progress, root: Path = ROOT
) -> list[Record]:
    """Return the records of one side; programs in its file are not compiled again.

    The side's letter is part of its run id.

    Raises:
        NotComparable: The file has records of other code.
    """
    context = replace(context, run_id=f"{context.run_id}-{letter}", git=git_state(root))
    for record in progress.before:
        require_one_code(record, context.git)
    return selected_records(wanted, context, root, progress)

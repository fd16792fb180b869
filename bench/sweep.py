"""A sweep: every point of the chosen cases is set up, checked, measured, checked again and recorded."""

from __future__ import annotations

import gc
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from bench import machine, roofline
from bench.case import Case, Correctness, Point, Prepared, Preset, Ranks, Skip, Starts, Trial
from bench.cases import CASES
from bench.measure import PLANS, Measurement, Plan, measure, measure_starts, refuse_simulator, stopwatch_for
from bench.nvml import Sampler, pcie_bytes_per
from bench.record import Check, CorrectnessRecord, Curve, Metric, Record, Status, append, read
from bench.stats import median, median_interval

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = Path("results")
SWEEPS: Final = RESULTS / "sweeps"
PEERS: Final = RESULTS / "peers"
"""Of other people's software, with ours beside it."""

TELEMETRY_S: Final[dict[Preset, float]] = {"smoke": 0.0, "default": 0.5, "full": 5.5, "paper": 5.5}
"""How long the device is watched while it repeats a point, s; from 5 s on energy is read too."""

Filters = Mapping[str, Sequence[Any]]
"""Values to keep of each axis, and of "case"; an axis that is not named keeps all."""


@dataclass(frozen=True, slots=True)
class Job:
    """One point of one case."""

    case: Case
    point: Point


@dataclass(frozen=True, slots=True)
class Context:
    """What all records of a sweep share."""

    run_id: str
    preset: Preset
    machine: Mapping[str, Any]
    git: Mapping[str, Any]
    dependencies_hash: str
    plan: Plan
    note: str | None = None
    """What whoever started the sweep has to say about it."""

    @classmethod
    def here(cls, preset: Preset, run_id: str | None = None, note: str | None = None) -> Context:
        """Read this machine."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        git = machine.git_state(ROOT)
        return cls(
            run_id=run_id or new_run_id(git),
            preset=preset,
            machine=machine.fingerprint(device),
            git=git,
            dependencies_hash=machine.dependencies_hash(),
            plan=PLANS[preset],
            note=note,
        )


def folders() -> list[Path]:
    """Return the folders of records that are there."""
    return [folder for folder in (SWEEPS, PEERS) if folder.is_dir()]


def new_run_id(git: Mapping[str, Any]) -> str:
    """Name a sweep by its start, commit, and four random digits."""
    sha = str(git.get("sha") or "nogit")[:7]
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{sha}-{uuid.uuid4().hex[:4]}"


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


# ------------------------------------------------------------------ one point


@dataclass(slots=True)
class Outcome:
    """What came of a point; filled as far as it went."""

    status: Status = "ok"
    reason: str | None = None
    prepared: Prepared | Trial | Starts | Ranks | None = None
    measurement: Measurement | None = None
    metrics: dict[str, Metric] | None = None
    curve: Curve | None = None
    before: Correctness | None = None
    after: Correctness | None = None
    telemetry: dict[str, Any] | None = None
    roofline: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


def run_point(job: Job, context: Context) -> Record:
    """Set up, check, measure, check and record one point."""
    started, clock = datetime.now(UTC), time.perf_counter()
    outcome = Outcome()
    try:
        _attempt(job, context, outcome)
    except Skip as skip:
        outcome.status, outcome.reason = "skipped", str(skip)
    except Exception as error:  # noqa: BLE001  (whatever breaks one point must not lose the others)
        outcome.status, outcome.reason = "failed", f"{type(error).__name__}: {error}"
    record = to_record(job, context, outcome, started, time.perf_counter() - clock)
    outcome.prepared = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return record


def _attempt(job: Job, context: Context, outcome: Outcome) -> None:
    clock = time.perf_counter()
    prepared = outcome.prepared = job.case.setup(job.point)
    outcome.notes["setup_s"] = round(time.perf_counter() - clock, 3)  # with whatever had to be compiled
    if isinstance(prepared, Ranks):
        _time_ranks(prepared, context, outcome)
        return
    outcome.before = _right(prepared.check(), "before")
    if isinstance(prepared, Trial):
        _try_once(prepared, outcome)
    elif isinstance(prepared, Starts):
        _start(prepared, context, outcome)
    else:
        _time(prepared, context, outcome)
    outcome.after = _right(prepared.check(), "after")


def _right(seen: Correctness, when: str) -> Correctness:
    if not seen.passed:
        raise ArithmeticError(f"{when} the timing, against {seen.oracle}: {seen.detail}")
    return seen


def _try_once(trial: Trial, outcome: Outcome) -> None:
    refuse_simulator(trial.device)
    course = trial.run()
    outcome.metrics, outcome.curve = course.metrics, course.curve
    outcome.notes.update(course.notes)
    outcome.unread.update(course.unread)
    for field_name in ("roofline", "telemetry"):
        outcome.unread[field_name] = "the point is run once"


def _start(starts: Starts, context: Context, outcome: Outcome) -> None:
    started = measure_starts(starts, context.plan)
    outcome.measurement = started.total
    total_s = tuple(ns / 1e9 for ns in started.total.samples_ns)
    outcome.metrics = {
        name: Metric(value=median(s), unit="s", direction="lower", low=low, high=high)
        for name, s in {"total_s": total_s, **started.parts_s}.items()
        for low, high in [median_interval(s)]
    }
    outcome.notes.update(starts.notes, samples_s={name: list(s) for name, s in started.parts_s.items()})
    for field_name in ("roofline", "telemetry", "warm_up"):
        outcome.unread[field_name] = "each sample is a process of its own, timed from cold"


def _time_ranks(ranks: Ranks, context: Context, outcome: Outcome) -> None:
    refuse_simulator(ranks.device)
    report = ranks.run(context.plan)
    outcome.before = _right(report.before, "before")
    outcome.measurement = report.measurement
    outcome.metrics = metrics(report.measurement, ranks.work)
    outcome.notes.update(report.notes, **report.measurement.notes)
    for field_name in ("roofline", "telemetry"):
        outcome.unread[field_name] = "the work is done in processes of its own"
    outcome.after = _right(report.after, "after")


def _time(prepared: Prepared, context: Context, outcome: Outcome) -> None:
    outcome.notes.update(prepared.notes, bytes_per_run=prepared.bytes_per_run, ops_per_run=prepared.ops_per_run)
    measurement = outcome.measurement = measure(prepared, context.plan)
    outcome.metrics = metrics(measurement, prepared.work)
    outcome.notes.update(measurement.notes)
    outcome.telemetry, reason = watch(prepared, measurement, TELEMETRY_S[context.preset])
    if outcome.telemetry is None:
        outcome.unread["telemetry"] = reason
    outcome.roofline, source = roofline.fraction(prepared, measurement.median_ns / 1e9, context.machine.get("gpu"))
    if outcome.roofline is None:
        outcome.unread["roofline"] = source
    elif outcome.roofline > 1:
        raise ArithmeticError(
            f"roofline: {outcome.roofline:.0%} of what the machine allows ({source}); "
            "the work is not done, or declared wrong"
        )


def watch(prepared: Prepared, measurement: Measurement, window_s: float) -> tuple[dict[str, Any] | None, str]:
    """Repeat the point under the NVML sampler; returns the telemetry with what watching cost, or the reason why not."""
    if window_s == 0:
        return None, "the preset does not watch the device"
    with Sampler(prepared.device) as sampler:
        if sampler.reason:
            return None, sampler.reason
        stopwatch = stopwatch_for(prepared)
        samples, spent = [], 0

        def block() -> None:
            for _ in range(measurement.runs_per_sample):
                prepared.run()

        while spent < window_s * 1e9:
            wall, _ = stopwatch.time(block)
            samples.append(wall / measurement.runs_per_sample)
            spent += wall
    if sampler.telemetry is None:
        return None, sampler.reason
    slower = median(samples) / measurement.median_ns - 1
    kind, amount = next(iter(prepared.work.items()))
    moved = pcie_bytes_per(sampler.telemetry, amount * measurement.runs_per_sample * len(samples))
    per_unit = f"pcie_bytes_per_{kind.removesuffix('s')}"
    return {**sampler.telemetry.to_dict(), per_unit: moved, "watched_slower_by": slower}, ""


def metrics(measurement: Measurement, work: Mapping[str, int]) -> dict[str, Metric]:
    """Turn samples into figures: a rate for each kind of work, and the time of one unit of the first kind."""
    low_ns, high_ns = measurement.interval_ns
    found = {}
    for kind, amount in work.items():
        found[f"{kind}_per_s"] = Metric(
            value=amount / measurement.median_ns * 1e9,
            unit=f"{kind}/s",
            direction="higher",
            low=amount / high_ns * 1e9,
            high=amount / low_ns * 1e9,
        )
    kind, amount = next(iter(work.items()))
    found[f"ns_per_{kind.removesuffix('s')}"] = Metric(
        value=measurement.median_ns / amount, unit="ns", direction="lower", low=low_ns / amount, high=high_ns / amount
    )
    return found


def to_record(job: Job, context: Context, outcome: Outcome, started: datetime, duration_s: float) -> Record:
    """Return the record of a point and what came of it."""
    prepared, measurement = outcome.prepared, outcome.measurement
    return Record(
        run_id=context.run_id,
        preset=context.preset,
        case=job.case.name,
        case_version=job.case.version,
        scope=job.case.scope,
        mode=prepared.mode if prepared else None,
        point=dict(job.point),
        threads=prepared.threads if prepared else None,
        status=outcome.status,
        reason=outcome.reason,
        samples_ns=list(measurement.samples_ns) if measurement else None,
        device_ns=list(measurement.device_ns) if measurement and measurement.device_ns else None,
        runs_per_sample=measurement.runs_per_sample if measurement else None,
        work_per_run=_work(prepared),
        n=len(measurement.samples_ns) if measurement else None,
        stop_reason=measurement.stop_reason if measurement else None,
        warm_up=measurement.warm_up if measurement else None,
        metrics=outcome.metrics,
        curve=outcome.curve,
        roofline=outcome.roofline,
        correctness=_correctness(outcome.before, outcome.after),
        telemetry=outcome.telemetry,
        machine=dict(context.machine),
        git=dict(context.git),
        dependencies_hash=context.dependencies_hash,
        command=command(job, context.preset),
        started_at=started.isoformat(timespec="seconds"),
        duration_s=round(duration_s, 3),
        notes=outcome.notes | ({} if context.note is None else {"note": context.note}),
        unread=outcome.unread,
    )


def _work(prepared: Prepared | Trial | Starts | Ranks | None) -> dict[str, int] | None:
    if isinstance(prepared, Starts):
        return {"starts": 1}
    return dict(prepared.work) if isinstance(prepared, Prepared | Ranks) else None


def _correctness(before: Correctness | None, after: Correctness | None) -> CorrectnessRecord | None:
    if before is None or after is None:
        return None
    return CorrectnessRecord(
        passed=before.passed and after.passed,
        max_error=max(before.max_error, after.max_error),
        oracle=after.oracle,
        before=_check(before),
        after=_check(after),
    )


def _check(seen: Correctness) -> Check:
    return Check(passed=seen.passed, max_error=seen.max_error, detail=seen.detail)


def command(job: Job, preset: Preset) -> str:
    """Return the command that repeats one point."""
    words = ["python", "-m", "bench", "run", "--preset", preset, "--case", job.case.name]
    for name, value in job.point.items():
        words += ["--where", f"{name}={value}"]
    return shlex.join(words)

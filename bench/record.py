"""The record: one JSON object a line for every point that was tried. The only schema of results."""

from __future__ import annotations

import json
import os
import shlex
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from bench import machine
from bench.case import Case, Check, Facts, Mode, Point, Preset, Scope, passes
from bench.stats import median, median_interval

SCHEMA: Final = 1
"""Raised when a field changes its meaning or goes."""


class RecordError(ValueError):
    """A file of records breaks the schema; names file, line and field."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Direction = Literal["higher", "lower"]
"""Which way is better."""
Status = Literal["ok", "skipped", "failed"]


class Metric(_Model):
    """A figure with its unit, which way is better, and its 95 % interval."""

    value: float
    unit: str
    direction: Direction
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float, unit: str, direction: Direction) -> Metric:
        """Return a figure that has no spread."""
        return cls(value=value, unit=unit, direction=direction, low=value, high=value)


class Checks(_Model):
    """Both checks of a point: before and after its timing."""

    passed: bool
    max_error: float
    oracle: str
    before: Check
    after: Check

    @classmethod
    def of(cls, before: Check, after: Check) -> Checks:
        """Return both, with the larger error and the oracle of the later one."""
        return cls(
            passed=before.passed and after.passed,
            max_error=max(before.max_error, after.max_error),
            oracle=after.oracle,
            before=before,
            after=after,
        )


class Curve(_Model):
    """A learning curve: an entry for each row of metrics."""

    env_steps: list[int]
    """Steps of all environments since the start."""
    seconds: list[float]
    """Wall time since the start of training, after everything was built, compiled and captured, s."""
    mean_return: dict[str, list[float | None]]
    """Of each policy: mean over episodes of its agents' rewards, summed; those of the latest rows in which every
    environment had the time for a whole episode. null: there was less time, or none ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Result of one point: samples and how they were taken, figures, and both checks."""

    samples_ns: tuple[float, ...] = ()
    """Wall time of one run in each sample, ns: a sample's time over its runs. Empty: nothing is repeated."""
    device_ns: tuple[float, ...] | None = None
    """Device time of the same, from events; None on a CPU."""
    runs_per_sample: int | None = None
    stop_reason: str | None = None
    warm_up: dict[str, Any] | None = None
    """Length and end of the warm-up; None: there was none."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    curve: Curve | None = None
    roofline: float | None = None
    """Share of the machine's limit."""
    telemetry: dict[str, Any] | None = None
    before: Check | None = None
    after: Check | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """For each field that is None though it could have a value: why."""

    @property
    def median_ns(self) -> float:
        """Median time of one run, ns."""
        return median(self.samples_ns)

    @property
    def interval_ns(self) -> tuple[float, float]:
        """95 % interval of the median, ns."""
        return median_interval(self.samples_ns)

    @property
    def fault(self) -> str | None:
        """Reason for which it is no evidence; None: it is right, and below the roofline."""
        for when, check in (("before", self.before), ("after", self.after)):
            if check is not None and not check.passed:
                return f"ArithmeticError: {when} the timing, against {check.oracle}: {check.detail}"
        if (self.roofline or 0.0) > 1:
            return (
                f"ArithmeticError: roofline: {self.roofline:.0%} of what the machine allows; "
                "the work is not done, or declared wrong"
            )
        return None


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that all records of a sweep share."""

    run_id: str
    preset: Preset
    machine: Mapping[str, Any]
    git: Mapping[str, Any]
    dependencies_hash: str
    note: str | None = None
    """Remark of whoever started the sweep."""

    @classmethod
    def here(cls, preset: Preset, run_id: str | None = None, note: str | None = None) -> Context:
        """Read this machine."""
        git = machine.git_state(machine.ROOT)
        return cls(
            run_id=run_id or new_run_id(git),
            preset=preset,
            machine=machine.fingerprint(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            git=git,
            dependencies_hash=machine.dependencies_hash(),
            note=note,
        )


def new_run_id(git: Mapping[str, Any]) -> str:
    """Name a sweep by its start, commit, and four random digits."""
    sha = str(git.get("sha") or "nogit")[:7]
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{sha}-{uuid.uuid4().hex[:4]}"


class Record(_Model):
    """One point of one sweep."""

    schema_version: Literal[1] = SCHEMA
    run_id: str
    preset: Preset
    case: str
    case_version: int
    scope: Scope
    mode: Mode | None
    point: dict[str, str | int | float | bool]
    threads: int | None
    status: Status
    reason: str | None
    """Why it was skipped or failed."""
    samples_ns: list[float] | None
    """Wall time of one run in each sample, ns."""
    device_ns: list[float] | None
    """Device time of the same, from events."""
    runs_per_sample: int | None
    work_per_run: dict[str, int] | None
    n: int | None
    stop_reason: str | None
    warm_up: dict[str, Any] | None
    metrics: dict[str, Metric] | None
    curve: Curve | None = None
    """Of the case `learn`; records of other cases, and all before there was one, have none."""
    roofline: float | None
    """Share of the machine's limit."""
    correctness: Checks | None
    telemetry: dict[str, Any] | None
    machine: dict[str, Any]
    git: dict[str, Any]
    dependencies_hash: str
    command: str
    """Repeats the point."""
    started_at: str
    duration_s: float
    notes: dict[str, Any]
    unread: dict[str, str]
    """For each field that is null though it could have a value: why."""

    @classmethod
    def of(
        cls,
        case: Case,
        point: Point,
        context: Context,
        *,
        started: datetime,
        facts: Facts | None = None,
        seen: Measurement | None = None,
        status: Status = "ok",
        reason: str | None = None,
        command: str | None = None,
    ) -> Record:
        """Return the record of a point; the only builder.

        Args:
            case: Its case.
            point: The point.
            context: Facts that it shares with others.
            started: Start of the set-up; the record ends now.
            facts: Those of the point that is set up; None: its set-up failed.
            seen: Result of measuring; one with a `Measurement.fault` makes a failed record.
            status: "skipped" or "failed" where nothing was measured.
            reason: Why.
            command: Repeats the point; None: the sweep does.
        """
        seen = seen or Measurement()
        if status == "ok" and seen.fault:
            status, reason = "failed", seen.fault
        n = len(seen.samples_ns)
        return cls(
            run_id=context.run_id,
            preset=context.preset,
            case=case.name,
            case_version=case.version,
            scope=case.scope,
            mode=facts.mode if facts else None,
            point=dict(point),
            threads=facts.threads if facts else None,
            status=status,
            reason=reason,
            samples_ns=list(seen.samples_ns) or None,
            device_ns=list(seen.device_ns) if seen.device_ns else None,
            runs_per_sample=seen.runs_per_sample,
            work_per_run=dict(facts.work) or None if facts else None,
            n=n or None,
            stop_reason=seen.stop_reason,
            warm_up=seen.warm_up,
            metrics=seen.metrics or None,
            curve=seen.curve,
            roofline=seen.roofline,
            correctness=Checks.of(seen.before, seen.after) if seen.before and seen.after else None,
            telemetry=seen.telemetry,
            machine=dict(context.machine),
            git=dict(context.git),
            dependencies_hash=context.dependencies_hash,
            command=command or sweep_command(case, point, context.preset),
            started_at=started.isoformat(timespec="seconds"),
            duration_s=round((datetime.now(UTC) - started).total_seconds(), 3),
            notes={**(facts.notes if facts else {}), **seen.notes, **({"note": context.note} if context.note else {})},
            unread=seen.unread,
        )

    @property
    def is_evidence(self) -> bool:
        """Measured and right: only such a record enters a plot, a comparison or a gate."""
        return self.status == "ok" and self.correctness is not None and self.correctness.passed

    def to_line(self) -> str:
        """Return the JSON line, with the field `schema` first."""
        fields = self.model_dump(mode="json")
        return json.dumps({"schema": fields.pop("schema_version"), **fields}, allow_nan=False) + "\n"


def sweep_command(case: Case, point: Point, preset: Preset) -> str:
    """Return the command that repeats one point."""
    where = [word for name, value in point.items() for word in ("--where", f"{name}={value}")]
    return shlex.join(["python", "-m", "bench", "run", "--preset", preset, "--case", case.name, *where])


# ------------------------------------------------------------------ files


def append(path: Path, record: Record) -> None:
    """Add one line and wait until it is on the disk.

    A line is one write to a file that is only ever appended to, so sweeps that write to one file at once do not mix
    lines, and a kill leaves at most one line cut, the last one, which `read` reports and leaves out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = record.to_line().encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if _ends_within_a_line(path):
            line = b"\n" + line  # a sweep died here; its half line must not swallow this one
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read(path: Path, cut: list[str] | None = None) -> list[Record]:
    """Return the records of a file.

    Args:
        path: File of JSON lines.
        cut: Gets a message for each line that is no whole JSON object, as a killed sweep leaves one.

    Raises:
        RecordError: A whole line breaks the schema, or cuts are not asked for and there is one.
    """
    records = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            message = f"{path}, line {number}: is cut short ({error.msg} at column {error.colno})"
            if cut is None:
                raise RecordError(f"{message}; a sweep was killed here, delete the line") from error
            cut.append(message)
            continue
        records.append(_parse(fields, f"{path}, line {number}"))
    return records


def _parse(fields: Any, where: str) -> Record:
    if not isinstance(fields, dict):
        raise RecordError(f"{where}: must be a JSON object (got {type(fields).__name__})")
    version = fields.pop("schema", None)
    if version != SCHEMA:
        raise RecordError(f"{where}: schema must be {SCHEMA} (got {version!r}); use the release that wrote it")
    try:
        return Record(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{where}: {field}: {first['msg']} (got {first.get('input')!r:.80})") from error


def read_all(paths: Iterable[Path], cut: list[str] | None = None) -> list[Record]:
    """Return the records of several files, and of the ``*.jsonl`` in folders."""
    files: Sequence[Path] = [
        file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])
    ]
    return [record for file in files for record in read(file, cut)]


def selected(records: Iterable[Record], cases: Sequence[str], where: Sequence[str]) -> list[Record]:
    """Return the records of some cases, or of all, whose points pass ``AXIS=VALUE`` conditions."""
    return [record for record in records if (not cases or record.case in cases) and passes(record.point, where)]

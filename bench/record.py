"""The record: one JSON object a line for every point that was tried. The only schema of results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.case import Preset, Scope, passes

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


class Check(_Model):
    """One comparison with the oracle."""

    passed: bool
    max_error: float
    detail: str


class CorrectnessRecord(_Model):
    """Whether the point is right: checked before and after its timing."""

    passed: bool
    max_error: float
    oracle: str
    before: Check
    after: Check


class Curve(_Model):
    """A learning curve: an entry for each row of metrics."""

    env_steps: list[int]
    """Steps of all environments since the start."""
    seconds: list[float]
    """Wall time since the start of training, after everything was built, compiled and captured, s."""
    mean_return: dict[str, list[float | None]]
    """Of each policy: mean over episodes of its agents' rewards, summed; those of the latest rows in which every
    environment had the time for a whole episode. null: there was less time, or none ended."""


class Course(_Model):
    """How something went that was run once."""

    metrics: dict[str, Metric]
    curve: Curve | None = None
    notes: dict[str, Any]
    unread: dict[str, str]


class Record(_Model):
    """One point of one sweep."""

    schema_version: Literal[1] = SCHEMA
    run_id: str
    preset: Preset
    case: str
    case_version: int
    scope: Scope
    mode: Literal["eager", "graph", "fused"] | None
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
    correctness: CorrectnessRecord | None
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

    @property
    def is_evidence(self) -> bool:
        """Measured and right: only such a record enters a plot, a comparison or a gate."""
        return self.status == "ok" and self.correctness is not None and self.correctness.passed

    def to_line(self) -> str:
        """Return the JSON line, with the field `schema` first."""
        fields = self.model_dump(mode="json")
        return json.dumps({"schema": fields.pop("schema_version"), **fields}, allow_nan=False) + "\n"


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

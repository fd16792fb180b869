"""Records and comparisons: one JSON object a line for each point, and for each two that were measured in turns.

Schema 2 has the fields of 1 in their places. Files of 1 are read too, with their pairs as comparisons of one round.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

import torch
from pydantic import Field, ValidationError, model_validator

from warpdrive_min.backends.cache import excerpt
from warpdrive_min.files import lock_of

from . import machine, nvml
from .archive import File, exists, files_below, located
from .measure import Curve, Measurement, Metric
from .point import Check, Facts, Mode, Point, Preset, command_line, passes, run_options
from .schema import Model, fault
from .stats import Ratio, log_ratios

SCHEMA: Final = 2
"""Raised when a field changes its meaning or goes."""
READABLE: Final = (1, 2)
RESULTS: Final = Path("results")
SWEEPS: Final = RESULTS / "sweeps"
PEER_RECORDS: Final = RESULTS / "peers"
"""Folder of the records of other people's software, with ours beside it."""
MOST_OF_A_REASON: Final = 4000
"""Characters of a record's reason; a longer one is in a file that it names."""
ALONE: Final = "alone"
"""Value of `Record.taken` of a point that is measured by itself."""


class RecordError(ValueError):
    """A file of records breaks the schema; names file, line and field."""


class _Line(Model):
    schema_version: Annotated[Literal[2], Field(alias="schema")] = SCHEMA

    def to_line(self) -> str:
        """Return the JSON line, with the field `schema` first."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), allow_nan=False) + "\n"


Status = Literal["ok", "skipped", "failed"]
Scope = Literal["kernel", "env", "rollout", "train", "startup", "memory", "learn", "static"]
"""Kind of work that is timed, or read without being run; figures of different scopes never mix."""


class Checks(Model):
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


class Host(Model):
    """State of the host around a measurement."""

    load_before: float | None
    """Load average over a minute, a core that this process may use, before the set-up; null: the host has none."""
    load_after: float | None = None
    pinned_cores: list[int] | None
    """Cores that the process is kept on; null: it may use all."""
    gpu_users: int | None = None
    """Other processes on the GPU at the end; null: the work is on the CPU, or NVML does not say."""
    others_busy: float | None = None
    """Share of the cores that the process may use that others kept busy meanwhile, in the round in which it was most;
    null: the system does not say, or the point was not measured in turns."""
    loop_ns: list[int] | None = None
    """Shortest and longest time of one loop of Python in the process that leads, before and after the turns of each
    round; null: the point was not measured in turns."""

    @classmethod
    def before(cls) -> Host:
        """Read the host before a point is set up."""
        return cls(load_before=machine.load(), pinned_cores=machine.pinned_cores())

    def after(self, device: torch.device) -> Host:
        """Read the host once a point is measured."""
        users = nvml.other_users(device)
        return self.model_copy(update={"load_after": machine.load(), "gpu_users": users})


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseVersion:
    """Part of a `Case` that its records keep."""

    name: str
    scope: Scope
    version: int = 1
    """Raised when what is timed changes; records of different versions are not compared."""


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
        machine.warn_without_commit()
        return cls(
            run_id=run_id or new_run_id(),
            preset=preset,
            machine=machine.fingerprint(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            git=machine.git_state(machine.ROOT),
            dependencies_hash=machine.dependencies_hash(),
            note=note,
        )


def new_run_id() -> str:
    """Name a run by its start, the commit of this checkout, and eight random digits."""
    sha = str(machine.git_state(machine.ROOT)["sha"] or "nogit")[:7]
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{sha}-{uuid.uuid4().hex[:8]}"


class Record(_Line):
    """One point of one sweep."""

    id: str = ""
    """Name of the record, in comparisons; made of run, point and start."""
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
    """Learning curve of the case `learn`; records of other cases, and all before there was one, have none."""
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
    host: Host | None = None
    """Load and pinning of the host; null: records of schema 1, and points that no host has sent back."""
    process: list[int] | None = None
    """Number of the process that gave each sample, from 0; null: unknown, in records of schema 1."""
    taken: str = ALONE
    """Way of measuring: alone, or in turns with what."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Name a record that has no name."""
        if fields.get("id"):
            return fields
        named_by = [fields.get(name) for name in ("run_id", "case", "point", "started_at")]
        digest = hashlib.sha256(json.dumps(named_by, default=str).encode()).hexdigest()
        return {**fields, "id": digest[:16]}

    @classmethod
    def of(
        cls,
        case: CaseVersion,
        point: Point,
        context: Context,
        *,
        started: datetime,
        facts: Facts | None = None,
        seen: Measurement | None = None,
        status: Status = "ok",
        reason: str | None = None,
        host: Host | None = None,
        taken: str = ALONE,
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
            host: Load and pinning of the host.
            taken: "alone", or in turns with what.
            command: Repeats the point; None: the sweep does.
        """
        seen = seen or Measurement()
        if status == "ok" and seen.fault:
            status, reason = "failed", seen.fault
        n = len(seen.samples_ns)
        return cls(
            **{name: getattr(context, name) for name in OF_CONTEXT},
            **{name: getattr(seen, name) for name in OF_MEASUREMENT},
            case=case.name,
            case_version=case.version,
            scope=case.scope,
            mode=facts.mode if facts else None,
            point=dict(point),
            threads=facts.threads if facts else None,
            status=status,
            reason=excerpt(reason, MOST_OF_A_REASON) if reason else reason,
            samples_ns=list(seen.samples_ns) or None,
            device_ns=list(seen.device_ns or ()) or None,
            work_per_run=dict(facts.work) or None if facts else None,
            n=n or None,
            metrics=seen.metrics or None,
            correctness=Checks.of(seen.before, seen.after) if seen.before and seen.after else None,
            command=command or command_line("run", preset=context.preset, case=case.name, **run_options(point)),
            started_at=started.isoformat(timespec="seconds"),
            duration_s=round((datetime.now(UTC) - started).total_seconds(), 3),
            notes={**(facts.notes if facts else {}), **seen.notes, **({"note": context.note} if context.note else {})},
            host=host,
            process=list(seen.process or [0] * n) or None,
            taken=taken,
        )

    @property
    def is_evidence(self) -> bool:
        """Measured and right: only such a record enters a plot, a comparison or a gate."""
        return self.status == "ok" and self.correctness is not None and self.correctness.passed

    @property
    def has_failed(self) -> bool:
        """It broke, or is wrong."""
        return self.status == "failed" or (self.status == "ok" and not self.is_evidence)

    @property
    def why_no_evidence(self) -> str:
        """Reason for which it is no evidence."""
        return self.reason or "its check failed"

    @property
    def is_contended(self) -> bool:
        """Another process used the GPU, as telemetry saw."""
        return bool((self.telemetry or {}).get("contended"))

    @property
    def card(self) -> str | None:
        """Hash of the card that did the work; None: a CPU did, or it is unknown."""
        return self.machine.get("gpu_uuid_hash") if self.threads is None else None

    @property
    def unit_ns(self) -> tuple[float, ...]:
        """Time of one unit of work in each sample, ns."""
        assert self.samples_ns, "evidence of work that is repeated has samples"
        assert self.work_per_run, "evidence of work that is repeated says how much it is"
        unit = next(iter(self.work_per_run.values()))
        return tuple(wall / unit for wall in self.samples_ns)

    @property
    def turn_ns(self) -> list[float]:
        """Mean time of one unit of work in each turn A B B A, ns.

        Both blocks of a side in A B B A have the same mean position in time, so that a drift of the machine that is
        linear over a turn cancels in the ratio of two sides.
        """
        times = self.unit_ns
        return [(first + second) / 2 for first, second in zip(times[::2], times[1::2], strict=True)]


OF_CONTEXT: Final = ("run_id", "preset", "machine", "git", "dependencies_hash")
OF_MEASUREMENT: Final = ("runs_per_sample", "stop_reason", "warm_up", "curve", "roofline", "telemetry", "unread")
"""Fields of a record that a `Context` and a `Measurement` have as they are."""


class Comparison(_Line):
    """Times of one record over those of another one, which were measured in turns on one card."""

    id: str
    run_id: str
    case: str
    a: str
    """Id of the record that the other one is compared with."""
    b: str
    """Id of the record whose times are above the line."""
    log_ratios: list[list[float]]
    """Logarithm of b's time over a's, of each turn in each round; a round is two new processes."""
    unread: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of(cls, a: Record, b: Record, log_ratios: Sequence[Sequence[float]]) -> Comparison:
        """Return the comparison of two records."""
        one_round = {"process_noise": "not measured: there is one round, its interval is over turns"}
        return cls(
            id=f"{b.id}/{a.id}",
            run_id=a.run_id.removesuffix("-a"),
            case=a.case,
            a=a.id,
            b=b.id,
            log_ratios=[list(turns) for turns in log_ratios],
            unread=one_round if len(log_ratios) == 1 else {},
        )

    @classmethod
    def of_one_round(cls, a: Record, b: Record) -> Comparison:
        """Return the comparison of two records whose samples belong together one by one, as in schema 1."""
        return cls.of(a, b, [log_ratios(a.turn_ns, b.turn_ns)])

    def ratio(self) -> Ratio:
        """Return b over a: with Student's interval over rounds, or over turns where there is one round.

        The replicate is the round, so that the interval holds what differs between processes.

        Source: Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", ISMM, 63-74.
        """
        rounds = [fmean(turns) for turns in self.log_ratios]
        between = len(rounds) > 1
        return Ratio.of_logs(rounds if between else self.log_ratios[0], between_processes=between)


def are_on_two_cards(a: Record, b: Record) -> bool:
    """Return whether two records are of two cards, whose ratio says as much of them as of what they ran."""
    return a.card is not None and b.card is not None and a.card != b.card


# ------------------------------------------------------------------ files


class HasLine(Protocol):
    """Something that is kept as a line of JSON."""

    def to_line(self) -> str:
        """Return the line, with its end."""
        ...


def append(path: Path, record: HasLine) -> None:
    """Add one line and wait until it is on the disk.

    A line is one write to a file that is only ever appended to, so sweeps that write to one file at once do not mix
    lines, and a kill leaves at most one line cut, the last one, which `read_all` reports and leaves out. It goes when
    the next line is added.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = record.to_line().encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    lock = lock_of(path, wait=True)
    try:
        if cut := _cut(path):
            if lock is None:  # others may write here
                line = b"\n" + line
            else:
                os.ftruncate(descriptor, path.stat().st_size - cut)
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        if lock is not None:
            os.close(lock)


def _cut(path: Path) -> int:
    """Return the length of the line without an end that a file ends with, bytes: a sweep died there."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return 0
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return 0
    content = path.read_bytes()
    return len(content) - 1 - content.rfind(b"\n")


def there(*files: Path) -> list[Path]:
    """Return those of some files that there are, each once; a command that goes on has some."""
    return [file for file in dict.fromkeys(files) if exists(file)]


def read_comparisons(paths: Iterable[Path], cut: list[str] | None = None) -> list[Comparison]:
    """Return the comparisons of several files and folders, see `files_in`; pairs of schema 1 are of one round.

    Raises:
        RecordError: As for `read_all`.
    """
    paths = list(paths)
    found = [parsed(Comparison, fields, where) for fields, where in _lines(paths, cut) if "log_ratios" in fields]
    compared = {(each.a, each.b) for each in found}
    taken = [record for record in read_all(paths, cut) if record.is_evidence and record.taken != ALONE]
    pairs = [pair for pair in _pairs(taken) if (pair[0].id, pair[1].id) not in compared and pair[0].process is None]
    return found + [Comparison.of_one_round(a, b) for a, b in pairs]


def _pairs(records: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Yield the pairs of schema 1: runs whose names end in -a and -b, and ours with the peer beside it."""
    sides: dict[str, list[Record]] = {}
    peer: Record | None = None
    for record in records:
        if record.case == "peer":
            peer = record
        elif peer is not None and record.run_id == peer.run_id:
            yield record, peer
            peer = None
        else:
            sides.setdefault(record.run_id, []).append(record)
    for run_id, first in sides.items():
        if run_id.endswith("-a"):
            yield from zip(first, sides.get(f"{run_id[:-2]}-b", []), strict=False)


def files_in(path: Path) -> list[File]:
    """Return a file itself, or all ``*.jsonl`` files below a folder or in a zip archive.

    Raises:
        RecordError: There is no such file or folder, or the archive is damaged.
    """
    try:
        if not exists(path):
            raise RecordError(f"{path}: there is no such file or folder")
        place = located(path)
        if place.is_dir():
            return [file for name, file in files_below(path).items() if name.endswith(".jsonl")]
    except zipfile.BadZipFile as error:
        raise RecordError(f"{path}: must be in a zip archive (got a damaged one: {error}); copy it again") from error
    return [place]


def _lines(paths: Iterable[Path], cut: list[str] | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the JSON object of each line of `files_in` some paths, and its place for messages."""
    files = itertools.chain(*map(files_in, paths))
    lines = ((path, *numbered) for path in files for numbered in enumerate(path.read_text().splitlines(), start=1))
    for path, number, line in lines:
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            message = f"{where}: is cut short ({error.msg} at column {error.colno})"
            if cut is None:
                raise RecordError(f"{message}; delete the line, if a sweep was killed there") from error
            cut.append(message)
            continue
        if not isinstance(fields, dict):
            raise RecordError(f"{where}: must be a JSON object (got {type(fields).__name__})")
        yield fields, where


Line = TypeVar("Line", Record, Comparison)


def parsed(kind: type[Line], fields: dict[str, Any], where: str) -> Line:
    """Return the record or comparison of a JSON object; raises RecordError, which names the place."""
    version = fields.get("schema")
    if version not in READABLE:
        known = " or ".join(map(str, READABLE))
        raise RecordError(f"{where}: schema must be {known} (got {version!r}); use the release that wrote it")
    if version == 1:
        fields |= {"schema": SCHEMA, "taken": _taken_in_schema_1(fields)}
    try:
        return kind(**fields)
    except ValidationError as error:
        raise RecordError(f"{where}: {fault(error)}") from error


def _taken_in_schema_1(fields: Mapping[str, Any]) -> str:
    """Return how a point was taken, which schema 1 has among the notes, and of a peer nowhere."""
    notes = fields.get("notes") or {}
    return str(notes.get("taken", "in turns with ours" if "ours" in notes else ALONE))


def read_all(paths: Iterable[Path], cut: list[str] | None = None) -> list[Record]:
    """Return the records of several files and folders, see `files_in`.

    Args:
        paths: Files of JSON lines, and folders; comparisons among the lines are left to `read_comparisons`.
        cut: Gets a message for each line that is no whole JSON object, as a killed sweep leaves one.

    Raises:
        RecordError: A whole line breaks the schema, or cuts are not asked for and there is one.
    """
    return [parsed(Record, fields, where) for fields, where in _lines(paths, cut) if "log_ratios" not in fields]


def selected(records: Iterable[Record], cases: Sequence[str], where: Sequence[str]) -> list[Record]:
    """Return the records of some cases, or of all, whose points pass ``AXIS=VALUE`` conditions."""
    return [record for record in records if (not cases or record.case in cases) and passes(record.point, where)]

"""Records of points and comparisons of interleaved pairs, as JSON lines.

Schema 2 contains all fields of schema 1 unchanged. Files of schema 1 can be read; their pairs become comparisons of one
round.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from warpdrive_min import cores, files
from warpdrive_min.backends.cache import excerpt
from warpdrive_min.collector import collection_paused
from warpdrive_min.errors import WriteError
from warpdrive_min.terminal import echo

from . import machine, nvml
from .archive import File, exists, files_below, parse_text, read_bytes, resolve_path
from .errors import FileError
from .groups import groups_of
from .point import (
    NOT_WATCHED,
    Check,
    Curve,
    Facts,
    Figure,
    Measurement,
    Metric,
    Mode,
    Point,
    Preset,
    class_and_config,
    command_line,
    matches,
    run_options,
    unmet_condition,
)
from .schema import (
    MOST,
    Amount,
    Count,
    Git,
    Index,
    Machine,
    Model,
    Nanoseconds,
    Notes,
    Number,
    Plain,
    Telemetry,
    Time,
    WarmUp,
    error_text,
    short_text,
)
from .stats import Ratio, Spread, log_ratios, median, spread_over_processes

if TYPE_CHECKING:
    import torch

SCHEMA: Final = 2
"""Schema number; raised when a field is removed or changes its meaning."""
READABLE: Final = (1, 2)
RESULTS: Final = Path("results")
SWEEPS: Final = RESULTS / "sweeps"
PEER_RECORDS: Final = RESULTS / "peers"
"""Folder of records of other software and of ours next to it."""
MOST_OF_A_REASON: Final = 4000
"""Maximum characters of a record's reason; a longer one goes to a file it names."""
ALONE: Final = "alone"
"""Value of `Record.taken` for a point that is not interleaved."""


class RecordError(FileError):
    """A file of records breaks the schema; names file, line and field."""


class _Line(Model):
    schema_version: Annotated[Literal[2], Field(alias="schema")] = SCHEMA

    def to_line(self) -> str:
        """Return the JSON line, with the field `schema` first."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), allow_nan=False, separators=(",", ":")) + "\n"


Status = Literal["ok", "skipped", "failed"]
Scope = Literal["kernel", "env", "rollout", "train", "startup", "memory", "learn", "static", "determinism"]
"""Kind of work that is timed, or read without running it.

Figures of different scopes never mix."""
UNTIMED: Final = ("learn", "memory", "static", "determinism")
"""Scopes whose records have no samples."""


class Checks(Model):
    """Both checks of a point: before and after its timing."""

    passed: bool
    max_error: Amount
    oracle: str
    before: Check
    after: Check

    @classmethod
    def of(cls, before: Check, after: Check) -> Checks:
        """Combine two checks: the larger error, the later oracle.

        Errors are finite, as JSON requires.
        """
        before, after = (
            check if check.max_error <= MOST else replace(check, max_error=MOST) for check in (before, after)
        )
        return cls(
            passed=before.passed and after.passed,
            max_error=max(before.max_error, after.max_error),
            oracle=after.oracle,
            before=before,
            after=after,
        )


class Host(Model):
    """State of the host around a measurement."""

    load_before: Amount | None
    """Load average (1 min) per usable core before set-up; null if unknown."""
    load_after: Amount | None = None
    pinned_cores: list[Index] | None
    """Cores that the process is pinned to; null: it may use all."""
    gpu_users: Index | None = None
    """Other processes on the GPU at the end; null if unknown or on a CPU."""
    gpu: Annotated[dict[str, Amount], Plain] | None = None
    """Clocks, power, its limit and temperature at the end; null on a CPU, without NVML or in older records."""
    others_busy: Amount | None = None
    """Share of our cores that other processes kept busy during the timing; of rounds the largest.

    null: unknown, for example of a GPU's points that were not interleaved."""
    loop_ns: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """Shortest and longest Python loop in the leading process, ns.

    Timed before and after each round; null: the point was not interleaved."""

    @classmethod
    def before(cls) -> Host:
        """Read the host's state before set-up."""
        return cls(load_before=cores.load(), pinned_cores=machine.pinned_cores())

    def after(self, device: torch.device) -> Host:
        """Read the host's state after the measurement."""
        gpu = {"gpu_users": nvml.other_users(device), "gpu": nvml.gpu_state(device)}
        return self.model_copy(update={"load_after": cores.load(), **gpu})


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseVersion:
    """Part of a `Case` that its records store."""

    name: str
    scope: Scope
    version: int = 1
    """Number raised when the timed work changes; only equal versions compare."""


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that all records of a sweep share."""

    run_id: str
    preset: Preset
    machine: Mapping[str, Any]
    git: Mapping[str, Any]
    dependencies_hash: str
    note: str | None = None
    """Remark of the user who started the sweep."""

    @classmethod
    def here(cls, preset: Preset, run_id: str | None = None, note: str | None = None) -> Context:
        """Read this machine."""
        import torch  # noqa: PLC0415  (takes seconds)

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
    """Name a run by its start, commit and eight random digits."""
    sha = str(machine.git_state(machine.ROOT)["sha"] or "nogit")[:7]
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{sha}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class StartTime:
    """Start of some work, by wall clock and monotonic clock."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.clock_s


class Record(_Line):
    """One point of one sweep."""

    id: str = ""
    """Name of the record in comparisons, made from run, point and start."""
    run_id: str
    preset: Preset
    case: str
    case_version: Index
    scope: Scope
    mode: Mode | None
    point: Annotated[dict[str, str | int | float | bool], Plain]
    threads: Count | None
    status: Status
    reason: str | None
    """Reason why the point was skipped or failed."""
    samples_ns: Annotated[list[Nanoseconds], Field(min_length=1)] | None
    """Wall time of one run in each sample, ns."""
    device_ns: list[Amount] | None
    """Device time of one run in each sample, ns, from events."""
    runs_per_sample: Count | None
    work_per_run: Annotated[dict[str, Count], Field(min_length=1)] | None
    n: Count | None
    stop_reason: str | None
    warm_up: WarmUp | None
    metrics: dict[str, Metric] | None
    curve: Curve | None = None
    """Learning curve of the case `learn`; null in other or older records."""
    roofline: Amount | None
    """Share of the machine's limit (roofline)."""
    correctness: Checks | None
    telemetry: Telemetry | None
    machine: Machine
    git: Git
    dependencies_hash: str
    command: str
    """Command that repeats the point."""
    started_at: Time
    duration_s: Amount
    notes: Notes
    unread: dict[str, str]
    """Reason for each null of a field that could have a value."""
    host: Host | None = None
    """Load and pinning of the host.

    null: schema 1, or a point whose host did not report."""
    process: list[Index] | None = None
    """Index of each sample's process, from 0; null: unknown (schema 1)."""
    taken: str = ALONE
    """Way of measuring: alone, or interleaved with another side."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Name a record without an id."""
        if fields.get("id"):
            return fields
        named_by = [fields.get(name) for name in ("run_id", "case", "point", "started_at")]
        digest = hashlib.sha256(json.dumps(named_by, default=str).encode()).hexdigest()
        return {**fields, "id": digest[:16]}

    @field_validator("point")
    @classmethod
    def _names_an_environment(cls, point: dict[str, Any]) -> dict[str, Any]:
        """Check the config after the environment's name."""
        try:
            class_and_config(str(point.get("env", "")))
        except (ValueError, RecursionError) as error:
            rule = "env must be a name, or one with a config in JSON (got {got})"
            raise PydanticCustomError("env", rule, {"got": short_text(point["env"])}) from error
        return point

    @field_validator("metrics")
    @classmethod
    def _are_figures(cls, metrics: dict[str, Metric] | None) -> dict[str, Metric] | None:
        """Check that values lie in their intervals; rates and times are positive."""
        for name, each in (metrics or {}).items():
            got = {"name": name, "got": f"value {each.value:g}, low {each.low:g}, high {each.high:g}"}
            if not each.low <= each.value <= each.high:
                raise PydanticCustomError("interval", "{name}: value must be from low to high (got {got})", got)
            if each.low <= 0 and (each.unit.endswith("/s") or each.unit in ("s", "ns", "x")):
                raise PydanticCustomError("positive", "{name}: a rate or time must be above 0 (got {got})", got)
        return metrics

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        """Check that samples and metrics are complete."""
        n = len(self.samples_ns or ())
        if (self.n or 0) != n:
            raise PydanticCustomError(
                "n", "n must be the number of samples_ns, {n} (got {got})", {"n": n, "got": self.n}
            )
        timed = self.scope not in UNTIMED
        needed = {"samples_ns": timed, "work_per_run": timed or n > 0, "metrics": timed} if self.status == "ok" else {}
        for name in (name for name, is_needed in needed.items() if is_needed and not getattr(self, name)):
            raise PydanticCustomError(name, "{name} must be present, as status is ok (got none)", {"name": name})
        starts: Mapping[str, list[float]] = self.notes.get("samples_s", {}) if n else {}
        of_samples = {f"notes.samples_s.{name}": times for name, times in starts.items()}
        for name, of_each in {"device_ns": self.device_ns, "process": self.process, **of_samples}.items():
            if of_each is not None and len(of_each) != n:
                rule = "{name} must have an entry for each of {n} samples (got {got})"
                raise PydanticCustomError(name, rule, {"name": name, "n": n, "got": len(of_each)})
        return self

    @classmethod
    def of(
        cls,
        case: CaseVersion,
        point: Point,
        context: Context,
        *,
        started: StartTime,
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
            point: Axes of the point.
            context: Facts that it shares with others.
            started: Start of the set-up; the record ends now.
            facts: Facts of the prepared point; None: its set-up failed.
            seen: Result of measuring; one with a `Measurement.error_text` makes a failed record.
            status: "skipped" or "failed" where nothing was measured.
            reason: Why.
            host: Load and pinning of the host.
            taken: "alone", or interleaved with another side.
            command: Repeats the point; None: the sweep does.
        """
        seen = seen or Measurement()
        if status == "ok" and seen.rejection_reason:
            status, reason = "failed", seen.rejection_reason
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
            started_at=started.at.isoformat(timespec="microseconds"),  # processes of a point may start in one second
            duration_s=round(started.elapsed_s, 3),
            notes={**(facts.notes if facts else {}), **seen.notes, **({"note": context.note} if context.note else {})},
            host=host,
            process=list(seen.process or [0] * n) or None,
            taken=taken,
        )

    @property
    def start(self) -> datetime:
        """Start of its set-up; UTC if it has no time zone.

        No earlier than the start of a preceding line, see `_read`.
        """
        start = datetime.fromisoformat(self.started_at)
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        not_before: datetime = vars(self).get("not_before", start)
        return max(start, not_before)

    @property
    def is_evidence(self) -> bool:
        """True if measured and correct, so that plots and comparisons use it."""
        return self.status == "ok" and self.correctness is not None and self.correctness.passed

    @property
    def has_failed(self) -> bool:
        """True if it failed, or its result is wrong."""
        return self.status == "failed" or (self.status == "ok" and not self.is_evidence)

    @property
    def rejection_reason(self) -> str:
        """Reason to reject it."""
        return self.reason or "its check failed"

    @property
    def is_contended(self) -> bool:
        """True if telemetry saw another process on the GPU."""
        return bool((self.telemetry or {}).get("contended"))

    @property
    def has_unsettled_warm_up(self) -> bool:
        """True if times did not stabilise during the warm-up."""
        return not (self.warm_up or {}).get("settled", True)

    @property
    def card(self) -> str | None:
        """Hash of the card that did the work; None if unknown or a CPU."""
        return self.machine.get("gpu_uuid_hash") if self.threads is None else None

    @property
    def unit_ns(self) -> tuple[float, ...]:
        """Time of one unit of work in each sample, ns."""
        assert self.samples_ns, "evidence of work that is repeated has samples"
        assert self.work_per_run, "evidence of work that is repeated says how much it is"
        unit = next(iter(self.work_per_run.values()))
        return tuple(wall / unit for wall in self.samples_ns)

    @property
    def spread(self) -> Spread | None:
        """Time of one run over processes, ns; None without samples."""
        return spread_over_processes(self.by_process(self.samples_ns)) if self.samples_ns else None

    def by_process(self, samples: Sequence[float]) -> list[list[float]]:
        """Group values of each sample by process."""
        places = zip(self.process or [0] * len(samples), samples, strict=True)
        return [[sample for _, sample in own] for own in groups_of(places, lambda each: each[0]).values()]

    @property
    def process_medians(self) -> list[float]:
        """Median time of one unit of work in each process, ns."""
        return [median(times) for times in self.by_process(self.unit_ns)]

    def figure(self, name: str) -> Figure | None:
        """Return a metric over the record's processes; None if missing.

        A peer's record has our figures without our samples, of as many processes as the peer's.
        """
        stored = (self.metrics or {}).get(name)
        is_timed = (
            stored is not None and bool(self.samples_ns) and (stored.unit in ("s", "ns") or stored.unit.endswith("/s"))
        )
        own: list[float] | None = self.notes.get("samples_s", {}).get(name)
        is_of_ours = own is None and name.startswith("ours_")
        if stored is None or not self.samples_ns or not is_timed:
            return Figure(**dict(stored), kind="samples" if is_timed else None) if stored else None
        samples = own or self.samples_ns
        spread, middle = spread_over_processes(self.by_process(samples)), median(samples)
        if is_of_ours:
            return Figure(**dict(stored), kind=spread.kind)
        times = [time / middle for time in spread[:3]]
        value, *ends = (stored.value * (time if stored.direction == "lower" else 1 / time) for time in times)
        return Figure(**{**dict(stored), "value": value, "low": min(ends), "high": max(ends)}, kind=spread.kind)

    @property
    def turn_ns(self) -> list[float]:
        """Mean time per unit of work in each turn A B B A, ns.

        In A B B A both sides' blocks have the same mean position in time. So a drift that is linear over a turn cancels
        in the ratio of the two sides.
        """
        times = self.unit_ns
        return [(first + second) / 2 for first, second in zip(times[::2], times[1::2], strict=True)]


OF_CONTEXT: Final = ("run_id", "preset", "machine", "git", "dependencies_hash")
OF_MEASUREMENT: Final = ("runs_per_sample", "stop_reason", "warm_up", "curve", "roofline", "telemetry", "unread")
"""Fields that a record copies from its `Context` and `Measurement`."""


LogRatio = Annotated[Number, Field(ge=-50, le=50)]
"""Logarithm of a ratio, limited so that its interval is finite."""


class Comparison(_Line):
    """Ratio of two records' times, interleaved on one GPU."""

    id: str
    run_id: str
    case: str
    a: str
    """Id of the base record."""
    b: str
    """Id of the other record; its times are the numerator."""
    log_ratios: Annotated[list[Annotated[list[LogRatio], Field(min_length=1)]], Field(min_length=1)]
    """Logarithm of b's time over a's, for each turn in each round.

    A round is two new processes."""
    unread: dict[str, str] = Field(default_factory=dict)

    @field_validator("log_ratios")
    @classmethod
    def _have_a_spread(cls, log_ratios: list[list[float]]) -> list[list[float]]:
        """Check that there are two rounds, or two turns of one."""
        if len(log_ratios) == 1 and len(log_ratios[0]) < 2:
            raise ValueError("needs two rounds, or two turns of one")
        return log_ratios

    @classmethod
    def of(cls, a: Record, b: Record, log_ratios: Sequence[Sequence[float]]) -> Comparison:
        """Return the comparison of two records."""
        one_round = {"process_noise": "not measured between processes: the interval of one round is over its turns"}
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
        """Return the comparison of two paired records of schema 1."""
        return cls.of(a, b, [log_ratios(a.turn_ns, b.turn_ns)])

    @property
    def rounds(self) -> list[float]:
        """Logarithm of each round's ratio."""
        return [fmean(turns) for turns in self.log_ratios]

    def ratio(self) -> Ratio:
        """Return b over a, with Student's interval over rounds, or turns of one.

        The replicate is the round, so that the interval includes differences between processes.

        Source: Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", ISMM, 63-74.
        """
        between = len(self.log_ratios) > 1
        return Ratio.of_logs(self.rounds if between else self.log_ratios[0], between_processes=between)


def merged(records: Iterable[Record]) -> list[Record]:
    """Return records, those of one point that a run measured alone as one.

    It has the samples of all processes, and the fields of the newest one, if possible one that watched the device. If
    the processes of a point ran on several cards, those of the card with most of them count.
    """

    def measured(record: Record) -> Any:
        if record.taken != ALONE or not record.is_evidence or not record.process or "samples_s" in record.notes:
            return id(record)
        code = record.git.get("sha"), record.git.get("diff_hash"), record.case_version, record.mode, record.threads
        return (
            record.run_id,
            machine.kind(record.machine),
            record.case,
            frozenset(record.point.items()),
            *code,
        )

    found = []
    for of_cards in groups_of(records, measured).values():
        same = max(reversed(groups_of(of_cards, lambda record: record.card).values()), key=len)
        if len(same) == 1:
            found += same
            continue
        newest = ([each for each in same if each.unread.get("telemetry") != NOT_WATCHED] or same)[-1]
        samples = [sample for record in same for sample in record.samples_ns or ()]
        process_of = [number * len(same) + i for i, record in enumerate(same) for number in record.process or ()]
        others = [each.host.others_busy for each in same if each.host and each.host.others_busy is not None]
        host = newest.host and newest.host.model_copy(update={"others_busy": max(others, default=None)})
        warm_up = next((each.warm_up for each in same if each.has_unsettled_warm_up), newest.warm_up)
        slower = median(samples) / median(newest.samples_ns or samples)
        metrics = {
            name: each.model_copy(update={"value": each.value * (slower if each.direction == "lower" else 1 / slower)})
            for name, each in (newest.metrics or {}).items()
        }
        every = {"samples_ns": samples, "process": process_of, "n": len(samples), "device_ns": None, "warm_up": warm_up}
        every["host"] = host
        found.append(newest.model_copy(update={**every, "metrics": metrics}))
    return found


def are_on_two_cards(a: Record, b: Record) -> bool:
    """True if two records are from different GPUs, which rules out a ratio."""
    return a.card is not None and b.card is not None and a.card != b.card


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line: a record or a comparison."""
    schema = TypeAdapter(Record | Comparison).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Line, schema {SCHEMA}", **schema}


# ------------------------------------------------------------------ files


def append(path: Path, record: _Line) -> None:
    """Append a record as one line, atomically, and wait for the disk.

    Sweeps that write to one file at once do not mix lines. A kill leaves at most the last line incomplete. `read_all`
    reports that line and the next append replaces it.

    Raises:
        WriteError: It cannot be written.
    """
    files.append(path, record.to_line())


def existing_files(*files: Path) -> list[Path]:
    """Return the files that exist, without duplicates."""
    return [file for file in dict.fromkeys(files) if exists(file)]


def read_comparisons(paths: Iterable[Path], skipped_lines: list[str] | None = None) -> list[Comparison]:
    """Return the comparisons of files and folders; see `read_results`."""
    return read_results(paths, skipped_lines)[1]


def read_results(
    paths: Iterable[Path], skipped_lines: list[str] | None = None
) -> tuple[list[Record], list[Comparison]]:
    """Return the records and comparisons of files and folders, see `files_in`.

    Pairs of schema 1 become comparisons of one round.

    Raises:
        RecordError: As for `read_all`.
    """
    records, found = _read(paths, skipped_lines)
    compared = {(each.a, each.b) for each in found}
    taken = [record for record in records if record.is_evidence and record.taken != ALONE]
    for a, b in _pairs(taken):
        if (a.id, b.id) in compared or a.process is not None:
            continue
        try:
            found.append(Comparison.of_one_round(a, b))
        except ValueError as error:
            why = error_text(error) if isinstance(error, ValidationError) else error
            _skip_line(f"{a.run_id}: {a.case} cannot be compared with {b.run_id}: {why}", skipped_lines)
    return records, found


def _pairs(records: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Yield the pairs of schema 1, of runs -a and -b."""
    sides = groups_of(records, lambda record: record.run_id)
    for run_id, first in sides.items():
        if run_id.endswith("-a"):
            yield from zip(first, sides.get(f"{run_id[:-2]}-b", []), strict=False)


RUN_METRICS: Final = "metrics.jsonl"
"""File of a training run, with a line for each logged iteration and no record."""


def files_in(path: Path) -> list[File]:
    """Return a file, or all ``*.jsonl`` files of records in a folder or zip archive.

    Raises:
        RecordError: There is no such file or folder, or the archive is damaged.
    """
    try:
        place = resolve_path(path)
        if place.is_dir():
            return [
                file for name, file in files_below(path).items() if name.endswith(".jsonl") and file.name != RUN_METRICS
            ]
        if not place.exists():
            raise RecordError(f"{path}: no such file or folder")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    return [place]


def require_no_source(out: Path, option: str, sources: Iterable[Path]) -> None:
    """Check that an output file is none of the files that records are read from.

    Raises:
        WriteError: It is one, which would be replaced.
        RecordError: A source does not exist.
    """
    files_read = (each for source in sources for each in (source, *files_in(source)))
    if any(out.resolve() == Path(str(each)).resolve() for each in files_read):
        rule = f"must not be a file that records are read from (got {out})"
        raise WriteError.of(option, rule, do="name another one")


def _lines(paths: Iterable[Path], skipped_lines: list[str] | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each line's JSON object and location."""
    for path in itertools.chain(*map(files_in, paths)):
        try:
            lines = read_bytes(path).split(b"\n")
        except OSError as error:
            _skip_line(f"{path}: cannot be read ({error.strerror})", skipped_lines)
            continue
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                fields = parse_text(line)
            except FileError as error:
                do = "" if skipped_lines is not None else "; delete the line, if a sweep was killed there"
                _skip_line(f"{where}: {error}{do}", skipped_lines)
                continue
            if isinstance(fields, dict):
                yield fields, where
            else:
                _skip_line(f"{where}: must be a JSON object (got {type(fields).__name__})", skipped_lines)


def _skip_line(message: str, skipped_lines: list[str] | None) -> None:
    """Note a skipped line once; raise RecordError without a list of them."""
    if skipped_lines is None:
        raise RecordError(message)
    if message not in skipped_lines:
        skipped_lines.append(message)


Line = TypeVar("Line", Record, Comparison)


def parsed(kind: type[Line], fields: dict[str, Any], where: str) -> Line:
    """Validate a record or comparison; raises RecordError, which names the place."""
    version = fields.get("schema")
    if version not in READABLE:
        known = " or ".join(map(str, READABLE))
        raise RecordError(f"{where}: schema must be {known} (got {short_text(version)}); use the release that wrote it")
    if version == 1:
        notes = fields.get("notes")
        fields |= {"schema": SCHEMA, "taken": str((notes if isinstance(notes, dict) else {}).get("taken", ALONE))}
    try:
        return kind(**fields)
    except ValidationError as error:
        raise RecordError(f"{where}: {error_text(error)}") from error
    except RecursionError as error:
        raise RecordError(f"{where}: is nested too deeply to be read") from error


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a case."""

    kind: type
    """Type of its values."""
    always: bool
    """True if all points have it."""
    known: frozenset[str] | None = None
    """Possible values; None: any."""
    least: int = 0
    """Smallest integer."""

    def broken_rule(self, value: Any) -> str:
        """Return the rule that a value breaks; empty if none."""
        if value is None:
            return "must be present" if self.always else ""
        if type(value) is not self.kind:
            return f"must be of type {self.kind.__name__}"
        if self.known is not None and value not in self.known:
            return f"must be one of {', '.join(sorted(self.known))}"
        is_size = isinstance(value, int) and not self.least <= value < 2**63
        return f"must be from {self.least} to 2**63 - 1" if is_size else ""


NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "peer": ("ours", "version", "counts"),
    "peer_learn": ("ours", "version"),
    "peer_solution": ("ours", "version", "samples_s"),
    "peer_determinism": ("version", "digests", "reference", "varied"),
    "startup": ("samples_s",),
    "time_to_solution": ("samples_s",),
    "determinism": ("digests", "reference", "varied"),
    "machine_code": ("code", "blocks", "threads", "launches", "shape", "access"),
}
"""Notes that a case's measured records must have."""
AXES_OF: Final = dict[str, Callable[[], Mapping[str, Axis]]]()
"""Functions that return a case's axes, by case name; `workloads.cases` fills it.

Functions, because listing points queries the GPUs. After that no process of this process's fork server can use CUDA."""


def _require_of_case(record: Record, where: str) -> None:
    """Check a record's axes and rates against its case; raises RecordError."""
    axes = AXES_OF[record.case]() if record.case in AXES_OF else {}
    for name, axis in axes.items():
        if rule := axis.broken_rule(value := record.point.get(name)):
            raise RecordError(f"{where}: point.{name}: {rule} (got {short_text(value)})")
    for name in NEEDED.get(record.case, ()) if record.status == "ok" else ():
        if record.notes.get(name) is None and name != "version":
            raise RecordError(f"{where}: notes.{name} must be present (got none)")
    is_rated = record.case in AXES_OF and record.status == "ok" and record.scope not in (*UNTIMED, "startup")
    for kind in record.work_per_run or () if is_rated else ():
        if f"{kind}_per_s" not in (record.metrics or {}):
            raise RecordError(f"{where}: metrics must have {kind}_per_s (got {', '.join(record.metrics or {})})")


@collection_paused()  # collections take a third of the time of large reads
def _read(paths: Iterable[Path], skipped_lines: list[str] | None) -> tuple[list[Record], list[Comparison]]:
    """Return the records and comparisons of files and folders."""
    records, comparisons, starts = list[Record](), list[Comparison](), dict[tuple[Any, ...], datetime]()
    for fields, where in _lines(paths, skipped_lines):
        try:
            if "log_ratios" in fields:
                comparisons.append(parsed(Comparison, fields, where))
            else:
                record = parsed(Record, fields, where)
                _require_of_case(record, where)
                records.append(record)
                # If the clock was set back, an earlier line of a point must not become the newer one.
                place = (where.rpartition(",")[0], record.run_id, record.case, *sorted(record.point.items()))
                vars(record)["not_before"] = starts[place] = max(starts.get(place, record.start), record.start)
        except RecordError as error:
            if skipped_lines is None:
                raise
            _skip_line(str(error), skipped_lines)
    return records, comparisons


def read_all(paths: Iterable[Path], skipped_lines: list[str] | None = None) -> list[Record]:
    """Return the records of several files and folders, see `files_in`.

    Args:
        paths: Files of JSON lines, and folders; comparisons among the lines are left to `read_comparisons`.
        skipped_lines: Gets a message for each skipped line: incomplete after a kill, or against the schema.

    Raises:
        RecordError: Without ``skipped_lines``, a line cannot be read or breaks the schema. Or a path is missing.
    """
    return _read(paths, skipped_lines)[0]


MOST_REPORTED: Final = 20
"""Maximum number of skipped lines that are named one by one."""
REPORTED: Final = set[str]()
"""Messages that this command has printed."""


@contextmanager
def reporting_skipped_lines() -> Iterator[list[str]]:
    """Collect messages of skipped lines; print each once on standard error."""
    skipped_lines = list[str]()
    try:
        yield skipped_lines
    finally:
        new = [message for message in skipped_lines if message not in REPORTED]
        REPORTED.update(new)
        for message in new[:MOST_REPORTED]:
            echo(f"left out: {message}", err=True)
        if len(new) > MOST_REPORTED:
            echo(f"left out: {len(new) - MOST_REPORTED} more lines", err=True)


def read_reporting(paths: Iterable[Path]) -> list[Record]:
    """Read records, see `read_all`; print skipped lines on standard error."""
    with reporting_skipped_lines() as skipped_lines:
        return read_all(paths, skipped_lines)


def oldest_first(records: Iterable[Record]) -> list[Record]:
    """Sort records by their start; equal starts keep their order."""
    return sorted(records, key=lambda record: record.start)


def selected(records: Iterable[Record], cases: Sequence[str], where: Sequence[str]) -> list[Record]:
    """Select records by case and ``AXIS=VALUE`` conditions.

    Raises:
        RecordError: A case or condition keeps none, though others do.
    """
    conditions = [*(f"case={case}" for case in cases), *where]
    found = [record for record in records if matches({"case": record.case, **record.point}, conditions)]
    if condition := unmet_condition(conditions, ({"case": record.case, **record.point} for record in found)):
        raise RecordError(f"{condition}: no record that passes the other options has it; leave it out")
    return found

"""Evidence, the position of an interval relative to a region, and judgements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar

from warpdrive_min import cores

from ..core import machine
from ..core.errors import NotComparable
from ..core.groups import groups_of
from ..core.nvml import throttling
from ..core.point import Point, point_name
from ..core.record import ALONE, Record, merged, oldest_first
from ..core.stats import Ratio, SpreadKind

Interval = tuple[float, float]
"""Lower and upper end, both included."""
Position = Literal["inside", "outside", "across"]
Subject = TypeVar("Subject")
"""Subject of a judgement, such as a point's name or a claim."""


def position(interval: Interval, region: Interval) -> Position:
    """Return the position of an interval relative to a region."""
    (low, high), (least, most) = interval, region
    if least <= low and high <= most:
        return "inside"
    return "outside" if high < least or most < low else "across"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure from records with its spread."""

    value: float
    low: float
    high: float
    records: tuple[Record, ...]
    kind: SpreadKind | None = None
    """Meaning of both ends; None: a 95 % interval over seeds or rounds, or no spread."""
    note: str = ""
    """Limitation of the figure, as text."""
    sides: tuple[str, str] = ("", "")
    """Values of both sides with units, as text; empty: the figure is not a ratio."""

    @classmethod
    def of_ratio(cls, ratio: Ratio, *records: Record) -> Estimate:
        """Return the ratio of two records."""
        kind: SpreadKind | None = None if ratio.between_processes else "samples"
        return cls(value=ratio.value, low=ratio.low, high=ratio.high, records=records, kind=kind)

    def over(self, divisor: float) -> Estimate:
        """Divide by a figure without an interval."""
        return replace(self, value=self.value / divisor, low=self.low / divisor, high=self.high / divisor)

    @property
    def interval(self) -> Interval:
        """Both ends."""
        return self.low, self.high

    @property
    def hardware(self) -> str:
        """Hardware of the records; on a CPU with its threads."""
        return " / ".join(dict.fromkeys(map(hardware_of, self.records)))

    @property
    def run_id(self) -> str:
        """Run of the records."""
        return self.records[0].run_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement(Generic[Subject]):
    """Verdict on a subject, with its estimate and region."""

    subject: Subject
    estimate: Estimate | None = None
    region: Interval = (-math.inf, math.inf)
    p: float | None = None
    """p-value of lying outside the region, adjusted for the number of subjects."""
    limit: float = 0.0
    """Smallest effect that counts as a regression, as a fraction."""
    verdict: str
    reasons: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(reason for reason in self.reasons if reason)


# ------------------------------------------------------------------ choosing records


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Selection of a case's records by axis values; None: no such axis."""

    case: str
    axes: Mapping[str, Any] = field(default_factory=dict)

    def matches_record(self, record: Record) -> bool:
        """True if a record matches."""
        return record.case == self.case and self.matches_point(record.point)

    def matches_point(self, point: Point) -> bool:
        """True if a point of the case matches."""
        return all(point.get(axis) == value for axis, value in self.axes.items())

    def by_run(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """Return matching records by run, the newest run and record first."""
        return groups_of(oldest_first(filter(self.matches_record, records))[::-1], lambda record: record.run_id)


Key = tuple[Any, ...]
"""Identity of a point: its case and the values of its axes."""


def key(record: Record) -> Key:
    """Return the `Key` of a record."""
    return point_key(record.case, record.point)


def point_key(case: str, point: Point) -> Key:
    """Return the `Key` of a point."""
    return (case, *sorted(point.items()))


def speed_of(record: Record) -> float:
    """Return a number that is larger for a faster record.

    It is env steps/s, or the negative of the seconds to a solution.
    """
    rate, seconds = record.figure("env_steps_per_s"), record.figure("total_s")
    return rate.value if rate else -seconds.value if seconds else -math.inf


def name_of(record: Record) -> str:
    """Name the point of a record."""
    return point_name(record.case, record.point)


def hardware_of(record: Record) -> str:
    """Return a record's hardware; on a CPU with its threads."""
    if record.threads is None:
        return str(record.machine.get("gpu"))
    threads = f"{record.threads} thread{'s' if record.threads > 1 else ''}"
    return f"{record.point.get('backend')}, {threads} of {record.machine.get('cpu')}"


SHARED: Final = "shared the GPU"
"""Note of runs of schema 1 whose processes shared a GPU."""


def is_of_shared_gpu(record: Record) -> bool:
    """True if another process used the GPU."""
    users = record.host.gpu_users if record.host else None
    told = SHARED in str(record.notes.get("note"))
    return bool(users) or told or record.is_contended


def disturbances(record: Record) -> list[str]:
    """Return disturbances that exclude a record from comparisons, as text."""
    contended = ["another process used the GPU"] if record.is_contended else []
    reasons = throttling(record.telemetry)
    slowed = [f"throttled by {name} in {share:.0%} of the samples" for name, share in reasons.items()]
    kept = record.notes.get("throttled_samples", {}).get("kept")
    return contended + slowed + ([f"the GPU was throttled in {kept} samples"] if kept else [])


MOST_OTHERS: Final = 0.1
"""Share of cores used by others above which a remark is added."""
MOST_SLOWED: Final = 1.25
"""Ratio of longest to shortest Python loop above which remarks are added."""


def busy(record: Record) -> str:
    """Return a warning that the machine was busy; always empty for a GPU."""
    if record.host is None or record.threads is None:
        return ""
    if record.host.others_busy is not None and record.taken == ALONE:
        others = record.host.others_busy
        return f"other processes used {others:.0%} of our cores: numbers unreliable" if others > MOST_OTHERS else ""
    loads = [each for each in (record.host.load_before, record.host.load_after) if each is not None]
    return cores.busy(max(loads, default=None), record.machine.get("cores") or 1)


def remarks(record: Record) -> list[str]:
    """Return disturbances of a record that remains evidence, as text."""
    cap_s = (record.warm_up or {}).get("cap_s")
    unsettled = [f"times did not stabilise in {cap_s} s of warm-up"] if record.has_unsettled_warm_up else []
    others = record.host.others_busy if record.host else None
    if others is None:
        used = [text] if (text := busy(record)) else []
    else:
        used = [f"other processes used {others:.0%} of our cores"] if others > MOST_OTHERS else []
    return unsettled + used + _slowed(record)


def _slowed(record: Record) -> list[str]:
    undisturbed = record.notes.get("undisturbed_rounds")
    if undisturbed is not None and "laps" not in record.notes:  # the fastest block counts; laps always confirm it
        n = len(record.samples_ns or ())
        return [f"in {n - undisturbed} of {n} rounds no second block confirms the fastest"] if undisturbed < n else []
    shortest, longest = (record.host and record.host.loop_ns) or (1, 1)
    times = longest / shortest
    return (
        [f"the cores varied: one Python loop took 1 to {times:.1f} times its shortest time"]
        if times > MOST_SLOWED
        else []
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Records of one side by point, comparable or not."""

    comparable: dict[Key, Record]
    """Newest evidence of each point."""
    disturbances: dict[Key, str]
    """Points whose evidence was all contended or throttled, with the reasons."""
    failed: dict[Key, str]
    """Points whose newest record failed, with the reason."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> Evidence:
        """Sort records; only undisturbed records of timed cases are comparable."""
        comparable, noisy, failed = dict[Key, Record](), dict[Key, str](), dict[Key, str]()
        for record in merged(oldest_first(records)):
            each, name = key(record), f"{name_of(record)} of run {record.run_id}"
            failed.pop(each, None)
            if record.has_failed:
                failed[each] = f"{name}: {record.rejection_reason}"
            elif record.is_evidence and record.samples_ns and record.work_per_run:
                if reasons := disturbances(record):
                    noisy[each] = f"{name}: {', '.join(reasons)}"
                else:
                    comparable[each] = record
        return cls(comparable, {each: text for each, text in noisy.items() if each not in comparable}, failed)

    @property
    def unreliable(self) -> dict[Key, str]:
        """Comparable points of a busy machine, with the warning."""
        return {each: text for each, record in self.comparable.items() if (text := busy(record))}

    @property
    def left_out(self) -> list[str]:
        """Points without a comparison, with the reasons."""
        return [*self.disturbances.values(), *self.failed.values()]


# ------------------------------------------------------------------ comparable

OWN_FIELDS: Final = ("preset", "case_version", "scope", "mode", "threads")
COMPARABLE_FIELDS: Final = (*OWN_FIELDS, *(f"machine.{name}" for name in machine.COMPARABLE))
"""Fields that two records must share to be compared."""


def mismatches(a: Record, b: Record, allowed: Sequence[str] = ()) -> list[str]:
    """Return the differing comparable fields that are not allowed, with values."""
    names = [name for name in COMPARABLE_FIELDS if name not in allowed]
    return machine.difference_texts(machine.differences(_fields(a), _fields(b), names))


def _fields(record: Record) -> dict[str, Any]:
    own = {name: getattr(record, name) for name in OWN_FIELDS}
    return own | {f"machine.{name}": value for name, value in record.machine.items()}


def check_allowed(allowed: Sequence[str]) -> None:
    """Raise NotComparable unless each field is comparable."""
    for name in allowed:
        if name not in COMPARABLE_FIELDS:
            raise NotComparable(f"--allow-mismatch {name}: unknown field (known: {', '.join(COMPARABLE_FIELDS)})")

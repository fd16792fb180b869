"""What may be compared: the same work on two sides, and records of it that nothing spoilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.nvml import throttling
from bench.record import Record
from bench.stats import Ratio, paired_p, paired_ratio, unpaired_p, unpaired_ratio

MATTERS: Final = (
    *("preset", "case_version", "scope", "mode", "threads"),
    *("machine.gpu", "machine.driver", "machine.cuda", "machine.cuda_compiler", "machine.cpp_compiler"),
    *("machine.torch", "machine.numpy", "machine.numba", "machine.numba_cuda", "machine.pycuda", "machine.python"),
    *("machine.cpu", "machine.cores", "machine.cpu_limit", "machine.settings"),
)
"""Fields that two records must share to be compared. Another card of the same class, another kernel of the operating
system, and packages that nothing here computes with are let through."""


class CompareError(ValueError):
    """What should be compared cannot be; ``code`` is the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NothingMeasured(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """No point is left to compare."""

    def __init__(self, message: str) -> None:
        super().__init__(3, message)


class NotComparable(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """A side is missing, or the two differ in what matters."""

    def __init__(self, message: str) -> None:
        super().__init__(4, message)


class PointFailed(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """A point is wrong or breaks."""

    def __init__(self, message: str) -> None:
        super().__init__(5, message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The same work on two sides, with the time of one unit of it, ns."""

    name: str
    a: Record
    b: Record
    times_a: tuple[float, ...]
    times_b: tuple[float, ...]
    in_turns: bool
    """The times belong together one by one; else they are two samples."""
    mismatched: tuple[str, ...] = ()
    """Fields that should be the same and were allowed not to be."""

    @property
    def ratio(self) -> Ratio:
        """Time on side B over that on side A."""
        return (paired_ratio if self.in_turns else unpaired_ratio)(self.times_a, self.times_b)

    def p_slower(self, by: float = 0.0) -> float:
        """Return the one-sided p-value for B being slower by more than a share."""
        return (paired_p if self.in_turns else unpaired_p)(self.times_a, self.times_b, 1 + by)

    @property
    def p_faster(self) -> float:
        """The one-sided p-value for A being slower."""
        return (paired_p if self.in_turns else unpaired_p)(self.times_b, self.times_a)


# ------------------------------------------------------------------ records


def samples(record: Record) -> tuple[float, ...]:
    """Return the time of one unit in each sample, ns."""
    assert record.samples_ns, "evidence of a case that repeats has samples"
    return tuple(wall / unit(record) for wall in record.samples_ns)


def unit(record: Record) -> int:
    """Return how many units of what is gated on a run does."""
    assert record.work_per_run, "evidence of a case that repeats says its work"
    return next(iter(record.work_per_run.values()))


def spoilt(record: Record) -> str:
    """Say what telemetry saw that makes times worthless for a comparison; empty if nothing."""
    telemetry = record.telemetry or {}
    if telemetry.get("contended"):
        return "another process used the GPU"
    return ", ".join(
        f"throttled by {name} in {share:.0%} of the samples" for name, share in throttling(telemetry).items()
    )


Key = tuple[Any, ...]
"""What makes two records the same point: the case and the values of its axes."""


def key(record: Record) -> Key:
    """Return the `Key` of a record."""
    return (record.case, *sorted(record.point.items()))


def name_of(record: Record) -> str:
    """Name the point of a record."""
    return f"{record.case}[{','.join(f'{axis}={value}' for axis, value in record.point.items())}]"


@dataclass(frozen=True, slots=True)
class Usable:
    """The records of one side, sorted by whether they may be compared; by point."""

    kept: dict[Key, Record]
    """The newest evidence of each point."""
    spoilt: dict[Key, str]
    """Points of which all evidence was contended or throttled, with what telemetry saw."""
    failed: dict[Key, str]
    """Points whose newest record failed, with the reason."""

    @property
    def left_out(self) -> list[str]:
        """Say what is not compared."""
        return [*self.spoilt.values(), *self.failed.values()]


def usable(records: Sequence[Record]) -> Usable:
    """Return what of the records may be compared: evidence of cases that repeat, alone on a GPU at its full clocks."""
    found = Usable({}, {}, {})
    for record in sorted(records, key=lambda record: record.started_at):
        each, named = key(record), f"{name_of(record)} of run {record.run_id}"
        found.failed.pop(each, None)
        if record.status == "failed" or (record.status == "ok" and not record.is_evidence):
            found.failed[each] = f"{named}: {record.reason or 'its check failed'}"
        elif record.is_evidence and record.samples_ns and record.work_per_run:
            if reason := spoilt(record):
                found.spoilt[each] = f"{named}: {reason}"
            else:
                found.kept[each] = record
    for each in found.kept:
        found.spoilt.pop(each, None)
    return found


def mismatches(a: Record, b: Record) -> dict[str, str]:
    """Return the fields that matter and differ, with both values."""
    return {field: f"{_value(a, field)!r} against {_value(b, field)!r}" for field in MATTERS if not _same(a, b, field)}


def _same(a: Record, b: Record, field: str) -> bool:
    return bool(_value(a, field) == _value(b, field))


def _value(record: Record, field: str) -> Any:
    name, _, part = field.partition(".")
    return getattr(record, name).get(part) if part else getattr(record, name)


def check_allowed(allowed: Sequence[str]) -> None:
    """Make sure that each field can be allowed to differ; raises NotComparable."""
    for field in allowed:
        if field not in MATTERS:
            raise NotComparable(f"--allow-mismatch {field}: unknown field (known: {', '.join(MATTERS)})")


def paired_up(a: Mapping[Key, Record], b: Mapping[Key, Record], allowed: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """Return the pairs of records of the same point, and why others do not pair."""
    check_allowed(allowed)
    pairs, refused = [], []
    for each in (each for each in a if each in b):
        differ = mismatches(a[each], b[each])
        if any(field not in allowed for field in differ):
            told = "; ".join(f"{field}: {values}" for field, values in differ.items() if field not in allowed)
            refused.append(f"{name_of(a[each])}: {told}")
            continue
        pairs.append(
            Pair(
                name=name_of(a[each]),
                a=a[each],
                b=b[each],
                times_a=samples(a[each]),
                times_b=samples(b[each]),
                in_turns=False,
                mismatched=tuple(f"{field}: {values}" for field, values in differ.items()),
            )
        )
    return pairs, refused

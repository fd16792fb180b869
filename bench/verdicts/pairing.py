"""What may be compared: the same work on two sides, and records of it that nothing spoilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.judge import COMPARABLE_FIELDS, Key, check_allowed, mismatches, name_of
from bench.record import Record
from bench.stats import Ratio, log_ratios, unpaired_p, unpaired_ratio


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
        if not self.in_turns:
            return unpaired_ratio(self.times_a, self.times_b)
        return Ratio.of_logs(log_ratios(self.times_a, self.times_b), between_processes=False)

    def p_slower(self, by: float = 0.0) -> float:
        """Return the one-sided p-value for B being slower by more than a share."""
        return self.ratio.p_over(1 + by) if self.in_turns else unpaired_p(self.times_a, self.times_b, 1 + by)

    @property
    def p_faster(self) -> float:
        """The one-sided p-value for A being slower."""
        return self.ratio.p_below() if self.in_turns else unpaired_p(self.times_b, self.times_a)


# ------------------------------------------------------------------ records


def samples(record: Record) -> tuple[float, ...]:
    """Return the time of one unit in each sample, ns."""
    assert record.samples_ns, "evidence of a case that repeats has samples"
    return tuple(wall / unit(record) for wall in record.samples_ns)


def unit(record: Record) -> int:
    """Return how many units of what is gated on a run does."""
    assert record.work_per_run, "evidence of a case that repeats says its work"
    return next(iter(record.work_per_run.values()))


def paired_up(a: Mapping[Key, Record], b: Mapping[Key, Record], allowed: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """Return the pairs of records of the same point, and why others do not pair."""
    check_allowed(allowed)
    pairs, refused = [], []
    for each in (each for each in a if each in b):
        if differ := mismatches(a[each], b[each], allowed):
            refused.append(f"{name_of(a[each])}: {'; '.join(differ)}")
            continue
        others = [field for field in COMPARABLE_FIELDS if field not in allowed]
        pairs.append(
            Pair(
                name=name_of(a[each]),
                a=a[each],
                b=b[each],
                times_a=samples(a[each]),
                times_b=samples(b[each]),
                in_turns=False,
                mismatched=tuple(mismatches(a[each], b[each], others)),
            )
        )
    return pairs, refused

"""What records can show of a claim: a rate, a ratio, a time to learn, seeds that learned, bytes over PCIe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.case import Point
from bench.record import Metric, Record
from bench.stats import median, median_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What records show, with its interval at 95 %; that of a ratio spans both records' intervals."""

    value: float
    low: float
    high: float
    records: tuple[Record, ...]
    note: str = ""
    """What the figure alone does not say."""

    @property
    def on(self) -> str:
        """The hardware that did the work, and on a CPU its threads."""
        return " / ".join(dict.fromkeys(map(worker, self.records)))

    @property
    def run_id(self) -> str:
        """The sweep that it comes from; all of it comes from one."""
        return self.records[0].run_id


def worker(record: Record) -> str:
    """Name the hardware that did the work of a record."""
    if record.threads is None:
        return str(record.machine.get("gpu"))
    threads = f"{record.threads} thread{'s' if record.threads > 1 else ''}"
    return f"{record.point.get('backend')}, {threads} of {record.machine.get('cpu')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Select:
    """The records of a case whose points have these values; None: the point has no such axis."""

    case: str
    axes: Mapping[str, Any]

    def fits(self, record: Record) -> bool:
        """Whether it is one of them."""
        return record.case == self.case and self.takes(record.point)

    def takes(self, point: Point) -> bool:
        """Whether a point of the case is one of them."""
        return all(point.get(axis) == value for axis, value in self.axes.items())

    def by_run(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """Return them by run, those of the newest run first and in it the newest record first."""
        runs: dict[str, list[Record]] = {}
        for record in sorted(filter(self.fits, records), key=lambda record: record.started_at, reverse=True):
            runs.setdefault(record.run_id, []).append(record)
        return runs


class Quantity(Protocol):
    """Something that records show."""

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        ...

    @property
    def is_portable(self) -> bool:
        """Whether it decides a claim on another machine than the claim's own, as a ratio on one machine does."""
        ...

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest fitting run shows; None: there is none."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One metric of one point."""

    select: Select
    metric: str = "env_steps_per_s"
    per: float = 1.0
    """What it is divided by: a figure of somebody else on the same machine, which has no interval."""
    is_portable: bool = False

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest fitting record shows."""
        for found in self.select.by_run(records).values():
            for record in found:
                if metric := _metric(record, self.metric):
                    value, low, high = (each / self.per for each in (metric.value, metric.low, metric.high))
                    return Measured(value=value, low=low, high=high, records=(record,))
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A metric of one point over that of another one in the same run."""

    of: Select
    over: Select
    metric: str = "env_steps_per_s"
    per: float = 1.0
    """What the ratio is divided by: so many times as much was put in."""
    is_portable: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.of, self.over)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest run with both points shows."""
        bases = self.over.by_run(records)
        for run_id, (record, *_) in self.of.by_run(records).items():
            base = bases.get(run_id, [None])[0]
            above = _metric(record, self.metric)
            below = base and _metric(base, self.metric)
            if base and above and below:
                return Measured(
                    value=above.value / below.value / self.per,
                    low=above.low / below.high / self.per,
                    high=above.high / below.low / self.per,
                    records=(record, base),
                )
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What a `learn` point takes to its threshold: the median over its seeds."""

    select: Select
    metric: str = "seconds_to_threshold"
    per: float = 1.0
    """What it is divided by; steps over environments are steps of each, of which an iteration has so many."""
    n_seeds: int = 1
    """Seeds that a run must have, lest it shows the lucky ones."""
    is_portable: bool = False

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest run with enough seeds shows in which most of them reached the threshold."""
        for seeds in map(_newest_of_each_seed, self.select.by_run(records).values()):
            found = [metric.value / self.per for record in seeds if (metric := _metric(record, self.metric))]
            missed = len(seeds) - len(found)
            if len(seeds) < self.n_seeds or missed >= len(found):
                continue
            times = [*found, *[math.inf] * missed]
            low, high = median_interval(times)
            note = f"median of {len(seeds)} seeds" + (f", of which {missed} did not reach it" if missed else "")
            return Measured(value=median(times), low=low, high=high, records=tuple(seeds), note=note)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimesSooner:
    """How many times less one `learn` point takes to its threshold than another one."""

    of: Learned
    than: Learned
    is_portable: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.of.select, self.than.select)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest run with both points shows."""
        for run_id in self.of.select.by_run(records):
            run = [record for record in records if record.run_id == run_id]
            fast, slow = self.of.measure(run), self.than.measure(run)
            if fast and slow:
                return Measured(
                    value=slow.value / fast.value,
                    low=slow.low / fast.high,
                    high=slow.high / fast.low,
                    records=(*fast.records, *slow.records),
                    note=f"{fast.note} over {slow.note}" if fast.note != slow.note else fast.note,
                )
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How many seeds of a `learn` point reach its threshold; those that no record has may go either way."""

    select: Select
    n_seeds: int
    is_portable: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the run shows that has most seeds, of several the newest."""
        runs = [_newest_of_each_seed(run) for run in self.select.by_run(records).values()]
        if not runs:
            return None
        seeds = max(runs, key=len)
        reached = sum(_metric(record, "seconds_to_threshold") is not None for record in seeds)
        return Measured(
            value=reached,
            low=reached,
            high=reached + self.n_seeds - len(seeds),
            records=tuple(seeds),
            note=joined(
                f"{len(seeds)} of {self.n_seeds} seeds are measured" if len(seeds) < self.n_seeds else "",
                f"evaluated afterwards, {below} of {len(seeds)} play below it" if (below := _n_below(seeds)) else "",
            ),
        )


def _newest_of_each_seed(run: Sequence[Record]) -> list[Record]:
    return list({record.point["seed"]: record for record in reversed(run)}.values())


def _n_below(seeds: Sequence[Record]) -> int:
    """Return how many trained policies play worse than the threshold asks for, counting no doubtful one."""
    after = [(record, metric) for record in seeds if (metric := _metric(record, "return_after"))]
    return sum(metric.high < float(record.point["threshold"]) for record, metric in after)


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Bytes over PCIe in both directions for each agent-step, as the GPU counted them while the point was repeated."""

    select: Select
    is_portable: bool = True

    @property
    def selects(self) -> tuple[Select, ...]:
        """The records that it needs."""
        return (self.select,)

    def measure(self, records: Sequence[Record]) -> Measured | None:
        """Return what the newest fitting record with telemetry shows."""
        for found in self.select.by_run(records).values():
            for record in found:
                gpm = (record.telemetry or {}).get("gpm") or {}
                received, sent = gpm.get("pcie_received_mib_per_s"), gpm.get("pcie_sent_mib_per_s")
                steps = _metric(record, "agent_steps_per_s")
                if steps and received is not None and sent is not None:
                    each = (received + sent) * 2**20 / steps.value
                    return Measured(value=each, low=each, high=each, records=(record,))
        return None


def _metric(record: Record, name: str) -> Metric | None:
    return (record.metrics or {}).get(name)


def joined(*parts: str) -> str:
    """Return what there is to say, with semicolons between."""
    return "; ".join(part for part in parts if part)

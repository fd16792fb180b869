"""Claims of others and our goals, from claims.toml, with their queries."""

from __future__ import annotations

import itertools
import math
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from ...core.archive import read_toml
from ...core.errors import FileError
from ...core.groups import groups_of
from ...core.nvml import pcie_bytes_per_s
from ...core.point import ABSENT, Direction, Point
from ...core.record import Comparison, Record, are_on_two_cards
from ...core.schema import Model, error_text
from ...core.stats import median, median_interval, weakest
from ...show.labels import number, plural
from ..evidence import Estimate, Filter, Interval, is_of_shared_gpu, remarks
from . import anchors

FILE: Final = Path(__file__).with_name("claims.toml")
ABOUT: Final = 0.1
"""Tolerance of a figure quoted with "about", as a fraction."""
PEER: Final = "peer"
"""Case of other software."""
UNNAMED: Final = "not named"
"""Hardware of a source that names none."""


class LedgerError(FileError):
    """A file of claims breaks its rules; names file, claim and field."""


class Query(Model):
    """Figure of one point, or ratio of two points on one card."""

    quantity: Literal["Rate", "Ratio", "Learned", "TimesSooner", "Reached", "Traffic"]
    """Kind of figure.

    Rate, Ratio: a metric. Learned, TimesSooner: the median over seeds of a `learn` point's cost to its threshold.
    Reached: number of seeds that reach it. Traffic: PCIe bytes per agent step, counted by the GPU."""
    of: Filter
    over: Filter | None = None
    """Base of a Ratio; for TimesSooner the slower point."""
    peer: str = ""
    """Other software that is the base of an interleaved Ratio."""
    theirs: float | None = None
    """Peer's rate from another run, without interval; base if not interleaved."""
    unpaired: str = ""
    """Limitation of a ratio over `theirs`, as text."""
    metric: str = "env_steps_per_s"
    per: int | float = 1
    """Divisor of the figure, such as the number of repetitions in it."""
    per_env: bool = False
    """Divide by the point's environments too, to turn total steps into iterations."""
    n_seeds: int = 1
    """Minimum seeds of a run, so that lucky ones do not decide."""

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Filters of the records that it needs."""
        return (self.of,) if self.over is None else (self.of, self.over)

    def is_portable(self, estimate: Estimate) -> bool:
        """True if an estimate can decide a claim about another machine."""
        is_over_another_run = self.theirs is not None and len(estimate.records) == 1
        return self.quantity not in ("Rate", "Learned") and not is_over_another_run

    @property
    def is_timed(self) -> bool:
        """True if it is derived from times."""
        return self.metric != "env_steps_to_threshold" and self.quantity not in ("Reached", "Traffic")

    def estimate(
        self, records: Sequence[Record], comparisons: Sequence[Comparison] = (), hardware: str = ""
    ) -> Estimate | None:
        """Return the estimate of the newest interleaved pair, else newest run.

        With a peer, the fastest of its variants is used. A ratio of times from records that were not interleaved needs
        one card. The number of seeds that reach a threshold comes from the run with most seeds.

        Args:
            records: Evidence.
            comparisons: Turns that join records.
            hardware: Hardware of `theirs`; it says nothing about other hardware.
        """
        if self.peer and (beside := self._ratio_to_peer(records, comparisons, hardware)):
            return beside
        if self.quantity == "Ratio" and self.over and (compared := self._ratio_of_pair(records, comparisons)):
            return compared.over(self.per)
        shown = self._of_runs(records)
        if self.quantity == "Reached":
            return max(shown, key=lambda estimate: len(estimate.records), default=None)
        if not shown:
            return None
        if self.theirs is not None:
            return replace(shown[0].over(self.theirs), note=self.unpaired)
        return shown[0].over(self.per)

    def rejection_reason(self, records: Sequence[Record]) -> str:
        """Return why matching records give no figure; empty if they do."""
        if not self.is_timed:
            return ""
        fitting = [record for record in records if any(each.matches_record(record) for each in self.filters)]
        if self.quantity in ("Learned", "TimesSooner") and any(map(is_of_shared_gpu, fitting)):
            return "other processes used the GPU of its records, so their times do not count"
        bases = self.over.by_run(records) if self.over else {}
        if any(run_id in bases for run_id in self.of.by_run(records)):
            return "its two sides were measured on different GPUs, so their ratio does not count"
        return ""

    def _of_runs(self, records: Sequence[Record]) -> list[Estimate]:
        """Return the estimate of each run, newest first."""
        if self.over is None:
            figures = [self._figure(of_run) for of_run in self.of.by_run(records).values()]
        else:
            bases = self.over.by_run(records)
            figures = [
                self._over_base(group, bases.get(run_id, []))
                for run_id, of_run in self.of.by_run(records).items()
                for group in (groups_of(of_run, lambda record: record.card).values() if self.is_timed else [of_run])
            ]
        return [each for each in figures if each]

    def _over_base(self, group: Sequence[Record], bases: Sequence[Record]) -> Estimate | None:
        """Return the ratio of two points in one run; times need one card."""
        shared = [each for each in bases if not (self.is_timed and are_on_two_cards(group[0], each))]
        of, base = self._figure(group), self._figure(shared)
        return of and base and self._ratio(of, base)

    def _ratio_of_pair(self, records: Sequence[Record], comparisons: Sequence[Comparison]) -> Estimate | None:
        """Return the newest ratio of rates of two interleaved points."""
        assert self.over is not None, "a ratio of two points has a base"
        estimates = []
        for each, a, b in _joined(records, comparisons):
            is_turned = self.of.matches_record(b) and self.over.matches_record(a)
            if self.metric != _rate_of_time(a) or not (
                is_turned or (self.of.matches_record(a) and self.over.matches_record(b))
            ):
                continue
            estimate = Estimate.of_ratio(each.ratio(), a, b)
            if is_turned:
                value, low, high = 1 / estimate.value, 1 / estimate.high, 1 / estimate.low
                estimate = replace(estimate, value=value, low=low, high=high, records=(b, a))
            estimates.append(replace(estimate, note=_rounds(each)))
        return max(reversed(estimates), key=lambda estimate: estimate.records[0].start, default=None)

    def _ratio_to_peer(
        self, records: Sequence[Record], comparisons: Sequence[Comparison], hardware: str
    ) -> Estimate | None:
        """Return the newest interleaved ratio to the fastest variant of the peer.

        If another run on such hardware shows a faster peer, the interval is extended down to the ratio over that rate.
        In mode eager a Python loop depends on the CPU core, so any GPU counts.
        """
        newest: dict[str, tuple[Comparison, Record, Record]] = {}
        for each, ours, theirs in sorted(_joined(records, comparisons), key=lambda found: found[2].start):
            if self._is_the_peer(theirs) and self.of.matches_point(ours.point):
                newest[str(theirs.point.get("variant"))] = each, ours, theirs
        if not newest:
            return None
        compared, ours, theirs = min(newest.values(), key=lambda found: found[0].ratio().value)
        ratio, rate = compared.ratio(), ours.figure(self.metric)
        name = " ".join(str(theirs.point[axis]) for axis in ("peer", "variant") if axis in theirs.point)
        notes = [f"{_rounds(compared)} with {name}", *remarks(theirs)]
        estimate = Estimate.of_ratio(ratio, ours, theirs)
        is_there = hardware in estimate.hardware or theirs.mode == "eager"
        if is_there and self.theirs and rate and (over := rate.value / self.theirs) < ratio.low:
            notes.append(f"compared with WarpDrive's {number(self.theirs)} of another run: {number(over)}")
            estimate = replace(estimate, low=over)
        return replace(estimate, note="; ".join(notes))

    def _is_the_peer(self, theirs: Record) -> bool:
        """True if a record is of the peer and the same work (training or stepping)."""
        trains = theirs.point["work"] == "train"
        return theirs.case == PEER and theirs.point["peer"] == self.peer and trains == (self.of.case == "train")

    def _ratio(self, of: Estimate, over: Estimate) -> Estimate:
        top, bottom = (over, of) if self.quantity == "TimesSooner" else (of, over)
        return Estimate(
            value=top.value / bottom.value,
            low=top.low / bottom.high,
            high=top.high / bottom.low,
            kind=weakest(of.kind, over.kind),
            records=(*of.records, *over.records),
            note=of.note if of.note == over.note else f"{of.note} over {over.note}",
        )

    def _figure(self, of_run: Sequence[Record]) -> Estimate | None:
        """Return the estimate of one point in one run."""
        if self.quantity in ("Learned", "TimesSooner"):
            return self._time_to_threshold(_newest_of_each_seed(of_run))
        if self.quantity == "Reached":
            return self._seeds_at_threshold(_newest_of_each_seed(of_run))
        read = _traffic if self.quantity == "Traffic" else self._rate
        return next((estimate for record in of_run if (estimate := read(record))), None)

    def _rate(self, record: Record) -> Estimate | None:
        if (rate := record.figure(self.metric)) is None:
            return None
        return Estimate(value=rate.value, low=rate.low, high=rate.high, kind=rate.kind, records=(record,))

    def _time_to_threshold(self, seeds: Sequence[Record]) -> Estimate | None:
        """Return the median over seeds, misses as infinity; None if most missed."""
        seeds = [record for record in seeds if not (self.is_timed and is_of_shared_gpu(record))]
        times = [
            time.value / (float(record.point["n_envs"]) if self.per_env else 1)
            for record in seeds
            if (time := record.figure(self.metric))
        ]
        missed = len(seeds) - len(times)
        if len(seeds) < self.n_seeds or missed >= len(times):
            return None
        times += [math.inf] * missed
        low, high = median_interval(times)
        note = f"median of {len(seeds)} seeds" + (f"; {missed} did not reach it" if missed else "")
        return Estimate(value=median(times), low=low, high=high, records=tuple(seeds), note=note)

    def _seeds_at_threshold(self, seeds: Sequence[Record]) -> Estimate:
        """Return the number of seeds that reach the threshold.

        Seeds without a record raise the upper end of the interval.
        """
        n_reached = sum(record.figure(self.metric) is not None for record in seeds)
        n_below = sum(_plays_below(record) for record in seeds)
        notes = [
            f"{len(seeds)} of {self.n_seeds} seeds are measured" if len(seeds) < self.n_seeds else "",
            f"evaluated after training, {n_below} of {len(seeds)} are below it" if n_below else "",
        ]
        return Estimate(
            value=n_reached,
            low=n_reached,
            high=n_reached + max(0, self.n_seeds - len(seeds)),
            records=tuple(seeds),
            note="; ".join(filter(None, notes)),
        )


def _joined(
    records: Sequence[Record], comparisons: Sequence[Comparison]
) -> Iterator[tuple[Comparison, Record, Record]]:
    """Yield comparisons whose two records exist and share a GPU."""
    by_id = {record.id: record for record in records}
    for each in comparisons:
        a, b = by_id.get(each.a), by_id.get(each.b)
        if a is not None and b is not None and not are_on_two_cards(a, b):
            yield each, a, b


def _rounds(compared: Comparison) -> str:
    n_rounds = len(compared.log_ratios)
    return f"interleaved, {plural(n_rounds, 'round')} of new processes" if n_rounds > 1 else "interleaved, one round"


def _rate_of_time(record: Record) -> str:
    """Name the compared rate: that of the first kind of work."""
    return f"{next(iter(record.work_per_run or {}), '')}_per_s"


def _traffic(record: Record) -> Estimate | None:
    per_s, steps = pcie_bytes_per_s((record.telemetry or {}).get("gpm")), record.figure("agent_steps_per_s")
    if per_s is None or steps is None:
        return None
    n_bytes = per_s / steps.value
    return Estimate(value=n_bytes, low=n_bytes, high=n_bytes, records=(record,))


def _newest_of_each_seed(of_run: Sequence[Record]) -> list[Record]:
    return list({record.point["seed"]: record for record in reversed(of_run)}.values())


def _plays_below(record: Record) -> bool:
    """True if a trained policy is significantly below the threshold."""
    after = record.figure("return_after")
    return after is not None and after.high < float(record.point["threshold"])


class Claim(Model):
    """Published figure, or goal of ours."""

    name: str
    source: str
    section: str = ""
    """Heading, figure or table in the source."""
    quote: str = ""
    """Literal quotation; empty for a chart or a goal."""
    reading: str = ""
    """Derivation of the figure from the source; empty if quoted."""
    says: str
    """Set-up of the claim."""
    bound: Literal["", "about", "at least", "at most"] = ""
    """Source's word before the figure.

    Empty: the exact figure, which another measurement may miss by as much as with "about"."""
    low: int | float
    """Figure, or lower end of a range if `high` is set."""
    high: int | float | None = None
    """Upper end of a claimed range."""
    unit: str
    direction: Direction = "higher"
    """Better direction of the figure; a miss there exceeds the claim."""
    hardware: str
    """Hardware that the source names."""
    query: Query | None = None
    """Figure of our records that decides the claim."""
    differs: str = ""
    """Difference between our set-up and the claim's."""
    cannot: str = ""
    """Reason why it cannot be measured here."""
    made_by: str = ""
    """Run behind one of our claims; another run must confirm it."""

    @property
    def region(self) -> Interval:
        """Interval of the claimed figure; ours may be exceeded."""
        least, most = self.low - ABOUT * abs(self.low), self.low + ABOUT * abs(self.low)
        if self.made_by:
            return (least, math.inf) if self.direction == "higher" else (-math.inf, most)
        if self.high is not None:
            return self.low, self.high
        return {"at least": (self.low, math.inf), "at most": (-math.inf, self.low)}.get(self.bound, (least, most))

    @property
    def figure(self) -> str:
        """Figure with its bound, without the unit."""
        if self.high is not None:
            return f"{number(self.low)} to {number(self.high)}"
        return f"{self.bound} {number(self.low)}".strip()


# ------------------------------------------------------------------ reading


class Ledger:
    """Claims of a file, and the addresses of their sources."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._document: Mapping[str, Any] = read_toml(file)
        self.links: Mapping[str, str] = self._document["sources"]

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Claims in file order; entries with several rows become several.

        Raises:
            LedgerError: An entry breaks the rules.
        """
        return tuple(
            self._claim(entry, row) for entry in self._document["claims"] for row in self._rows(entry.get("each", []))
        )

    def _rows(self, each: Sequence[str | Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Return the product of row lists, with the file's texts."""
        named = {**self._document["rows"], **anchors.rows()}
        factors = [named[rows] if isinstance(rows, str) else rows for rows in each]
        return [dict(ChainMap(*reversed(some), self._document["texts"])) for some in itertools.product(*factors)]

    def _claim(self, entry: Mapping[str, Any], row: Mapping[str, Any]) -> Claim:
        try:
            fields = _filled({name: value for name, value in entry.items() if name != "each"}, row)
            for side in {"of", "over"} & set(fields.get("query", {})):
                fields["query"][side] = self._filter(fields["query"][side], row)
            return Claim(**fields)
        except KeyError as error:
            raise LedgerError(f"{self._file}: {entry['name']}: no row and no text has {error}") from error
        except ValidationError as error:
            raise LedgerError(f"{self._file}: {entry['name']}: {error_text(error)}") from error

    def _filter(self, values: Mapping[str, Any], row: Mapping[str, Any]) -> Filter:
        case = values["case"]
        template = self._document["axes"][case]
        if unread := sorted(values.keys() - template.keys() - {"case"}):
            raise LedgerError(
                f"{self._file}: axes of {case}: must have all that a query names (got {', '.join(unread)})"
            )
        axes = _filled(template, {**row, **values})
        return Filter(case=case, axes={axis: None if value == ABSENT else value for axis, value in axes.items()})


def _filled(template: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with a row's values filled into its texts.

    Entries whose whole value the row lacks are omitted.
    """
    filled: dict[str, Any] = {}
    for name, value in template.items():
        if isinstance(value, Mapping):
            filled[name] = _filled(value, row)
        elif not isinstance(value, str):
            filled[name] = value
        elif (whole := re.fullmatch(r"\{(\w+)\}", value)) is None:
            filled[name] = value.format_map(row)
        elif whole[1] in row:
            filled[name] = row[whole[1]]
    return filled


LEDGER: Final = Ledger()
CLAIMS: Final = LEDGER.claims
"""WarpDrive's claims about speed, then our goals."""
LINKS: Final = LEDGER.links
"""Address of each source."""


def is_claimed(case: str, base: Point, other: Point) -> bool:
    """True if a claim is about the ratio of two points."""
    queries = (claim.query for claim in CLAIMS if claim.query and claim.query.over and claim.query.of.case == case)
    return any(query.over.matches_point(base) and query.of.matches_point(other) for query in queries if query.over)

"""The ledger, claims.toml: what others claim and what we set out to reach, and the records that would show it."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from . import anchors
from .case import Point
from .judge import Estimate, Filter
from .nvml import pcie_bytes_per_s
from .record import Comparison, Record, are_on_two_cards
from .schema import Model, fault
from .show.records import metric
from .stats import median, median_interval

FILE: Final = Path(__file__).with_name("claims.toml")
UNNAMED: Final = "not named"
"""Hardware of a source that does not name it."""
ABSENT: Final = "absent"
"""Value of an axis that a point must not have; TOML has no null."""


class LedgerError(ValueError):
    """A file of claims breaks its rules; names file, claim and field."""


class Query(Model):
    """A figure that records show: of one point, or of one over another one in the same run."""

    quantity: Literal["Rate", "Ratio", "Learned", "TimesSooner", "Reached", "Traffic"]
    """Rate, Ratio: a metric. Learned, TimesSooner: the median over seeds of what a `learn` point takes to its
    threshold. Reached: seeds that reach it. Traffic: bytes over PCIe for each agent-step, as the GPU counted them."""
    of: Filter
    over: Filter | None = None
    """Base of a Ratio; of TimesSooner the point that takes longer."""
    metric: str = "env_steps_per_s"
    per: int | float = 1
    """Divisor: somebody else's figure on the same machine, which has no interval, or how many times as much went in."""
    per_env: bool = False
    """Divides by the point's environments, too: steps of all become iterations."""
    n_seeds: int = 1
    """Seeds that a run must have, lest it shows the lucky ones."""

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Records that it needs."""
        return (self.of,) if self.over is None else (self.of, self.over)

    @property
    def is_portable(self) -> bool:
        """Decides a claim on another machine than the claim's own, as a ratio on one machine does."""
        return self.quantity not in ("Rate", "Learned")

    def estimate(self, records: Sequence[Record], comparisons: Sequence[Comparison] = ()) -> Estimate | None:
        """Return what the newest comparison of its points shows, else the newest run that has all it needs.

        For seeds that reach it is the run with most of them. A run that has the two sides of a ratio on two cards does
        not have what it needs.
        """
        if self.quantity == "Ratio" and (compared := self._compared(records, comparisons)):
            return compared.over(self.per)
        bases = self.over.by_run(records) if self.over else {}
        shown = []
        for run_id, of_run in self.of.by_run(records).items():
            estimate = self._over_base(of_run, bases.get(run_id, [])) if self.over else self._figure(of_run)
            if estimate:
                shown.append(estimate)
        if self.quantity == "Reached":
            return max(shown, key=lambda estimate: len(estimate.records), default=None)
        return shown[0].over(self.per) if shown else None

    def _compared(self, records: Sequence[Record], comparisons: Sequence[Comparison]) -> Estimate | None:
        """Return the newest ratio of rates of two points that were measured in turns; a rate is one over a time."""
        assert self.over is not None, "a ratio has a base"
        by_id = {record.id: record for record in records if self.metric == _rate_of_time(record)}
        estimates = []
        for each in comparisons:
            a, b = by_id.get(each.a), by_id.get(each.b)
            if a is None or b is None or are_on_two_cards(a, b):
                continue
            ratio, n_rounds = each.ratio(), len(each.log_ratios)
            value, low, high = ratio.value, ratio.low, ratio.high
            if self.of.fits(b) and self.over.fits(a):
                a, b, value, low, high = b, a, 1 / value, 1 / high, 1 / low
            if self.of.fits(a) and self.over.fits(b):
                note = f"in turns, {n_rounds} rounds of new processes" if n_rounds > 1 else "in turns, one round"
                estimates.append(Estimate(value=value, low=low, high=high, records=(a, b), note=note))
        return max(estimates, key=lambda estimate: estimate.records[0].started_at, default=None)

    def _over_base(self, of_run: Sequence[Record], bases: Sequence[Record]) -> Estimate | None:
        """Return the ratio of two points in one run; that of rates is of one card, the one that was used last."""
        if self.quantity != "Ratio":
            of, base = self._figure(of_run), self._figure(bases)
            return of and base and self._ratio(of, base)
        for record in of_run:
            of, base = self._rate(record), self._figure([each for each in bases if not are_on_two_cards(record, each)])
            if of and base:
                return self._ratio(of, base)
        return None

    def is_on_two_cards(self, records: Sequence[Record]) -> bool:
        """Return whether a run has both sides of a ratio, and only on two cards."""
        if self.quantity != "Ratio" or self.over is None:
            return False
        bases = self.over.by_run(records)
        return any(
            run_id in bases and not self._over_base(of, bases[run_id]) for run_id, of in self.of.by_run(records).items()
        )

    def _ratio(self, of: Estimate, over: Estimate) -> Estimate:
        top, bottom = (over, of) if self.quantity == "TimesSooner" else (of, over)
        return Estimate(
            value=top.value / bottom.value,
            low=top.low / bottom.high,
            high=top.high / bottom.low,
            records=(*of.records, *over.records),
            note=of.note if of.note == over.note else f"{of.note} over {over.note}",
        )

    def _figure(self, of_run: Sequence[Record]) -> Estimate | None:
        """Return what the records of a point in one run show, the newest first."""
        if self.quantity in ("Learned", "TimesSooner"):
            return self._learned(_newest_of_each_seed(of_run))
        if self.quantity == "Reached":
            return self._reached(_newest_of_each_seed(of_run))
        read = _traffic if self.quantity == "Traffic" else self._rate
        return next((estimate for record in of_run if (estimate := read(record))), None)

    def _rate(self, record: Record) -> Estimate | None:
        if (rate := metric(record, self.metric)) is None:
            return None
        return Estimate(value=rate.value, low=rate.low, high=rate.high, records=(record,))

    def _learned(self, seeds: Sequence[Record]) -> Estimate | None:
        """Return the median over the seeds if most of them reached the threshold, a missed one being infinity."""
        times = [
            time.value / (float(record.point["n_envs"]) if self.per_env else 1)
            for record in seeds
            if (time := metric(record, self.metric))
        ]
        missed = len(seeds) - len(times)
        if len(seeds) < self.n_seeds or missed >= len(times):
            return None
        times += [math.inf] * missed
        low, high = median_interval(times)
        note = f"median of {len(seeds)} seeds" + (f", of which {missed} did not reach it" if missed else "")
        return Estimate(value=median(times), low=low, high=high, records=tuple(seeds), note=note)

    def _reached(self, seeds: Sequence[Record]) -> Estimate:
        """Return how many seeds reach the threshold; those that no record has may go either way."""
        n_reached = sum(metric(record, self.metric) is not None for record in seeds)
        n_below = sum(_plays_below(record) for record in seeds)
        notes = [
            f"{len(seeds)} of {self.n_seeds} seeds are measured" if len(seeds) < self.n_seeds else "",
            f"evaluated afterwards, {n_below} of {len(seeds)} play below it" if n_below else "",
        ]
        return Estimate(
            value=n_reached,
            low=n_reached,
            high=n_reached + self.n_seeds - len(seeds),
            records=tuple(seeds),
            note="; ".join(filter(None, notes)),
        )


def _rate_of_time(record: Record) -> str:
    """Name the rate whose inverse is the time that comparisons are of: that of the first kind of work."""
    return f"{next(iter(record.work_per_run or {}), '')}_per_s"


def _traffic(record: Record) -> Estimate | None:
    per_s, steps = pcie_bytes_per_s((record.telemetry or {}).get("gpm")), metric(record, "agent_steps_per_s")
    if per_s is None or steps is None:
        return None
    n_bytes = per_s / steps.value
    return Estimate(value=n_bytes, low=n_bytes, high=n_bytes, records=(record,))


def _newest_of_each_seed(of_run: Sequence[Record]) -> list[Record]:
    return list({record.point["seed"]: record for record in reversed(of_run)}.values())


def _plays_below(record: Record) -> bool:
    """Return whether a trained policy plays worse than the threshold asks for; not where it is doubtful."""
    after = metric(record, "return_after")
    return after is not None and after.high < float(record.point["threshold"])


class Claim(Model):
    """A figure that somebody published, or that we set out to reach."""

    name: str
    source: str
    says: str
    """The set-up, exactly."""
    low: int | float
    """Least that is claimed; with ``at_most``, most."""
    high: int | float | None = None
    """Upper end of a claimed range."""
    unit: str
    about: bool = False
    """The source says "about"."""
    at_most: bool = False
    hardware: str
    """Hardware of the source."""
    query: Query | None = None
    """Figure that decides it here."""
    differs: str = ""
    """Difference between ours and the set-up of the claim."""
    cannot: str = ""
    """Reason why no figure of ours can decide it."""
    made_by: str = ""
    """Run that made the figure, of our own claims; another one must show it again."""


# ------------------------------------------------------------------ reading


class Ledger:
    """The claims of a file, and the addresses of their sources."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._document: Mapping[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        self.links: Mapping[str, str] = self._document["sources"]

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Claims in the order of the file, those of several rows one by one.

        Raises:
            LedgerError: An entry breaks the rules.
        """
        return tuple(
            self._claim(entry, row) for entry in self._document["claims"] for row in self._rows(entry.get("each", []))
        )

    def _rows(self, each: Sequence[str | Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Return the product of lists of rows, each written out or named, with the texts of the file."""
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
            raise LedgerError(f"{self._file}: {entry['name']}: {fault(error)}") from error

    def _filter(self, values: Mapping[str, Any], row: Mapping[str, Any]) -> Filter:
        case = values["case"]
        axes = _filled(self._document["axes"][case], {**row, **values})
        return Filter(case=case, axes={axis: None if value == ABSENT else value for axis, value in axes.items()})


def _filled(template: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the values of a row in its texts, without the entries whose whole value the row lacks."""
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
"""WarpDrive's claims about speed, then what we set out to reach."""
LINKS: Final = LEDGER.links
"""Address of each source."""


def is_claimed(case: str, base: Point, other: Point) -> bool:
    """Return whether a claim is about the ratio of two points of a case."""
    queries = (claim.query for claim in CLAIMS if claim.query and claim.query.over and claim.query.of.case == case)
    return any(query.over.takes(base) and query.of.takes(other) for query in queries if query.over)

"""What a gate finds: a row for each point, what stood in the way, and the exit code that all of it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from bench.stats import Ratio
from bench.verdicts.pairing import Pair

Outcome = Literal["ok", "regression", "inconclusive"]


class Code(IntEnum):
    """Exit codes; what a script may rely on."""

    OK = 0
    REGRESSION = 1
    INCONCLUSIVE = 2
    NOTHING_OR_CHANGED = 3
    NOT_COMPARABLE = 4
    BROKEN = 5


TITLES: Final = {
    Code.OK: "ok",
    Code.REGRESSION: "regression",
    Code.INCONCLUSIVE: "inconclusive",
    Code.NOTHING_OR_CHANGED: "nothing measured, or the set of points changed",
    Code.NOT_COMPARABLE: "not comparable",
    Code.BROKEN: "broken",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A point, how much slower it became, and what follows."""

    pair: Pair
    ratio: Ratio
    """Time now over time in the baseline, with the noise between runs in its interval where that is known."""
    smallest: float
    """Smallest slow-down that can be told from noise here, as a share."""
    limit: float
    """Slow-down from which there is a regression: the threshold, but never less than ``smallest``."""
    p: float
    """One-sided, for being slower than the threshold, adjusted for the number of rows."""
    outcome: Outcome

    @property
    def text(self) -> str:
        """Say what was seen in one line."""
        ratio = self.ratio
        seen = f"{ratio.value - 1:+.2%} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})"
        return f"{seen}, a regression from {self.limit:.2%} on, p = {self.p:.2g}"


@dataclass(kw_only=True, slots=True)
class Report:
    """All that a gate saw."""

    baseline: str
    threshold: float
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Contended or throttled."""
    changed: list[str] = field(default_factory=list)
    """Points that are on one side alone."""
    refused: list[str] = field(default_factory=list)
    """Points that differ in what matters."""
    failed: list[str] = field(default_factory=list)
    """Points, or the gate, that broke."""
    notes: list[str] = field(default_factory=list)

    @property
    def code(self) -> Code:
        """What it comes to: the most serious thing that was seen."""
        outcomes = {row.outcome for row in self.rows}
        if self.failed:
            return Code.BROKEN
        if self.refused:
            return Code.NOT_COMPARABLE
        if self.changed or not self.rows:
            return Code.NOTHING_OR_CHANGED
        if "regression" in outcomes:
            return Code.REGRESSION
        return Code.INCONCLUSIVE if "inconclusive" in outcomes or self.left_out else Code.OK

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What is not about a row: what it is, and the text."""
        kinds = {
            "broken": self.failed,
            "not comparable": self.refused,
            "changed": self.changed,
            "left out": self.left_out,
        }
        return [(kind, text) for kind, texts in kinds.items() for text in texts]

"""What a figure is, as plain data: values, series, axes; and how backends, others and parts look in all figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bench.record import Record

# Okabe and Ito's colours, which people with any colour vision tell apart; marker and line say the same again.
BACKEND_STYLE: Final[dict[str, dict[str, str]]] = {
    "cpu": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "host": {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    "numba": {"color": "#009E73", "marker": "^", "linestyle": "-."},
    "pycuda": {"color": "#D55E00", "marker": "D", "linestyle": "-"},
}
GREY: Final = {"color": "#808080", "marker": "x", "linestyle": "none"}
"""Of what is not ours."""
PART_COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
HATCHES: Final = ("", "///")


@dataclass(frozen=True, slots=True)
class Dot:
    """One value with its 95 % interval, and what else is to be said of it."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""
    label: str = ""
    """Stands beside it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one name; a name looks the same in all panels of a figure."""

    name: str
    look: Mapping[str, Any]
    """``color``, ``marker``, ``linestyle``, ``markerfacecolor`` and ``hatch`` as matplotlib writes them."""
    dots: Sequence[Dot]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    series: Sequence[Series]
    ticks: Sequence[str] = ()
    """Names of 0, 1, ... on an axis that has no numbers; of rows from the top."""
    level: float | None = None
    """A value of y that means something, such as 1 of a ratio."""
    xlabel: str = ""
    """Instead of the figure's; so is ``ylabel``."""
    ylabel: str = ""
    right: tuple[str, float] | None = None
    """Label of a second axis on the right, and how many times the left one's values it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One figure."""

    name: str
    title: str
    explains: str
    """What a reader must know to read it."""
    statistic: str = "median and 95 % interval"
    """The same in a few words, for a figure that stands alone."""
    xlabel: str
    ylabel: str = ""
    kind: Literal["line", "history", "rows", "bars"] = "line"
    """Lines over x; lines over ticks; values along x in a row for each tick; bars there, one after the other."""
    log_x: bool = True
    log_y: bool = True
    columns: int = 2
    """Of panels on paper; rows and bars have one."""
    has_legend: bool = True
    """False: on paper the names of the rows say it all."""
    panels: Sequence[Panel]
    records: Sequence[Record]
    """What it is made from."""
    findings: Sequence[str] = ()
    """What can be read off it."""


def part_look(index: int, hatch: str) -> dict[str, str]:
    """Return the look of a bar's part by its place in `PART_COLORS`, with a hatch of `HATCHES`."""
    return {"color": PART_COLORS[index], "marker": "", "linestyle": "none", "hatch": hatch}

"""Columns and tables as plain data, and constructors of common columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

from warpdrive_min.errors import one_line

from ..core.archive import read_toml
from ..core.point import ORACLE, PLAIN, Figure, shared_axes
from ..core.record import Record, are_on_two_cards
from ..judge.evidence import busy
from .labels import (
    BUSY,
    ENV_NAME,
    UNSETTLED,
    WIDE,
    axis_label,
    backend_label,
    code_label,
    device_label,
    env_name,
    interval_text,
    is_ours,
    number,
    plain_text,
    plural,
    ratio_text,
)
from .records import best_on_cpu, first_metric, work_of

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """Column of a table: its cells' text and, for numbers, their values."""

    name: str
    """Header; line breaks show only on a terminal."""
    text: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    """Number to sort by; None: the cells are words."""
    is_right: bool = False
    """Right-aligned text, such as an interval."""
    is_choice: bool = False
    """True if a reader can filter by its few values."""
    is_code: bool = False
    is_long: bool = False
    """True for sentences, which may wrap."""
    width: int | None = None
    """Characters on a terminal; longer cells wrap."""
    link: Callable[[Row], str] | None = None
    """Returns the link of a cell; empty: none."""

    @property
    def is_number(self) -> bool:
        """True if aligned right."""
        return self.value is not None or self.is_right


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(Generic[Row]):
    """Rows of any kind with their columns, printed by `render`."""

    title: str = ""
    """Title; shown on a terminal only."""
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    caption: str = ""
    """Caption; below the table on a terminal, above it on paper."""
    label: str = ""
    """LaTeX label after ``tab:``."""
    n_grouping: int = 0
    """Leading columns whose repeated cells LaTeX leaves empty.

    A new value of the first column starts a group."""
    is_narrow: bool = False
    """True if it fits into one column of a page."""

    @property
    def cells(self) -> list[list[str]]:
        """Cell texts, row by row, each on one line."""
        return [[one_line(column.text(row)) for column in self.columns] for row in self.rows]

    @property
    def footnote(self) -> str:
        """Meaning of the signs in cells; empty without one."""
        text = "".join(chain.from_iterable(self.cells))
        return " ".join(f"{sign} {meaning}" for sign, meaning in FOOTNOTES.items() if sign in text)


TEXTS: Final = read_toml(Path(__file__).with_name("tables.toml"))
"""Captions of tables, and heads of their metrics."""

MakeTable: TypeAlias = Callable[[Sequence[Record]], Table[Any]]
"""Function from a case's evidence to its table."""


def column_of(column: Column[Record], record: Callable[[Row], Record]) -> Column[Row]:
    """Return a column of records as a column of rows."""
    return Column(column.name, lambda row: column.text(record(row)), is_right=column.is_number)


# ------------------------------------------------------------------ columns of records

NOTHING: Final = "\N{EN DASH}"
"""Cell of a missing axis or metric."""
SPREAD: Final = "spread"
MOST_SPREAD: Final = 1 / 4
"""Width of a spread over processes, in numbers, above which one gets a sign; a footnote says it."""
FOOTNOTES: Final = {
    UNSETTLED: "Times did not stabilise during the warm-up.",
    WIDE: "The spread over processes is wider than a quarter of the number.",
    BUSY: "Other processes used the CPU cores at the same time: the number is unreliable.",
}
"""Meaning of each sign."""


def axis_column(name: str, records: Iterable[Record]) -> Column[Record]:
    """Return the column of an axis: sortable numbers or filterable values."""

    def text(record: Record) -> str:
        value = record.point.get(name, NOTHING)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if not isinstance(value, str):
            return plain_text(value)
        return env_name(value) if name == "env" else ENV_NAME.get(value, value)

    is_right = name.startswith("n_")
    if any(isinstance(record.point.get(name, ""), str | bool) for record in records):
        return Column(axis_label(name), text, is_right=is_right, is_choice=True)
    return Column(axis_label(name), text, lambda record: float(record.point[name]), is_right=is_right)


def _backend(record: Record) -> str:
    if is_ours(record) and "backend" in record.point:
        return backend_label(record)
    return "GPU" if record.threads is None else f"CPU ({device_label(record.threads)})"


BACKEND: Final = Column("backend", _backend, is_choice=True)
"""Backend and threads of our code; device of other code."""


def metric_column(name: str, header: str = "") -> Column[Record]:
    """Return the column of a metric, with signs; see `signs`."""

    def value(record: Record) -> float | None:
        return found.value if (found := record.figure(name)) else None

    def text(record: Record) -> str:
        return NOTHING if (found := value(record)) is None else number(found) + signs(record, name)

    return Column(header or name.replace("_per_s", "/s").replace("_", " "), text, value)


def interval_column(name: str, header: str = SPREAD, write: Callable[[Figure], str] = interval_text) -> Column[Record]:
    """Return the column of a metric's spread, with its kind."""

    def text(record: Record) -> str:
        return write(found) if (found := record.figure(name)) else NOTHING

    return Column(header, text, is_right=True)


def signs(record: Record, name: str = "") -> str:
    """Return the signs of a warm-up, a metric's spread and a busy machine.

    Without a name the spread is the first metric's.
    """
    found = record.figure(name) if name else first_metric(record)
    is_wide = found is not None and found.kind in ("processes", "range") and _spread(found) > MOST_SPREAD
    return UNSETTLED * record.has_unsettled_warm_up + WIDE * is_wide + BUSY * bool(busy(record))


def signed_points(records: Sequence[Record]) -> list[str]:
    """Count the points of a figure that have a sign in tables, as text."""
    counts = {
        "times did not stabilise during the warm-up": sum(r.has_unsettled_warm_up for r in records),
        "other processes used the cores": sum(bool(busy(record)) for record in records),
    }
    return [f"{n} of {plural(len(records), 'point')}: {text}" for text, n in counts.items() if n]


def speed_up_text(record: Record) -> str:
    """Write how many times as fast ours is as the record's peer.

    If that spreads widely, only its ends.
    """
    if (found := record.figure("ours_over_peer")) is None:
        return ""
    shown = [found.low, found.high] if _spread(found) > MOST_SPREAD else [found.value]
    return " to ".join(f"{ratio_text(each)}x" for each in shown)


def _spread(figure: Figure) -> float:
    return (figure.high - figure.low) / abs(figure.value) if figure.value else 0.0


def value_column(header: str, value: Callable[[Record], float | None], write: Callable[[float], str]) -> Column[Record]:
    """Return the column of a number, with its format."""

    def text(record: Record) -> str:
        return NOTHING if (found := value(record)) is None else write(found)

    return Column(header, text, value)


def speedup_column(records: Iterable[Record], axis: str, base: str, *ignored: str) -> Column[Record]:
    """Return the column of the speed-up over a baseline; see `shared_axes`.

    Records of two cards have no ratio, nor do CPU records of different runs.

    Args:
        records: Records with the baselines among them.
        axis: Axis that tells a baseline.
        base: Value of a baseline on that axis.
        ignored: Axes in which a baseline may differ too.
    """

    def key(record: Record) -> tuple[Any, ...]:
        return shared_axes(record.point, axis, *ignored)

    bases = {key(record): record for record in records if record.point[axis] == base}
    names = sorted({backend_label(record) if axis == "backend" else base for record in bases.values()})

    def value(record: Record) -> float | None:
        return _ratio(record, found) if (found := bases.get(key(record))) else None

    return value_column(f"times {' and '.join(names or [base])}".replace("_", " "), value, ratio_text)


Sides = Callable[[Record], tuple[Record, Record] | None]
"""Returns a row's two records, the base last; None without a ratio."""


def best_cpu_columns(header: str, sides: Sides) -> list[Column[Record]]:
    """Return two columns: ratio to the best CPU code, and its name."""

    def ratio(record: Record) -> float | None:
        return _ratio(*found) if (found := sides(record)) else None

    def name(record: Record) -> str:
        return code_label(found[1]) if (found := sides(record)) else NOTHING

    return [value_column(header, ratio, ratio_text), Column("best CPU code", name, is_choice=True)]


def speedup_over_cpu_columns(records: Iterable[Record], *ignored: str) -> list[Column[Record]]:
    """Return the columns of the speed-up over CPU code.

    They are the best code measured in the same run, then vectorised NumPy, if any. Without a best code it is the
    reference, under its name.
    """
    shown = list(records)
    best = best_on_cpu(shown)
    if not best:
        return [speedup_column(shown, "backend", ORACLE, *ignored)]

    def sides(record: Record) -> tuple[Record, Record] | None:
        return (record, best[work_of(record)]) if work_of(record) in best else None

    columns = best_cpu_columns("times the best CPU code", sides)
    if any(record.point["backend"] == PLAIN for record in shown):
        columns.append(speedup_column(shown, "backend", PLAIN, *ignored))
    return columns


def _ratio(own: Record, base: Record) -> float | None:
    if are_on_two_cards(own, base) or (base.card is None and own.run_id != base.run_id):
        return None
    one, other = first_metric(own), first_metric(base)
    return one.value / other.value if one and other else None

"""Columns and the tables that they make: plain data for every renderer, and makers of the columns that many share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ..record import Metric, Record
from .labels import device_label, half_width, number, plain_text, three_digits
from .records import metric

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table: its cells' text and, if they are numbers, their values."""

    name: str
    """A line break in it shows on a terminal alone."""
    text: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    """Number that a reader sorts by; None: the cells are words."""
    is_right: bool = False
    """Words that are aligned as numbers are, such as an interval."""
    is_choice: bool = False
    """Few values, by which a reader can filter."""
    is_code: bool = False
    is_long: bool = False
    """Sentences, which may break."""
    width: int | None = None
    """Letters on a terminal, where a longer cell is folded."""
    link: Callable[[Row], str] | None = None
    """Address behind a cell; empty: none."""

    @property
    def is_number(self) -> bool:
        """Aligned to the right."""
        return self.value is not None or self.is_right


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(Generic[Row]):
    """A table: rows of any kind, and the columns that write them. `render` prints it in every format."""

    title: str = ""
    """Above it on a terminal."""
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    caption: str = ""
    """Below it on a terminal, above it on paper."""
    label: str = ""
    """LaTeX label after ``tab:``."""
    n_grouping: int = 0
    """Leading columns whose cells LaTeX leaves empty where they are as above; a new value of the first starts a
    group."""
    is_narrow: bool = False
    """It fits into one column of a page."""

    @property
    def cells(self) -> list[list[str]]:
        """Texts, row by row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]


MakeTable: TypeAlias = Callable[[Sequence[Record]], Table[Any]]
"""A table as a case declares it: made of records of that case, which are evidence."""


def column_of(column: Column[Record], record: Callable[[Row], Record]) -> Column[Row]:
    """Return a column of records as one of rows that each have, or begin with, a record."""
    return Column(column.name, lambda row: column.text(record(row)), is_right=column.is_number)


# ------------------------------------------------------------------ columns of records


def axis_column(name: str, header: str = "") -> Column[Record]:
    """Return the column of an axis, a number if its name says so."""
    return Column(header or name, lambda record: plain_text(record.point.get(name)), is_right=name.startswith("n_"))


def backend_column(suffix: Callable[[Record], str] = lambda record: "") -> Column[Record]:
    """Return the column of the backend: on a CPU with its threads, and if the build is exact."""

    def text(record: Record) -> str:
        threads = "" if record.threads is None else f" ({device_label(record.threads)})"
        return f"{record.point['backend']}{threads}{', exact' if record.point.get('exact') else ''}{suffix(record)}"

    return Column("backend", text)


def metric_column(name: str, header: str, write: Callable[[float], str] = number, missing: str = "") -> Column[Record]:
    """Return the column of a metric."""

    def value(record: Record) -> float | None:
        return found.value if (found := metric(record, name)) else None

    def text(record: Record) -> str:
        return missing if (found := value(record)) is None else write(found)

    return Column(header, text, value)


def interval_column(
    name: str, write: Callable[[Metric], str] = half_width, header: str = "+-", missing: str = "", is_right: bool = True
) -> Column[Record]:
    """Return the column of a metric's 95 % interval."""

    def text(record: Record) -> str:
        return write(found) if (found := metric(record, name)) else missing

    return Column(header, text, is_right=is_right)


def number_column(header: str, value: Callable[[Record], float | None], spec: str, missing: str = "") -> Column[Record]:
    """Return the column of a number that is no metric, written by a format such as ``.1%``."""

    def text(record: Record) -> str:
        return missing if (found := value(record)) is None else format(found, spec)

    return Column(header, text, value)


def over_column(
    header: str, name: str, records: Iterable[Record], axis: str, base: str, key: Callable[[Record], Any]
) -> Column[Record]:
    """Return the column of a metric over that of the baseline with the same key; empty where there is none.

    Args:
        header: Name of the column.
        name: Name of the metric.
        records: Records with the baselines among them.
        axis: Axis that tells a baseline.
        base: Value of a baseline on that axis.
        key: Returns what a record shares with its baseline.
    """
    bases = {key(record): record for record in records if record.point[axis] == base}

    def value(record: Record) -> float | None:
        other = bases.get(key(record))
        own, of_base = metric(record, name), other and metric(other, name)
        return own.value / of_base.value if own and of_base else None

    return Column(header, lambda record: "" if (found := value(record)) is None else three_digits(found), value)

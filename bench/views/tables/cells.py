"""What stands in the cells of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.table import Table

from bench.record import Metric, Record

OF_WORDS: Final = frozenset(
    {
        *("env", "backend", "until", "cache", "mode", "precision", "part"),
        *("implementation", "search", "algorithm", "network", "learner", "reference"),
        *("peer", "version", "work", "on", "counts as a step", "ours"),
    }
)
"""Columns of words; the others are of numbers."""


def number(value: float) -> str:
    """Write a rate with three digits and its SI letter."""
    for letter, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {letter}" if value < 999.5 * unit else f"{value / unit:,.0f} {letter}"
    return f"{value:.3g}"


def three_digits(value: float) -> str:
    """Write a number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(record: Record, base: Record | None, metric: str) -> str:
    """Write how many times the metric of a baseline a record has; nothing without a baseline."""
    if base is None or base.metrics is None or record.metrics is None:
        return ""
    return three_digits(record.metrics[metric].value / base.metrics[metric].value)


def axes_of(record: Record, *axes: str) -> tuple[Any, ...]:
    """Return the values of some axes, to sort and to group by."""
    return tuple(record.point.get(axis, "") for axis in axes)


def backend_name(record: Record) -> str:
    """Name the backend, on a CPU its threads, and an exact build."""
    threads = "" if record.threads is None else f" ({device(record.threads)})"
    return f"{record.point['backend']}{threads}{', exact' if record.point.get('exact') else ''}"


def device(count: int | None) -> str:
    """Name what did the work, by its threads, of which a GPU has none."""
    return "GPU" if count is None else f"{count} thread{'s' if count > 1 else ''}"


def half_width(metric: Metric) -> str:
    """Write half the 95 % interval as a share of the value."""
    return f"{(metric.high - metric.low) / 2 / metric.value:.1%}"


def value_of(value: Any) -> str:
    """Write the value of an axis."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def new_table(title: str, columns: Sequence[str]) -> Table:
    """Return a table without rows; words stand on the left, numbers on the right."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="left" if column in OF_WORDS else "right", no_wrap=True)
    return table

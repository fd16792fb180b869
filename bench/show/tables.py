"""Tables that cases share: every point, all known, the headline, the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ..core.point import ON_CPU
from ..core.record import Record, oldest_first
from .columns import (
    BACKEND,
    NOTHING,
    TEXTS,
    Column,
    MakeTable,
    Table,
    axis_column,
    best_cpu_columns,
    interval_column,
    metric_column,
    speedup_column,
    speedup_over_cpu_columns,
    value_column,
)
from .labels import axis_label, backend_label, commit_label, medians, number, ratio_text
from .records import (
    axes_except,
    best_on_cpu,
    derived,
    env_order,
    joules,
    latest,
    measured_alone,
    point_order,
    rate_of,
    size,
    work_of,
)

# ------------------------------------------------------------------ columns besides the metrics


def _joules(record: Record) -> float | None:
    return found.value if (found := joules(record)) else None


def _largest_error(record: Record) -> float | None:
    return record.correctness.max_error if record.correctness else None


def note_column(name: str, unit: str, scale: float = 1) -> Column[Record]:
    """Return the column of a numeric note, with its unit."""

    def value(record: Record) -> float | None:
        return None if record.notes.get(name) is None else float(record.notes[name]) * scale

    return value_column(f"{name.rsplit('_', 1)[0].replace('_', ' ')}, {unit}", value, number)


SHARE: Final = value_column("share of the machine's limit", lambda record: record.roofline, "{:.1%}".format)
JOULES: Final = value_column("J per million env-steps", _joules, "{:.3g}".format)
SPLIT: Final = (note_column("rollout_s", "ms", 1e3), note_column("update_s", "ms", 1e3))
ERROR: Final = value_column("largest error", _largest_error, "{:.1e}".format)
RUN: Final[Column[Record]] = Column("run", lambda record: record.run_id, is_choice=True)
BESIDE: Final = (SHARE, JOULES, *SPLIT, ERROR)
"""Columns after the metrics in every table."""
FULL_BESIDE: Final[tuple[Column[Record], ...]] = (
    *BESIDE,
    note_column("setup_s", "s"),
    note_column("peak_bytes", "GiB", 2**-30),
    value_column("samples", lambda record: record.n, str),
    Column("commit", commit_label, is_choice=True),
    RUN,
    Column("command", lambda record: record.command, is_code=True),
)
"""Columns after the metrics in tables of everything known."""

# ------------------------------------------------------------------ every point

FIRST: Final = ("env", "n_agents", "n_envs")
"""Axes of the leading columns."""
SAME: Final = 1e-6
"""Largest relative error of a rounded interval end."""


def every_point(
    records: Sequence[Record], *more: Column[Record], caption: str = "Case {case}. {medians}"
) -> Table[Record]:
    """Return a row per point with its differing axes; the caption has others.

    Args:
        records: Records of one case.
        more: Columns behind those of the metrics, shown where they say something of a record.
        caption: First part of the caption.
    """
    keys, same = differing(records)
    beside = []
    for column in BESIDE:
        texts = {column.text(record) for record in records}
        if len(texts) > 1:
            beside.append(column)
        elif texts != {NOTHING}:
            same.append(f"{column.name} {texts.pop()}")
    return Table(
        caption=caption.format(case=records[0].case, medians=medians(records)) + all_points(same),
        rows=sorted(records, key=point_order(keys)),
        columns=[
            *(axis_column(name, records) for name in keys),
            BACKEND,
            *_metric_columns(records),
            *_known(more, records),
            *beside,
        ],
        n_grouping=len(keys),
    )


def over_baseline(axis: str, base: str, *ignored: str) -> MakeTable:
    """Return a function that makes a table of points over a baseline."""
    if axis == "backend":
        return lambda records: every_point(records, *speedup_over_cpu_columns(records, *ignored))
    return lambda records: every_point(records, speedup_column(records, axis, base, *ignored))


def differing(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """Return the axes that differ between points, and the others as text."""
    found = dict.fromkeys(axis for record in records for axis in record.point if axis != "backend")
    every = sorted(found, key=lambda axis: FIRST.index(axis) if axis in FIRST else len(FIRST))
    values = {axis: {axis_column(axis, records).text(record) for record in records} for axis in every}
    differ = [axis for axis, texts in values.items() if len(texts) > 1]
    return differ, [f"{axis_label(axis)} {texts.pop()}" for axis, texts in values.items() if axis not in differ]


def all_points(same: Sequence[str]) -> str:
    """Return the sentence on the axes that all points share."""
    return f" All points: {', '.join(same)}." if same else ""


def _metric_columns(records: Sequence[Record]) -> list[Column[Record]]:
    """Return the columns of all rates, with spreads where they add information."""
    names = dict.fromkeys(name for record in records for name in record.metrics or {})
    first, *_ = rates = [name for name in names if not name.startswith("ns_per_")]

    def has_own_interval(record: Record, name: str) -> bool:
        own, base = record.figure(name), record.figure(first)
        if own is None or base is None or name == first:
            return own is not None and own.low != own.high
        return not math.isclose(own.low * base.value, base.low * own.value, rel_tol=SAME)

    columns = []
    for name in rates:
        columns.append(metric_column(name))
        if any(has_own_interval(record, name) for record in records):
            columns.append(interval_column(name))
    return columns


def _known(columns: Sequence[Column[Record]], records: Sequence[Record]) -> list[Column[Record]]:
    """Drop the columns that are empty for all records."""
    return [column for column in columns if any(column.text(record) != NOTHING for record in records)]


def all_known(records: Sequence[Record]) -> Table[Record]:
    """Return everything known about the records of a case."""
    axes = dict.fromkeys(axis for record in records for axis in record.point if axis != "backend")
    metrics = dict.fromkeys(name for record in records for name in record.metrics or {})
    return Table(
        rows=records,
        columns=[
            *(axis_column(name, records) for name in axes),
            BACKEND,
            *(column for name in metrics for column in (metric_column(name), interval_column(name))),
            *_known(FULL_BESIDE, records),
        ],
    )


# ------------------------------------------------------------------ headline


def headline(records: Sequence[Record]) -> Table[Record]:
    """Return the fastest record of each environment, compared with CPU code."""
    every = measured_alone(records)
    alone = [record for record in every if record.case == "env_step"]
    steps = [record for record in latest(alone) if not record.point.get("exact")]
    best = {record.point["env"]: record for record in sorted(steps, key=_agent_steps)}
    fastest = best_on_cpu(record for record in every if record.case in ("env_step", "peer"))
    runs = derived(oldest_first(alone)[::-1], point=axes_except, size=size, work=work_of, rate=_agent_steps)

    def over_backend(name: str) -> list[Column[Record]]:
        labels = {backend_label(record) for record in steps if record.point["backend"] == name}
        if not labels:
            return []
        is_base = runs["record"].map(lambda record: record.point["backend"] == name)
        bases = runs[is_base].drop_duplicates("size", keep="last").set_index("size")["rate"]
        ratios = runs["rate"] / runs["size"].map(bases[bases > 0])
        newest = ratios.dropna().groupby(runs["point"], sort=False).first().to_dict()
        if not any(axes_except(record) in newest for record in best.values()):
            return []
        header = f"times {' and '.join(sorted(labels))}"
        return [value_column(header, lambda record: newest.get(axes_except(record)), ratio_text)]

    def over_cpu() -> list[Column[Record]]:
        if fastest:
            newest = runs[runs["work"].isin(fastest.keys())].drop_duplicates("point").set_index("point")["record"]
            sides = {point: (record, fastest[work_of(record)]) for point, record in newest.items()}
            return best_cpu_columns("times the best CPU code", lambda record: sides.get(axes_except(record)))
        return [column for name in ON_CPU for column in over_backend(name)]

    return Table(
        caption=TEXTS["headline"],
        rows=sorted(best.values(), key=env_order),
        columns=[
            *(axis_column(name, steps) for name in FIRST),
            BACKEND,
            metric_column("env_steps_per_s"),
            interval_column("env_steps_per_s"),
            metric_column("agent_steps_per_s"),
            *over_cpu(),
            SHARE,
            ERROR,
            RUN,
        ],
    )


def _agent_steps(record: Record) -> float:
    return rate_of(record, "agent_steps_per_s")


# ------------------------------------------------------------------ of a machine


def hardware(records: Sequence[Record]) -> dict[str, str]:
    """Return each field of the machine, with all values in the records."""
    fields = dict.fromkeys(name for record in records for name in record.machine if name != "unread")
    found = {}
    for name in fields:
        values = dict.fromkeys(record.machine.get(name) for record in records)
        words = [f"{value / 2**30:.0f} GiB" if name == "memory_bytes" else str(value) for value in values if value]
        found[name.replace("_bytes", "").replace("_", " ")] = ", ".join(words) or "not known"
    return found

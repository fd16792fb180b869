"""The tables of a paper: where each environment does most, every point of each case, learning, starts, the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from bench.cases.scaling_case import efficiencies
from bench.record import Metric, Record
from bench.stats import interquartile_band, interquartile_mean, median, median_interval
from bench.views.figures import ENV_NAME, backend_label, latest, metric
from bench.views.figures.chart import BACKEND_STYLE
from bench.views.figures.series import is_ours
from bench.views.figures.words import counted, times
from bench.views.latex import Table
from bench.views.report import Column, columns, hardware, headline, title
from bench.views.tables.cells import number

KEPT: Final = {
    "share of the limit",
    "J per million env-steps",
    "rollout, ms",
    "update, ms",
    "largest error",
}
"""What is told of a point beside its metrics; the records in the folder have the rest."""
INTERVAL: Final = "95 % interval"


def tables(records: Sequence[Record], machine: str) -> dict[str, Table]:
    """Return the tables of one machine by their names, which are their labels after that of the machine."""
    made = {"hardware": hardware_table(records), **headline_table(records)}
    for case in sorted({record.case for record in records}):
        found = [record for record in latest(records) if record.case == case]
        made[case.replace("_", "-")] = OF_CASE.get(case, points_table)(found)
    return {
        name: replace(table, caption=f"{table.caption} {title(records)}.", label=f"{machine}:{name}")
        for name, table in made.items()
    }


def hardware_table(records: Sequence[Record]) -> Table:
    """Return the machine and its versions, as far as they are known."""
    shown = [
        [" ".join(ACRONYMS.get(word, word) for word in name.split()), value]
        for name, value in hardware(records).items()
        if "hash" not in name and value != "not known"
    ]
    return Table(
        names=["", "value"],
        rows=shown,
        right=[False, False],
        caption="Hardware and software.",
        is_narrow=True,
    )


ACRONYMS: Final = {"gpu": "GPU", "cpu": "CPU", "cuda": "CUDA", "os": "OS", "cpp": "C++"}


def headline_table(records: Sequence[Record]) -> dict[str, Table]:
    """Return where each environment does the most agent steps, by its name, if any was measured."""
    best, told = headline(records)
    if not best:
        return {}
    shown = [_closer(column) for column in told if column.name != "run"]
    caption = "Where each environment does the most agent steps; ratios are of one size in the newest run of both."
    return {"headline": _table(best, shown, caption)}


def _closer(column: Column[Record]) -> Column[Record]:
    """Write a column of `report` as papers do: words for axes, intervals with the digits that they need."""
    if column.name == INTERVAL:
        return _interval("env_steps_per_s")
    return Column(_axis_name(column.name), column.text, column.value)


# ------------------------------------------------------------------ points of a case


def points_table(records: Sequence[Record]) -> Table:
    """Return a row for each point, of the axes that differ; the caption says the others."""
    keys, same = _axes(records)
    names = list(dict.fromkeys(name for record in records for name in record.metrics or {}))
    rates = [name for name in names if not name.startswith("ns_per_")]
    measured = [column for name in rates for column in _measured(name, rates[0], records)]
    beside = []
    for column in (column for column in columns(records) if column.name in KEPT):
        texts = {column.text(record) for record in records}
        if len(texts) > 1:
            beside.append(column)
        else:
            same.append(f"{column.name} {texts.pop()}")
    ordered = sorted(records, key=_place(keys))
    told = [*map(_axis, keys), _backend(), *measured, *_efficiency(records), *beside]
    caption = f"Case {records[0].case}: medians over samples, the latest record of each point.{_all(same)}"
    return _table(ordered, told, caption, len(keys))


def starts_table(records: Sequence[Record]) -> Table:
    """Return a row for each part of the start of each point."""
    keys, same = _axes(records)
    axes = [*map(_axis, keys), _backend()]
    rows = [
        [*(axis.text(record) for axis in axes), name.removesuffix("_s").replace("_", " "), *_told(record, name)]
        for record in sorted(records, key=_place(keys))
        for name in record.metrics or {}
    ]
    return Table(
        names=[*(axis.name for axis in axes), "part", "s", INTERVAL],
        rows=rows,
        right=[*(axis.value is not None for axis in axes), False, True, True],
        caption=f"Start of a process, part after part: medians over fresh processes.{_all(same)}",
        n_grouping=len(axes),
    )


def _told(record: Record, name: str) -> list[str]:
    return [column.text(record) for column in (_value(name), _interval(name))]


def _axes(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """Return the axes that differ between points, sizes after environments, and in words those that do not."""
    found = dict.fromkeys(axis for record in records for axis in record.point if axis != "backend")
    every = sorted(found, key=lambda axis: FIRST.index(axis) if axis in FIRST else len(FIRST))
    values = {axis: {_axis(axis).text(record) for record in records} for axis in every}
    differ = [axis for axis, found in values.items() if len(found) > 1]
    return differ, [f"{_axis_name(axis)} {found.pop()}" for axis, found in values.items() if axis not in differ]


FIRST: Final = ("env", "n_agents", "n_envs")


def _all(same: Sequence[str]) -> str:
    return f" All points: {', '.join(same)}." if same else ""


NOTHING: Final = "\N{EN DASH}"
"""Stands where a point does not have an axis."""


def _axis(axis: str) -> Column[Record]:
    def text(record: Record) -> str:
        value = record.point.get(axis, NOTHING)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:,}" if isinstance(value, int) else ENV_NAME.get(str(value), str(value))

    def value(record: Record) -> float | None:
        return float(record.point[axis])

    return Column(_axis_name(axis), text, value if axis.startswith("n_") else None)


def _axis_name(axis: str) -> str:
    return "environment" if axis == "env" else axis.removeprefix("n_").replace("_", " ")


def _backend() -> Column[Record]:
    def text(record: Record) -> str:
        if is_ours(record) and "backend" in record.point:
            return backend_label(record)
        return "GPU" if record.threads is None else f"CPU ({counted(record.threads, 'thread')})"

    return Column("backend", text)


def _place(axes: Sequence[str]) -> Callable[[Record], Any]:
    """Return the order of rows: environments and backends as in the figures, numbers by their size."""
    order = [*ENV_NAME, *BACKEND_STYLE]

    def place(value: Any) -> tuple[float, str]:
        if isinstance(value, int | float):
            return value, ""
        return (order.index(value) if value in order else len(order)), str(value)

    return lambda record: [place(record.point.get(axis, -1)) for axis in (*axes, "backend")]


def _measured(name: str, first: str, records: Sequence[Record]) -> list[Column[Record]]:
    """Return the columns of a metric: with its interval, unless it has none or is a multiple of the first metric."""

    def tells(record: Record) -> bool:
        own, base = metric(record, name), metric(record, first)
        if own is None or base is None or name == first:
            return own is not None and own.low != own.high
        return not math.isclose(own.low * base.value, base.low * own.value, rel_tol=SAME)

    return [_value(name), *([_interval(name)] if any(map(tells, records)) else [])]


SAME: Final = 1e-6
"""Rounding moves an end of an interval by less, as a share of it."""


def _value(name: str) -> Column[Record]:
    def value(record: Record) -> float | None:
        found = metric(record, name)
        return found.value if found else None

    def text(record: Record) -> str:
        found = value(record)
        return NOTHING if found is None else number(found)

    return Column(name.replace("_per_s", "/s").replace("_", " "), text, value)


def _interval(name: str) -> Column[Record]:
    def text(record: Record) -> str:
        found = metric(record, name)
        return interval(found) if found else NOTHING

    return Column(INTERVAL, text, lambda record: None)


def interval(of: Metric) -> str:
    """Write an interval with four digits, which tell its ends apart, in the unit of its median."""
    letter = number(of.value).partition(" ")[2]
    low, high = (f"{end / UNITS[letter]:#.4g}".rstrip(".") for end in (of.low, of.high))
    return f"{low} to {high} {letter}".rstrip()


UNITS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def _efficiency(records: Sequence[Record]) -> list[Column[Record]]:
    if records[0].case != "scaling":
        return []
    shares = efficiencies(records)

    def value(record: Record) -> float | None:
        return shares.get(id(record))

    return [Column("efficiency", lambda r: NOTHING if value(r) is None else f"{value(r):.1%}", value)]


def _table(records: Sequence[Record], told: Sequence[Column[Record]], caption: str, n_grouping: int = 0) -> Table:
    return Table(
        names=[column.name for column in told],
        rows=[[column.text(record) for column in told] for record in records],
        right=[column.value is not None for column in told],
        caption=caption,
        n_grouping=n_grouping,
    )


# ------------------------------------------------------------------ learning


def learning_table(records: Sequence[Record]) -> Table:
    """Return the time and steps to the threshold, and the return afterwards, over seeds.

    A seed that misses the threshold counts as one that takes longer than all others.
    """
    axes = ("env", "algorithm", "learner", "n_envs", "threshold", "precision")
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in sorted(records, key=_place(axes)):
        groups.setdefault(tuple(record.point.get(axis, "") for axis in (*axes, "backend")), []).append(record)
    rows = []
    for seeds in groups.values():
        where = ", ".join(part for part in (backend_label(seeds[0]), str(seeds[0].point.get("precision", ""))) if part)
        reached = [record for record in seeds if metric(record, "seconds_to_threshold")]
        rows.append(
            [
                *(_axis(axis).text(seeds[0]) for axis in axes[:4]),
                f"{seeds[0].point['threshold']:g}",
                where,
                f"{len(reached)} of {len(seeds)}",
                *(_over_seeds(seeds, name) for name in ("env_steps_to_threshold", "seconds_to_threshold")),
                _returns(seeds),
            ]
        )
    names = ["environment", "algorithm", "learner", "envs", "threshold", "backend", "reached"]
    caption = (
        "Learning to a threshold: medians over seeds with their 95 % order-statistic intervals (the range of fewer "
        "than six seeds), and the interquartile mean of the return after training with its 95 % bootstrap interval."
    )
    return Table(
        names=[*names, "env steps to it", "s to it", "return after"],
        rows=rows,
        right=[*(name in ("envs", "threshold", "reached") for name in names), True, True, True],
        caption=caption,
        n_grouping=5,
    )


def _over_seeds(seeds: Sequence[Record], name: str) -> str:
    found = [each.value if (each := metric(record, name)) else math.inf for record in seeds]
    middle, (low, high) = median(found), median_interval(found)
    if math.isinf(middle):
        return "not reached"
    return f"{number(middle)} ({number(low)} to {'not reached' if math.isinf(high) else number(high)})"


def _returns(seeds: Sequence[Record]) -> str:
    values = np.array([record.metrics["return_after"].value for record in seeds if record.metrics])
    low, high = interquartile_band(values)
    return f"{float(interquartile_mean(values)):.4g} ({low:.4g} to {high:.4g})"


# ------------------------------------------------------------------ peers


def peers_table(records: Sequence[Record]) -> Table:
    """Return the rates of each peer and of ours in the same turns, and how many times as fast ours is."""

    def work(record: Record) -> str:
        return " ".join(str(record.point[axis]) for axis in ("work", "algorithm", "precision") if axis in record.point)

    def ratio(record: Record) -> str:
        assert record.metrics is not None
        found = record.metrics["ours_over_peer"]
        return f"{times(found.value)} ({times(found.low)} to {times(found.high)})"

    axes = [_axis("env"), Column("work", work), _axis("n_agents"), _axis("n_envs"), _axis("peer")]
    rates = [replace(_value("env_steps_per_s"), name="theirs"), replace(_value("ours_env_steps_per_s"), name="ours")]
    ordered = sorted(records, key=_place(("env", "work", "algorithm", "n_agents", "n_envs", "precision", "peer")))
    caption = "Environment steps per second of other people's software and of ours, medians in turns, with their ratio."
    return _table(
        ordered, [*axes, *rates, Column("ours over theirs", ratio, lambda record: None)], caption, n_grouping=4
    )


OF_CASE: Final = {"learn": learning_table, "peer": peers_table, "startup": starts_table}
"""Of these cases; that of others is `points_table`."""

"""Tables and charts of learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from bench.record import Curve, Record
from bench.show.charts import BACKEND_STYLE, Axis, Chart, DataPoint, MakeChart, Panel, Series
from bench.show.columns import Column, MakeTable, Table, axis, backend
from bench.show.labels import backend_label, environment, number, plural
from bench.show.records import by, grouped, latest, metric
from bench.show.tables import paper_axis, paper_order
from bench.stats import Floats, interquartile_band, interquartile_mean, median, median_interval

TASK: Final = ("env", "algorithm", "learner", "n_envs", "threshold", "precision")

# ------------------------------------------------------------------ tables

Seeds: TypeAlias = Sequence[Record]
"""Records of one task on one backend, each of a seed."""


def _seeds(records: Sequence[Record], order: Callable[[Record], Any]) -> list[Seeds]:
    groups: dict[Any, list[Record]] = {}
    for record in sorted(records, key=order):
        groups.setdefault(by(*TASK, "backend")(record), []).append(record)
    return list(groups.values())


def _values(seeds: Seeds, name: str) -> list[float]:
    return [found.value for record in seeds if (found := metric(record, name))]


def _first(column: Column[Record]) -> Column[Seeds]:
    return Column(column.name, lambda seeds: column.text(seeds[0]), is_right=column.is_number)


THRESHOLD: Final[Column[Seeds]] = Column("threshold", lambda seeds: f"{seeds[0].point['threshold']:g}", is_right=True)
REACHED: Final[Column[Seeds]] = Column(
    "reached", lambda seeds: f"{len(_values(seeds, 'seconds_to_threshold'))} of {len(seeds)}", is_right=True
)


def learnings(records: Sequence[Record]) -> Table[Seeds]:
    """Return the time and the steps to the threshold, the median over seeds, and the returns before and after."""

    def precision(record: Record) -> str:
        return f", {record.point['precision']}" if record.point.get("precision") else ""

    def to_threshold(header: str, name: str, write: Callable[[float], str]) -> Column[Seeds]:
        def text(seeds: Seeds) -> str:
            middle = median([*(reached := _values(seeds, name)), *[math.inf] * (len(seeds) - len(reached))])
            return write(middle) if math.isfinite(middle) else ""

        return Column(header, text, is_right=True)

    def returned(header: str, name: str) -> Column[Seeds]:
        return Column(header, lambda seeds: f"{median(_values(seeds, name)):.4g}", is_right=True)

    return Table(
        title="learn: training to a threshold; medians over seeds",
        rows=_seeds(records, by("env", "algorithm", "learner", "n_envs", "backend", "threshold", "precision")),
        columns=[
            *map(_first, (axis("env"), axis("algorithm"), axis("learner"), axis("n_envs", "envs"))),
            _first(backend(precision)),
            THRESHOLD,
            REACHED,
            to_threshold("env-steps to it", "env_steps_to_threshold", number),
            to_threshold("s to it", "seconds_to_threshold", "{:.3g}".format),
            returned("return before", "return_before"),
            returned("after", "return_after"),
        ],
    )


def paper_learnings(records: Sequence[Record]) -> Table[Seeds]:
    """Return the time and steps to the threshold, and the return afterwards, over seeds.

    A seed that misses the threshold counts as one that takes longer than all others.
    """

    def where(seeds: Seeds) -> str:
        return ", ".join(part for part in (backend_label(seeds[0]), str(seeds[0].point.get("precision", ""))) if part)

    def to_threshold(header: str, name: str) -> Column[Seeds]:
        def text(seeds: Seeds) -> str:
            found = [*(reached := _values(seeds, name)), *[math.inf] * (len(seeds) - len(reached))]
            middle, (low, high) = median(found), median_interval(found)
            if math.isinf(middle):
                return "not reached"
            return f"{number(middle)} ({number(low)} to {'not reached' if math.isinf(high) else number(high)})"

        return Column(header, text, is_right=True)

    def returns(seeds: Seeds) -> str:
        values = np.array(_values(seeds, "return_after"))
        low, high = interquartile_band(values)
        return f"{float(interquartile_mean(values)):.4g} ({low:.4g} to {high:.4g})"

    return Table(
        caption="Learning to a threshold: medians over seeds with their 95 % order-statistic intervals (the range of "
        "fewer than six seeds), and the interquartile mean of the return after training with its 95 % bootstrap "
        "interval.",
        rows=_seeds(records, paper_order(TASK)),
        columns=[
            *map(_first, map(paper_axis, TASK[:4])),
            THRESHOLD,
            Column("backend", where),
            REACHED,
            to_threshold("env steps to it", "env_steps_to_threshold"),
            to_threshold("s to it", "seconds_to_threshold"),
            Column("return after", returns, is_right=True),
        ],
        n_grouping=5,
    )


TABLES: Final[Mapping[str, Mapping[str, MakeTable]]] = {"learn": {"terminal": learnings, "paper": paper_learnings}}

# ------------------------------------------------------------------ charts

CURVE_POINTS: Final = 100
"""Points at which learning curves of several seeds are compared."""


def learning_over(name: str, axis: Axis, along: Callable[[Curve], Sequence[float]]) -> MakeChart:
    """Return what makes the chart of learning curves along their steps or seconds."""

    def learning(records: Sequence[Record]) -> Chart:
        shown = latest(records)
        panels = []
        for key, found in grouped(shown, *TASK).items():
            env, algorithm, learner, n_envs, threshold, precision = key
            series, counts = [], set()
            for maker, style in BACKEND_STYLE.items():
                seeds = [record for record in found if record.point["backend"] == maker]
                points = _mean_curve([curve_of(record, str(learner), along) for record in seeds], axis.is_log)
                if points:
                    series.append(Series(backend_label(seeds[0]), style | {"marker": ""}, points))
                    counts.add(len(seeds))
            if series:
                who = "" if learner == "shared" else f" ({learner})"
                how = f", {precision}" if precision else ""
                several = "" if min(counts) == max(counts) else f"{min(counts)} to "
                n_seeds = f"{several}{plural(max(counts), 'seed')}"
                title = f"{environment(str(env))}{who}, {algorithm}{how}, {int(n_envs):,} x, {n_seeds}"
                panels.append(Panel(title, series, level=float(threshold)))
        return Chart(
            name=name,
            title=f"Learning over {axis.label}",
            caption="Interquartile mean of the seeds' mean returns, with its 95 % bootstrap interval; seeds that are "
            "done keep their last return. The level is the task's threshold; x counts environments.",
            statistic="interquartile mean over seeds and its 95 % bootstrap interval; seeds that are done stay",
            x=axis,
            y=Axis("mean return", is_log=False),
            panels=panels,
            records=shown,
        )

    return learning


def curve_of(record: Record, learner: str, along: Callable[[Curve], Sequence[float]]) -> tuple[Floats, Floats]:
    """Return the places along its curve at which a seed has a return, and the returns."""
    assert record.curve is not None
    pairs = zip(along(record.curve), record.curve.mean_return[learner], strict=True)
    found = np.array([pair for pair in pairs if pair[1] is not None], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _mean_curve(curves: Sequence[tuple[Floats, Floats]], is_log: bool) -> list[DataPoint]:
    """Return the interquartile mean from where all seeds have begun to where the last one ends."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return []
    spaced = np.geomspace if is_log else np.linspace
    x = spaced(max(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves), CURVE_POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    columns = (x, interquartile_mean(values), *interquartile_band(values))
    note = plural(len(curves), "seed")
    return [
        DataPoint(float(x), float(y), float(low), float(high), note) for x, y, low, high in zip(*columns, strict=True)
    ]


CHARTS: Final[Mapping[str, Sequence[MakeChart]]] = {
    "learn": (
        learning_over("learning", Axis("environment steps", is_log=False), lambda curve: curve.env_steps),
        learning_over("learning-seconds", Axis("seconds of training"), lambda curve: curve.seconds),
    )
}

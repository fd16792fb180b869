"""Table and charts of each case (`TABLES`, `CHARTS`), and tables of single cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ...core.groups import groups_of
from ...core.record import Record
from ...core.stats import FEWEST_SEEDS, interquartile_band, interquartile_mean, median, median_interval
from ...judge.published.anchors import SOURCES
from ...workloads.cases import CASES
from ...workloads.shared import FP32, MEMBERS, continues_after_threshold
from ..charts import Chart, MakeChart
from ..columns import (
    BACKEND,
    NOTHING,
    SPREAD,
    TEXTS,
    Column,
    MakeTable,
    Table,
    axis_column,
    column_of,
    interval_column,
    metric_column,
    value_column,
)
from ..labels import SPREADS, backend_label, environment, medians, number, ratio_text
from ..records import by, measured_alone, point_order
from ..tables import all_points, differing, every_point, note_column, over_baseline
from . import env_charts, peers, run_charts
from .determinism import determinism_table
from .run_charts import TASK

# ------------------------------------------------------------------ train, scaling, memory


def training_table(records: Sequence[Record]) -> Table[Record]:
    """Return every point, compared with published rates of others on an H200."""

    def over_reference(record: Record) -> float | None:
        ratio = run_charts.ratio_to_published(record)
        return ratio if math.isfinite(ratio) else None

    def reference(record: Record) -> str:
        other = run_charts.reference_of(record)
        return NOTHING if other is None else other.by if other.env_steps_per_s else f"{other.by} does not run"

    over = value_column("times the published rate (on an H200, not interleaved)", over_reference, ratio_text)
    made = every_point(records, over, Column("source of the published rate", reference))
    named = {other.by for record in records if (other := run_charts.reference_of(record)) is not None}
    sources = [f"{name}: {source}." for name, source in SOURCES.items() if name in named]
    return replace(made, caption=" ".join([made.caption, *sources, run_charts.NOT_INTERLEAVED * bool(sources)]).strip())


def scaling_table(records: Sequence[Record]) -> Table[Record]:
    """Return every point, with its efficiency and its communication."""
    shares = run_charts.efficiencies(records)
    sent = lambda record: ((record.telemetry or {}).get("gpm") or {}).get("nvlink_sent_mib_per_s")  # noqa: E731
    return every_point(
        records,
        value_column("share of linear scaling", lambda record: shares.get(id(record)), "{:.1%}".format),
        value_column("share of time in NCCL", lambda record: record.notes.get("nccl_share"), "{:.1%}".format),
        value_column("sent over NVLink, MiB/s", sent, "{:.3g}".format),
    )


def memory_table(records: Sequence[Record]) -> Table[Record]:
    """Return every point, with fixed and free memory and the environments stepped."""
    notes = {"fixed_bytes": "bytes", "free_bytes": "bytes", "stepped_envs": "environments"}
    return every_point(records, *(note_column(name, unit) for name, unit in notes.items()))


# ------------------------------------------------------------------ startup


class Part(NamedTuple):
    """Part of a start."""

    record: Record
    metric: str


def starts_table(records: Sequence[Record]) -> Table[Part]:
    """Return a row for each part of the start of each point."""
    keys, same = differing(records)
    axes = [*(axis_column(name, records) for name in keys), BACKEND]
    ordered = sorted(records, key=point_order(keys))
    return Table(
        caption=TEXTS["startup"].format(medians=medians(records)) + all_points(same),
        rows=[Part(record, name) for record in ordered for name in record.metrics or {}],
        columns=[
            *(column_of(column, lambda part: part.record) for column in axes),
            Column("part", lambda part: part.metric.removesuffix("_s").replace("_", " ")),
            Column("median, s", lambda part: metric_column(part.metric).text(part.record), is_right=True),
            Column(SPREAD, lambda part: interval_column(part.metric).text(part.record), is_right=True),
        ],
        n_grouping=len(axes),
    )


def solutions_table(records: Sequence[Record]) -> Table[Record]:
    """Return the time to a solution, its parts and env steps, by point."""
    return every_point(records, caption=TEXTS["time_to_solution"])


# ------------------------------------------------------------------ learn

MOST_LISTED: Final = 100
"""Maximum number of runs listed one by one."""

Seeds: TypeAlias = Sequence[Record]
"""Records of a task on a backend: one per seed or population."""


def learning_table(records: Sequence[Record]) -> Table[Seeds]:
    """Return time and steps to the threshold and final return, over seeds."""
    groups = groups_of(sorted(records, key=point_order(TASK)), by(*TASK, "backend"))

    def where(seeds: Seeds) -> str:
        size = seeds[0].point.get("population")
        precision = str(seeds[0].point.get("precision", ""))
        parts = (backend_label(seeds[0]), precision, size and f"a population of {size:,}")
        return ", ".join(part for part in parts if part)

    def reached(seeds: Seeds) -> str:
        return f"{len(_values(seeds, 'env_steps_to_threshold')):,} of {_n_seeds(seeds):,}"

    def kept(seeds: Seeds) -> str:
        if not continues_after_threshold(seeds[0].point):
            return NOTHING
        threshold = float(seeds[0].point["threshold"])
        return f"{sum(value >= threshold for value in _values(seeds, 'return_after'))} of {len(seeds)}"

    def to_threshold(values: Sequence[float]) -> str:
        middle, (low, high) = median(values), median_interval(values)
        if math.isinf(middle):
            return "not reached"
        return f"{number(middle)} ({number(low)} to {'not reached' if math.isinf(high) else number(high)})"

    def worst(seeds: Seeds) -> str:
        values = _values(seeds, "return_after")
        return f"{min(values):.4g}" if values else NOTHING

    def each(seeds: Seeds) -> str:
        if _n_seeds(seeds) > MOST_LISTED:
            return NOTHING
        return " ".join(f"{value:.4g}" for value in sorted(_values(seeds, "return_after")))

    def returns(values: Sequence[float]) -> str:
        finite = np.array([value for value in values if not math.isinf(value)])
        if not finite.size:
            return NOTHING
        low, high = interquartile_band(finite)
        words = SPREADS["range"][0] if len(finite) < FEWEST_SEEDS else ""
        return f"{float(interquartile_mean(finite)):.4g} ({words}{low:.4g} to {high:.4g})"

    whole = (
        Column("seeds above the threshold at the end", kept, is_right=True),
        _over_seeds("return of the best checkpoint", "return_best", returns),
    )
    return Table(
        caption=TEXTS["learn"],
        rows=list(groups.values()),
        columns=[
            *(column_of(axis_column(name, records), lambda seeds: seeds[0]) for name in TASK[:4]),
            Column("threshold", lambda seeds: f"{seeds[0].point['threshold']:g}", is_right=True),
            Column("backend", where),
            Column("seeds that reach it", reached, is_right=True),
            _over_seeds("env steps to threshold", "env_steps_to_threshold", to_threshold),
            _over_seeds("seconds to threshold", "seconds_to_threshold", to_threshold),
            _over_seeds("return after training", "return_after", returns),
            Column("return of the worst seed", worst, is_right=True),
            Column("return of each seed", each, is_long=True),
            *(whole if any(continues_after_threshold(record.point) for record in records) else ()),
        ],
        n_grouping=5,
    )


def _over_seeds(header: str, name: str, write: Callable[[Sequence[float]], str]) -> Column[Seeds]:
    """Return the column of a metric of all seeds.

    A seed that misses the threshold counts as infinite time. Runs to the end are not timed.
    """

    def text(seeds: Seeds) -> str:
        reached = _values(seeds, name)
        if name == "seconds_to_threshold" and continues_after_threshold(seeds[0].point):
            return NOTHING
        return write([*reached, *[math.inf] * (_n_seeds(seeds) - len(reached))])

    return Column(header, text, is_right=True)


def _values(seeds: Seeds, name: str) -> list[float]:
    """Return a metric of each seed or population member that has it."""
    members = [record.notes[MEMBERS].get(name, []) for record in seeds if MEMBERS in record.notes]
    of_members = [value for values in members for value in values if value is not None]
    return of_members or [found.value for record in seeds if (found := record.figure(name))]


def _n_seeds(seeds: Seeds) -> int:
    """Return the number of runs; each member of a population is one."""
    return sum(int(record.point.get("population", 1)) for record in seeds)


def without_curve(records: Sequence[Record]) -> list[str]:
    """Name the timed trainings without a learning curve in the same precision."""

    def trained(case: str) -> set[tuple[str, str, str]]:
        points = [record.point for record in records if record.case == case]
        return {(str(p["env"]), str(p["algorithm"]), str(p.get("precision", FP32))) for p in points}

    return [
        f"{environment(env)} with {algorithm} in {precision}"
        for env, algorithm, precision in sorted(trained("train") - trained("learn"))
    ]


# ------------------------------------------------------------------ all cases


_TABLES: Final[Mapping[str, MakeTable]] = {
    "env_step": over_baseline("backend", "cpu", "exact"),
    "train": training_table,
    "scaling": scaling_table,
    "learn": learning_table,
    "startup": starts_table,
    "time_to_solution": solutions_table,
    "memory": memory_table,
    "determinism": determinism_table,
}
TABLES: Final[Mapping[str, MakeTable]] = {
    name: _TABLES.get(name) or (over_baseline(*case.over[:2]) if case.over else every_point)
    for name, case in CASES.items()
}
"""Table of each case: one of its own, else every point over the case's first baseline."""
CHARTS: Final[Sequence[tuple[MakeChart, Sequence[str]]]] = (
    (env_charts.throughput_chart, ("env_step", "many_steps", "peer")),
    (peers.peers, ("peer",)),
    (run_charts.training_chart, ("train",)),
    (run_charts.scaling_chart, ("scaling",)),
    (run_charts.learning_chart, ("learn",)),
    (env_charts.limits_chart, ("env_step",)),
    (env_charts.energy_chart, ("env_step",)),
    (run_charts.solutions_chart, ("time_to_solution", "peer_solution")),
)
"""Charts in their order, with the cases whose records they show."""


def charts(records: Iterable[Record]) -> list[Chart]:
    """Return every chart that has evidence in the records of one machine."""
    evidence = measured_alone(record for record in records if record.is_evidence)
    made = [make([each for each in evidence if each.case in cases]) for make, cases in CHARTS]
    return [chart for each in made if (chart := each.with_points()).panels]

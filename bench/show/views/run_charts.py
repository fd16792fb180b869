"""Charts of training, time to a solution, scaling over GPUs, learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...core.point import Curve, Metric
from ...core.record import Record
from ...core.stats import Floats, interquartile_band, interquartile_mean
from ...judge.published.anchors import CARD, JAX, WARPDRIVE, Anchor, anchor
from ...workloads.shared import ON_GPU, continues_after_threshold
from ..charts import GREY, Chart, DataPoint, Panel, Series, bars, chart, rows
from ..labels import BACKEND_NAME, BACKEND_STYLE, backend_label, environment, plural, ratio_text, size_and_run, software
from ..records import baselines, by, grouped, latest, rate_of, size

RATE: Final = "env_steps_per_s"

# ------------------------------------------------------------------ rows


def row_chart(
    name: str,
    records: Sequence[Record],
    axes: Sequence[str],
    panel: Callable[[tuple[Any, ...], Sequence[Record]], Panel],
    **words: str,
) -> Chart:
    """Return a chart of rows with a panel per value of axes.

    Args:
        name: Name of the chart.
        records: Records in the order of their rows.
        axes: Axes that tell panels apart.
        panel: Makes the panel of these values and records.
        words: Parts of the chart's texts.
    """
    return chart(name, [panel(key, found) for key, found in grouped(records, *axes).items()], records, **words)


def training_chart(records: Sequence[Record]) -> Chart:
    """Chart the throughput of training, with published rates of others."""
    shown = latest(records)

    def panel(key: tuple[Any, ...], found: Sequence[Record]) -> Panel:
        best = {iteration(record): record for record in sorted(found, key=lambda record: rate_of(record, RATE))}

        def label(record: Record) -> str:
            is_ahead = best[iteration(record)] is record and ratio_to_published(record) >= 1
            return _over_reference(record) if is_ahead else ""

        ours = rows(environment(*key), sorted(found, key=_iteration_order), RATE, iteration, label)
        return Panel(ours.title, [*ours.series, *_references(best, ours.ticks)], ours.ticks)

    has_others = any(math.isfinite(ratio_to_published(record)) for record in shown)
    others = " Rates of other software were measured on an NVIDIA H200; 2x is twice that rate, for our fastest backend."
    words = {
        "others": f"{others} {NOT_INTERLEAVED}",
        "twice": " (2x = twice the rate of other software)",
        "apart": f"; {NOT_INTERLEAVED[0].lower()}{NOT_INTERLEAVED[1:-1]}",
    }
    return row_chart("training", shown, ("env",), panel, **{name: text * has_others for name, text in words.items()})


IMPORT: Final = "import of torch or JAX"
SOLUTION_PARTS: Final = {IMPORT: "", "all else": "///"}
"""Parts of the time to a solution, with their hatches."""
IMPORT_METRICS: Final = ("import_torch_s", "import_s")
"""Metrics of the first part, of ours and of other software."""
MARK: Final = {"color": "black", "marker": "|", "linestyle": "none"}
"""Style of a total on its stacked bar."""


def solutions_chart(records: Sequence[Record]) -> Chart:
    """Chart the time from a command to a solved environment."""

    def row(record: Record) -> str:
        who = backend_label(record) if "backend" in record.point else f"{software(record)} {record.point['variant']}"
        return f"{who}, {record.point['caches']} caches"

    def part_of(record: Record, part: str) -> Metric | None:
        imported, total = record.figure(IMPORT_METRICS["backend" not in record.point]), record.figure("total_s")
        if part == IMPORT:
            return imported
        if imported is None or total is None:
            return None
        # The means of both parts need not add up to the total
        return Metric.exact(total.value - imported.value, "s", "lower")

    def seconds(record: Record, part: str) -> str:
        return f"{ratio_text(found.value)} s" if (found := part_of(record, part)) else ""

    def panel(key: tuple[Any, ...], found: Sequence[Record]) -> Panel:
        env, algorithm, threshold = key
        title = f"{environment(str(env))} with {algorithm}, to a mean return of {threshold:g}"
        made = bars(title, found, SOLUTION_PARTS, part_of, row, seconds)
        totals = [p for place, each in enumerate(found) for p in DataPoint.in_row(each, "total_s", place)]
        return Panel(made.title, [*made.series, Series("total, with its spread", MARK, totals)], made.ticks)

    def order(record: Record) -> tuple[Any, ...]:
        return record.point["caches"], "peer" in record.point, str(record.point.get("backend"))

    ordered = sorted(latest(records), key=order)
    return row_chart("time-to-solution", ordered, ("env", "algorithm", "threshold"), panel)


def iteration(record: Record) -> str:
    """Name a point of a trainer without its environment and backend."""
    point = record.point
    played = f"{plural(int(point['n_agents']), 'agent')} x {plural(int(point['n_steps']), 'step')}"
    usual = {"precision": "fp32", "mode": "graph" if point["backend"] in ON_GPU else "eager"}
    how = "".join(f", {point[axis]}" for axis, value in usual.items() if point[axis] != value)
    how += "" if point.get("fused", True) else ", not fused"
    how += ", exact" if point.get("exact") else ""
    algorithm = f"{point['algorithm']} " if "algorithm" in point else ""
    return f"{algorithm}{point['network']}, {point['n_envs']:,} x {played}{how}"


def _iteration_order(record: Record) -> tuple[Any, ...]:
    axes = by("algorithm", "network", "n_agents", "n_envs", "n_steps")
    how = (record.point["precision"] != "fp32", str(record.point["precision"]), record.point["mode"] == "eager")
    backend = list(BACKEND_STYLE).index(str(record.point["backend"]))
    more = not record.point.get("fused", True), bool(record.point.get("exact"))
    return (*axes(record), *how, *more, backend)


# ------------------------------------------------------------------ published rates of others

NOT_INTERLEAVED: Final = (
    "Published rates (anchors.toml) were not interleaved with ours; peers' table and figure have interleaved ratios."
)
REFERENCES: Final = {WARPDRIVE: ("x", "fp32"), JAX: ("+", "TF32")}
"""Marker of each software's rates, and the precision of its products."""


def reference_of(record: Record) -> Anchor | None:
    """Return the published rate for a record's point and card."""
    return anchor(record.point) if record.machine.get("gpu") == CARD else None


def ratio_to_published(record: Record) -> float:
    """Return a record's rate over the published one; infinite without one."""
    other = reference_of(record)
    return rate_of(record, RATE) / other.env_steps_per_s if other and other.env_steps_per_s else math.inf


def _over_reference(record: Record) -> str:
    other = reference_of(record)
    if other is None:
        return ""
    return f"{ratio_text(ratio_to_published(record))}x" if other.env_steps_per_s else f"{other.by} does not run"


def _references(best: Mapping[str, Record], names: Sequence[str]) -> list[Series]:
    """Return published rates in the rows of our fastest records.

    Only rates above ours have a label here; the other labels are on our points.
    """
    points: dict[str, list[DataPoint]] = {}
    for name, record in best.items():
        other = reference_of(record)
        if other is not None and other.env_steps_per_s is not None:
            rate, label = other.env_steps_per_s, "" if ratio_to_published(record) >= 1 else _over_reference(record)
            place = DataPoint(rate, names.index(name), rate, rate, "bench/judge/published/anchors.toml", label)
            points.setdefault(other.by, []).append(place)
    return [
        Series(f"{by} ({precision}, on an H200)", GREY | {"marker": marker}, points[by])
        for by, (marker, precision) in sorted(REFERENCES.items())
        if by in points
    ]


# ------------------------------------------------------------------ scaling


def scaling_chart(records: Sequence[Record]) -> Chart:
    """Chart the throughput of training over ranks, with linear scaling."""
    shown = latest(records)
    panels = []
    tasks = ("env", "n_agents", "n_envs", "precision", "algorithm", "scaling", "exact")
    for (env, n_agents, _, precision, algorithm, scaling, is_exact), found in grouped(shown, *tasks).items():
        counts = sorted({int(record.point["n_ranks"]) for record in found})
        if len(counts) > 1:
            where = "number of GPUs" if found[0].threads is None else "processes, each with the same number of threads"
            work = "same work in total" if scaling else "same work on each"
            how = f"{algorithm}, exact" if is_exact else f"{algorithm}, {precision}"
            title = f"{environment(str(env), int(n_agents))}, {how}, {work}"
            panels.append(Panel(title, _over_ranks(found, counts), [str(count) for count in counts], xlabel=where))
    return chart("scaling", panels, shown)


def efficiencies(records: Sequence[Record]) -> dict[int, float]:
    """Return rate(n) / (n * rate(1)) by `id` of each record.

    Records without a single-rank record in the same run are omitted.
    """
    single = baselines(records, "n_ranks", 1)
    return {
        id(record): rate_of(record, RATE) / (int(record.point["n_ranks"]) * rate_of(base, RATE))
        for record in records
        if (base := single.get(size(record, "n_ranks")))
    }


def _over_ranks(records: Sequence[Record], counts: Sequence[int]) -> list[Series]:
    """Return a series per backend over ranks, then linear scaling."""
    efficiency = efficiencies(records)
    reached, ideal = [], []
    for name, style in BACKEND_STYLE.items():
        points = []
        for record in sorted(records, key=lambda record: int(record.point["n_ranks"])):
            rate, n_ranks = record.figure(RATE), int(record.point["n_ranks"])
            if record.point["backend"] == name and rate is not None:
                share = f"{efficiency[id(record)]:.0%}" if n_ranks > 1 and id(record) in efficiency else ""
                place = counts.index(n_ranks)
                points.append(DataPoint(place, rate.value, rate.low, rate.high, size_and_run(record), share))
                if n_ranks == 1:
                    rates = [count * rate.value for count in counts]
                    multiples = [DataPoint(place, y, y, y, record.run_id) for place, y in enumerate(rates)]
                    ideal.append(Series("linear scaling", GREY | {"marker": "", "linestyle": ":"}, multiples))
        if points:
            reached.append(Series(BACKEND_NAME[name], style, points))
    return reached + ideal


# ------------------------------------------------------------------ learning curves

TASK: Final = ("env", "algorithm", "learner", "n_envs", "threshold", "precision", "until", "population")
CURVE_POINTS: Final = 100
"""Points where curves of several seeds are averaged."""


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """Learning curves along their steps or their seconds."""

    label: str
    along: Callable[[Curve], Sequence[float]]
    is_timed: bool = False
    """Leave out runs to the end."""

    def panels(self, records: Sequence[Record]) -> list[Panel]:
        """Return the panels of all tasks."""
        drawn = [record for record in records if record.curve]  # older records have none
        shown = [record for record in drawn if not (self.is_timed and continues_after_threshold(record.point))]
        panels = []
        for (*task, population), found in grouped(shown, *TASK).items():
            if not population:  # its record has one curve, the median of the members
                until, learner = task[-1], str(task[2])
                for policy in _policies(found) if until else [learner]:
                    panels += self._panel(task, policy, found)
        return panels

    def _panel(self, task: Sequence[Any], policy: str, records: Sequence[Record]) -> list[Panel]:
        """Return the panel of a policy, if it has curves."""
        env, algorithm, learner, n_envs, threshold, precision, until = task
        evaluated = "return_after" if policy == learner else f"return_after_{policy}"
        series, counts = [], set()
        for backend, style in BACKEND_STYLE.items():
            seeds = [record for record in records if record.point["backend"] == backend]
            if points := self._mean([self._curve(record, policy) for record in seeds]):
                series.append(Series(backend_label(seeds[0]), style | {"marker": ""}, points))
                counts.add(len(seeds))
            if ends := self._ends(seeds, policy, evaluated):
                marks = style | {"linestyle": "none", "markerfacecolor": "none"}
                series.append(Series(f"{backend_label(seeds[0])}, each seed", marks, ends))
        if not series:
            return []
        who = "" if policy == "shared" else f" ({policy})"
        how = "".join(f", {each}" for each in (precision, until and f"to the {until}") if each)
        several = "" if min(counts) == max(counts) else f"{min(counts)} to "
        n_seeds = f"{several}{plural(max(counts), 'seed')}"
        title = f"{environment(str(env))}{who}, {algorithm}{how}, {int(n_envs):,} environments, {n_seeds}"
        level = float(threshold) if policy == learner else None
        return [Panel(title, series, level=level, xlabel=self.label)]

    def _curve(self, record: Record, policy: str) -> tuple[Floats, Floats]:
        """Return the curve's positions with a mean return, and these returns."""
        assert record.curve is not None
        pairs = zip(self.along(record.curve), record.curve.mean_return[policy], strict=True)
        found = np.array([pair for pair in pairs if pair[1] is not None], dtype=np.float64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _ends(self, seeds: Sequence[Record], policy: str, name: str) -> list[DataPoint]:
        """Return each seed's evaluation after training, at the end of its curve."""
        found = [
            DataPoint(float(self.along(r.curve)[-1]), score.value, score.low, score.high, f"seed {r.point['seed']}")
            for r in seeds
            if r.curve and policy in r.curve.mean_return and (score := r.figure(name))
        ]
        return sorted(found, key=lambda point: point.x)

    def _mean(self, curves: Sequence[tuple[Floats, Floats]]) -> list[DataPoint]:
        """Return the interquartile mean, starting where all seeds have a return."""
        curves = [curve for curve in curves if len(curve[0])]
        if not curves:
            return []
        x = np.linspace(max(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves), CURVE_POINTS)
        values = np.stack([np.interp(x, *curve) for curve in curves])
        columns = (x, interquartile_mean(values), *interquartile_band(values))
        note = plural(len(curves), "seed")
        return [
            DataPoint(float(x), float(y), float(low), float(high), note)
            for x, y, low, high in zip(*columns, strict=True)
        ]


def _policies(seeds: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in seeds if record.curve for name in record.curve.mean_return))


OVER_STEPS: Final = LearningCurves("environment steps", lambda curve: curve.env_steps)
OVER_SECONDS: Final = LearningCurves("seconds of training", lambda curve: curve.seconds, is_timed=True)


def learning_chart(records: Sequence[Record]) -> Chart:
    """Chart learning curves over environment steps, each beside its seconds."""
    shown = latest(records)
    over_steps, over_seconds = OVER_STEPS.panels(shown), OVER_SECONDS.panels(shown)
    seconds = {panel.title: panel for panel in over_seconds}
    panels = [each for panel in over_steps for each in (panel, seconds.get(panel.title)) if each]
    return chart("learning", panels, shown)

"""Figures over time: returns along the training, and the rates of points along the commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from bench.cases import CASES
from bench.record import Curve, Record
from bench.stats import Floats, interquartile_band, interquartile_mean
from bench.views.figures.chart import BACKEND_STYLE, Chart, Dot, Panel, Series
from bench.views.figures.records import env_order, extent, first_metric, grouped, latest
from bench.views.figures.series import dots_along, is_ours
from bench.views.figures.words import backend_label, commit_label, counted, environment, quantity, sizes

CURVE_POINTS: Final = 100
"""At which learning curves of several seeds are compared."""


def learning_over(
    name: str, xlabel: str, along: Callable[[Curve], Sequence[float]], log_x: bool
) -> Callable[[Sequence[Record]], Chart]:
    """Return what makes the figure of learning curves along their steps or seconds."""

    def learning(records: Sequence[Record]) -> Chart:
        shown = latest(records)
        panels = []
        axes = ("env", "algorithm", "learner", "n_envs", "threshold", "precision")
        for key, found in grouped(shown, *axes).items():
            env, algorithm, learner, n_envs, threshold, precision = key
            series, counts = [], set()
            for backend, look in BACKEND_STYLE.items():
                seeds = [record for record in found if record.point["backend"] == backend]
                dots = _curve([curve_points(record, str(learner), along) for record in seeds], log_x)
                if dots:
                    series.append(Series(backend_label(seeds[0]), look | {"marker": ""}, dots))
                    counts.add(len(seeds))
            if series:
                who = "" if learner == "shared" else f" ({learner})"
                how = f", {precision}" if precision else ""
                title = f"{environment(str(env))}{who}, {algorithm}{how}, {int(n_envs):,} x, {_seeds(counts)}"
                panels.append(Panel(title, series, level=float(threshold)))
        return Chart(
            name=name,
            title=f"Learning over {xlabel}",
            explains="Interquartile mean of the seeds' mean returns, with its 95 % bootstrap interval; seeds that are "
            "done keep their last return. The level is the task's threshold; x counts environments.",
            statistic="interquartile mean over seeds and its 95 % bootstrap interval; seeds that are done stay",
            xlabel=xlabel,
            ylabel="mean return",
            log_x=log_x,
            log_y=False,
            panels=panels,
            records=shown,
        )

    return learning


def _seeds(counts: set[int]) -> str:
    """Say how many seeds the lines of a panel have."""
    least, most = min(counts), max(counts)
    return counted(most, "seed") if least == most else f"{least} to {most} seeds"


def curve_points(record: Record, learner: str, along: Callable[[Curve], Sequence[float]]) -> tuple[Floats, Floats]:
    """Return where along its curve a seed has a return, and which."""
    assert record.curve is not None
    pairs = zip(along(record.curve), record.curve.mean_return[learner], strict=True)
    found = np.array([pair for pair in pairs if pair[1] is not None], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _curve(curves: Sequence[tuple[Floats, Floats]], log_x: bool) -> list[Dot]:
    """Return the interquartile mean from where all seeds have begun to where the last one ends."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return []
    spaced = np.geomspace if log_x else np.linspace
    x = spaced(max(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves), CURVE_POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    columns = (x, interquartile_mean(values), *interquartile_band(values))
    note = counted(len(curves), "seed")
    return [Dot(float(x), float(y), float(low), float(high), note) for x, y, low, high in zip(*columns, strict=True)]


def _place_of(run_ids: Sequence[str], record: Record) -> float:
    return float(run_ids.index(record.run_id))


def _case_order(record: Record) -> int:
    """Return the place of a record's case in the list of cases; one that is no more is behind it."""
    return list(CASES).index(record.case) if record.case in CASES else len(CASES)


def history(records: Sequence[Record]) -> Chart:
    """Return of each case and environment the largest point that several runs timed, in the order in which they did.

    What others' implementations do is no history of ours.
    """
    repeated = [r for r in records if r.samples_ns and r.point.get("backend") in BACKEND_STYLE and is_ours(r)]
    panels, shown = [], []
    runs: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Record]]] = {}
    for record in sorted(repeated, key=lambda record: (_case_order(record), env_order(record), record.started_at)):
        place = tuple((axis, value) for axis, value in sorted(record.point.items()) if axis != "backend")
        point = (record.case, record.case_version, place)
        runs.setdefault(point, {}).setdefault((record.point["backend"], record.threads), {})[record.run_id] = record
    for (case, *_), backends in _largest(runs).items():
        found = {run_id: record for each in backends.values() if len(each) > 1 for run_id, record in each.items()}
        ordered = sorted(found.values(), key=lambda record: record.started_at)
        ids = [record.run_id for record in ordered]
        series = []
        for (backend, _), each in sorted(backends.items(), key=lambda item: list(BACKEND_STYLE).index(item[0][0])):
            if len(each) > 1:
                own = list(each.values())
                dots = dots_along(own, first_metric, partial(_place_of, ids))
                series.append(Series(backend_label(own[0]), BACKEND_STYLE[backend], dots))
                shown += own
        if series:
            unit = quantity(next(iter(ordered[0].metrics or {})))
            commits = [commit_label(record) for record in ordered]
            panels.append(Panel(_place(case, ordered[0].point), series, commits, ylabel=unit))
    return Chart(
        name="history",
        title="History over commits",
        explains="Of each case and environment the largest point that several runs have, oldest first; ticks name the "
        "commit. Runs may differ in preset and card: their records say so.",
        kind="history",
        xlabel="commit",
        log_x=False,
        panels=panels,
        records=shown,
    )


Runs = Mapping[tuple[Any, ...], Mapping[tuple[Any, ...], Mapping[str, Record]]]
"""Of each point, by backend, the record of each run."""


def _largest(runs: Runs) -> Runs:
    """Return of each case, its version, and environment the largest point that a backend has in several runs."""
    kept: dict[tuple[Any, ...], tuple[float, tuple[Any, ...]]] = {}
    for point, backends in runs.items():
        found = [record for each in backends.values() if len(each) > 1 for record in each.values()]
        if found:
            kind = (*point[:2], found[0].point.get("env"))
            kept[kind] = max(kept.get(kind, (0.0, ())), (extent(found[0]), point), key=lambda ranked: ranked[0])
    return {point: runs[point] for _, point in kept.values()}


def _place(case: str, point: Mapping[str, Any]) -> str:
    """Name a point without its backend."""
    if case in ("env_step", "neighbor_search"):
        more = [f"exact={point['exact']}"] if point.get("exact") else []
        more += [f"{point['neighbor_search']}".replace("_", " ")] if "neighbor_search" in point else []
        return ", ".join([environment(point["env"], agents=point["n_agents"], envs=point["n_envs"]), *more])
    return f"{case.replace('_', ' ')}: {sizes(point)}"

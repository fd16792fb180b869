"""Charts across cases: roofline, single kernels, history over commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..core.machine import LIMITS
from ..core.point import Figure
from ..core.record import Record, oldest_first
from .charts import GREY, Chart, DataPoint, Panel, Series, by_code, chart, points_along, rows
from .labels import (
    BACKEND_STYLE,
    ENV_NAME,
    backend_label,
    commit_label,
    environment,
    is_ours,
    point_label,
    quantity,
    size_and_run,
)
from .records import axes_except, derived, derived_metric, env_order, first_metric, latest, plain, total_size

# ------------------------------------------------------------------ roofline


def roofline(records: Sequence[Record]) -> Chart:
    """Return operations per second over operations per byte, below the roofline."""
    shown = [
        r
        for r in plain(latest(records))
        if r.roofline is not None and r.samples_ns and r.machine.get("gpu") in LIMITS and _intensity(r)
    ]
    by_case = sorted(shown, key=lambda record: (record.case != "env_step", record.case, env_order(record)))
    ends = [scale * end(map(_intensity, shown)) for end, scale in ((min, 0.5), (max, 2))] if shown else []
    panels = []
    for title, found in derived(by_case, work=_work).groupby("work", sort=False)["record"]:
        series = []
        for name, (style, own) in by_code(list(found)).items():
            ordered = sorted(((_intensity(record), _ops_per_s(record), record) for record in own), key=lambda p: p[:1])
            points = [DataPoint(x, each.value, each.low, each.high, size_and_run(r)) for x, each, r in ordered]
            series.append(Series(name, style | {"linestyle": "none"}, points))
        allowed = LIMITS[str(found.iloc[0].machine["gpu"])]
        ridge = allowed.ops_per_s / allowed.bytes_per_s
        corners = [(x, min(allowed.ops_per_s, x * allowed.bytes_per_s)) for x in sorted({*ends, max(ends[0], ridge)})]
        ceiling = [DataPoint(x, y, y, y, allowed.source) for x, y in corners]
        series.append(Series("limit of the device", {"color": GREY["color"], "marker": "", "linestyle": "-"}, ceiling))
        panels.append(Panel(title, series))
    return chart("roofline", panels, shown)


def _work(record: Record) -> str:
    env = ENV_NAME.get(str(record.point.get("env")), "")
    return env if record.case == "env_step" else f"{record.case}{env and ', '}{env}"


def _intensity(record: Record) -> float:
    """Return operations per byte; 0 if unknown."""
    n_bytes, n_ops = (record.notes.get(name) for name in ("bytes_per_run", "ops_per_run"))
    return n_ops / n_bytes if n_bytes and n_ops else 0.0


def _ops_per_s(record: Record) -> Figure:
    rate, amount = first_metric(record), next(iter((record.work_per_run or {}).values()))
    assert rate is not None, "evidence of repeated work has a rate"
    ops = record.notes["ops_per_run"] / amount
    return derived_metric(ops * rate.value, ops * rate.low, ops * rate.high, rate.kind)


# ------------------------------------------------------------------ kernels


def kernels(records: Sequence[Record]) -> Chart:
    """Return the rates of single kernels, except samplers, by case."""
    shown = [record for record in latest(records) if record.scope == "kernel" and record.case != "sampler"]
    panels = []
    for case in dict.fromkeys(record.case for record in shown):
        found = sorted((record for record in shown if record.case == case), key=lambda r: (env_order(r), total_size(r)))
        name = next(iter(found[0].metrics or {}))
        title, xlabel = case.replace("_", " "), quantity(name)
        panels.append(rows(title, found, name, lambda record: point_label(record.point), xlabel=xlabel))
    return chart("kernels", panels, shown)


# ------------------------------------------------------------------ history


def history(records: Sequence[Record]) -> Chart:
    """Return the largest repeated point of each case and environment, over runs.

    Other software has no history here.

    Args:
        records: Records whose cases come in the order of the panels.
    """
    repeated = [r for r in records if r.samples_ns and r.point.get("backend") in BACKEND_STYLE and is_ours(r)]
    points = _repeated_points(repeated, list(dict.fromkeys(record.case for record in records)))
    panels = [_history_of(of_point) for of_point in points]
    return chart("history", panels, [record for of_point in points for record in of_point["record"]])


def _history_of(of_point: pd.DataFrame) -> Panel:
    """Return a point's panel: a series per backend and thread count."""
    runs = {record.run_id: record for record in oldest_first(of_point["record"])}
    places = {run_id: float(place) for place, run_id in enumerate(runs)}
    first = next(iter(runs.values()))
    series = [
        Series(backend_label(own.iloc[0]), style, points_along(own, first_metric, lambda record: places[record.run_id]))
        for backend, style in BACKEND_STYLE.items()
        for _, own in of_point[of_point["backend"] == backend].groupby("threads", sort=False)["record"]
    ]
    unit = quantity(next(iter(first.metrics or {})))
    return Panel(_title(first), series, [*map(commit_label, runs.values())], ylabel=unit)


def _repeated_points(records: Sequence[Record], cases: Sequence[str]) -> list[pd.DataFrame]:
    """Return the runs of each case's largest repeated point.

    A frame has a row for each run of each backend and number of threads.
    """
    ordered = sorted(oldest_first(records), key=lambda record: (cases.index(record.case), env_order(record)))
    of_backend = {
        "kind": lambda record: (record.case, record.case_version, record.point.get("env")),
        "point": lambda record: axes_except(record, "backend"),
        "backend": lambda record: record.point["backend"],
        "threads": lambda record: record.threads or 0,
    }
    frame = derived(ordered, **of_backend, run_id=lambda record: record.run_id)
    runs = frame.groupby([*of_backend, "run_id"], sort=False)["record"].last().reset_index()
    several = runs[runs.groupby([*of_backend], sort=False)["run_id"].transform("size") > 1]
    extents = several["record"].map(total_size).astype(float)
    largest = several.loc[extents.groupby(several["kind"], sort=False).idxmax(), ["kind", "point"]]
    return [of_point for _, of_point in largest.merge(several).groupby("kind", sort=False)]


def _title(record: Record) -> str:
    """Name a point without its backend."""
    case = record.case
    point: Mapping[str, Any] = record.point
    if case in ("env_step", "neighbor_search"):
        more = [f"exact={point['exact']}"] if point.get("exact") else []
        more += [f"{point['neighbor_search']}".replace("_", " ")] if "neighbor_search" in point else []
        return ", ".join([environment(point["env"], agents=point["n_agents"], envs=point["n_envs"]), *more])
    return f"{case.replace('_', ' ')}: {point_label(point)}"

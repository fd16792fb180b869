"""Charts of all cases together: the device's roofline, single kernels, and the history over commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..core.groups import groups_of
from ..core.machine import LIMITS
from ..core.point import Metric
from ..core.record import Record, oldest_first
from ..core.stats import median, median_interval
from .charts import BACKEND_STYLE, GREY, Axis, Chart, DataPoint, MakeChart, Panel, Series, by_maker, points_along, rows
from .labels import (
    ENV_NAME,
    MEDIANS,
    backend_label,
    commit_label,
    environment,
    is_ours,
    point_label,
    quantity,
    size_and_run,
)
from .records import between, env_order, extent, first_metric, latest, plain

# ------------------------------------------------------------------ roofline


def roofline(records: Sequence[Record]) -> Chart:
    """Return the operations a second over the operations for each byte, below what the device allows."""
    shown = [r for r in plain(latest(records)) if r.roofline is not None and r.samples_ns and _intensity(r)]
    by_case = sorted(shown, key=lambda record: (record.case != "env_step", record.case, env_order(record)))
    ends = [scale * end(map(_intensity, shown)) for end, scale in ((min, 0.5), (max, 2))] if shown else []
    panels = []
    for title, found in groups_of(by_case, _work).items():
        series = []
        for name, (style, own) in by_maker(found).items():
            ordered = sorted(((_intensity(record), _ops_per_s(record), record) for record in own), key=lambda p: p[:1])
            points = [DataPoint(x, each.value, each.low, each.high, size_and_run(r)) for x, each, r in ordered]
            series.append(Series(name, style | {"linestyle": "none"}, points))
        allowed = LIMITS[str(found[0].machine["gpu"])]
        ridge = allowed.ops_per_s / allowed.bytes_per_s
        corners = [(x, min(allowed.ops_per_s, x * allowed.bytes_per_s)) for x in sorted({*ends, max(ends[0], ridge)})]
        ceiling = [DataPoint(x, y, y, y, allowed.source) for x, y in corners]
        series.append(Series("the device", {"color": GREY["color"], "marker": "", "linestyle": "-"}, ceiling))
        panels.append(Panel(title, series))
    return Chart(
        name="roofline",
        title="Roofline",
        caption="Bytes and operations are the least that the work needs, so what a run does beyond that lowers its "
        "dot. On the slope memory is the limit, on the flat part arithmetic.",
        x=Axis("operations for each byte"),
        y=Axis("operations per second"),
        columns=3,
        panels=panels,
        records=shown,
    )


def _work(record: Record) -> str:
    env = ENV_NAME.get(str(record.point.get("env")), "")
    return env if record.case == "env_step" else f"{record.case}{env and ', '}{env}"


def _intensity(record: Record) -> float:
    """Return the operations for each byte; 0 where a record does not say, or does not count them."""
    n_bytes = record.notes.get("bytes_per_run")
    return record.notes["ops_per_run"] / n_bytes if n_bytes else 0.0


def _ops_per_s(record: Record) -> Metric:
    assert record.samples_ns is not None
    low_ns, high_ns = median_interval(record.samples_ns)
    value, low, high = (1e9 * record.notes["ops_per_run"] / ns for ns in (median(record.samples_ns), high_ns, low_ns))
    return between(value, low, high)


# ------------------------------------------------------------------ kernels


def kernels(records: Sequence[Record]) -> Chart:
    """Return the rates of single kernels other than the sampler, a panel for each case and a row for each size."""
    shown = [record for record in latest(records) if record.scope == "kernel" and record.case != "sampler"]
    panels = []
    for case in dict.fromkeys(record.case for record in shown):
        found = sorted((record for record in shown if record.case == case), key=lambda r: (env_order(r), extent(r)))
        name = next(iter(found[0].metrics or {}))
        title, xlabel = case.replace("_", " "), quantity(name)
        panels.append(rows(title, found, name, lambda record: point_label(record.point), xlabel=xlabel))
    return Chart(
        name="kernels",
        title="Kernels",
        caption=f"Single kernels, and what torch offers for the same work. {MEDIANS}",
        kind="rows",
        x=Axis(),
        panels=panels,
        records=shown,
    )


# ------------------------------------------------------------------ history


def history(records: Sequence[Record]) -> Chart:
    """Return of each case and environment the largest point that several runs timed, in the order in which they did.

    Others' implementations are no history of ours.

    Args:
        records: Records whose cases come in the order of the panels.
    """
    repeated = [r for r in records if r.samples_ns and r.point.get("backend") in BACKEND_STYLE and is_ours(r)]
    cases = list(dict.fromkeys(record.case for record in records))
    panels, shown = [], []
    runs: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Record]]] = {}
    for record in sorted(oldest_first(repeated), key=lambda r: (cases.index(r.case), env_order(r))):
        place = tuple((axis, value) for axis, value in sorted(record.point.items()) if axis != "backend")
        point = (record.case, record.case_version, place)
        runs.setdefault(point, {}).setdefault((record.point["backend"], record.threads), {})[record.run_id] = record
    for (case, *_), backends in _largest(runs).items():
        found = {run_id: record for each in backends.values() if len(each) > 1 for run_id, record in each.items()}
        ordered = oldest_first(found.values())
        ids = [record.run_id for record in ordered]
        series = []
        for (backend, _), each in sorted(backends.items(), key=lambda item: list(BACKEND_STYLE).index(item[0][0])):
            if len(each) > 1:
                own = list(each.values())
                points = points_along(own, first_metric, partial(_place_of, ids))
                series.append(Series(backend_label(own[0]), BACKEND_STYLE[backend], points))
                shown += own
        if series:
            unit = quantity(next(iter(ordered[0].metrics or {})))
            commits = [commit_label(record) for record in ordered]
            panels.append(Panel(_title(case, ordered[0].point), series, commits, ylabel=unit))
    return Chart(
        name="history",
        title="History over commits",
        caption="Of each case and environment the largest point that several runs have, oldest first; ticks name the "
        "commit. Runs may differ in preset and card: their records say so.",
        x=Axis("commit", is_log=False),
        panels=panels,
        records=shown,
    )


Runs = Mapping[tuple[Any, ...], Mapping[tuple[Any, ...], Mapping[str, Record]]]
"""Records of each run, by point and backend."""


def _largest(runs: Runs) -> Runs:
    """Return of each case, its version, and environment the largest point that a backend has in several runs."""
    kept: dict[tuple[Any, ...], tuple[float, tuple[Any, ...]]] = {}
    for point, backends in runs.items():
        found = [record for each in backends.values() if len(each) > 1 for record in each.values()]
        if found:
            kind = (*point[:2], found[0].point.get("env"))
            kept[kind] = max(kept.get(kind, (0.0, ())), (extent(found[0]), point), key=lambda ranked: ranked[0])
    return {point: runs[point] for _, point in kept.values()}


def _place_of(run_ids: Sequence[str], record: Record) -> float:
    return float(run_ids.index(record.run_id))


def _title(case: str, point: Mapping[str, Any]) -> str:
    """Name a point without its backend."""
    if case in ("env_step", "neighbor_search"):
        more = [f"exact={point['exact']}"] if point.get("exact") else []
        more += [f"{point['neighbor_search']}".replace("_", " ")] if "neighbor_search" in point else []
        return ", ".join([environment(point["env"], agents=point["n_agents"], envs=point["n_envs"]), *more])
    return f"{case.replace('_', ' ')}: {point_label(point)}"


CHARTS: Final[Sequence[MakeChart]] = (roofline, kernels, history)

"""Tables and charts of rollouts, training, and training on several GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.anchors import JAX, SOURCES, WARPDRIVE, anchor
from bench.record import Metric, Record
from bench.show.charts import BACKEND_STYLE, GREY, Axis, Chart, DataPoint, MakeChart, Panel, Series, bars, rows
from bench.show.columns import Column, MakeTable, Table, axis, backend, derived, interval, measured
from bench.show.labels import BACKEND_NAME, MEDIANS, environment, plural, ratio_text, size_and_run, three_digits
from bench.show.records import by, grouped, latest, metric, rate_of
from bench.show.tables import NOTHING, over_baseline, paper_points
from bench.workloads.scaling import efficiencies
from bench.workloads.shared import ON_GPU

REFERENCE_MARKER: Final = {WARPDRIVE: "x", JAX: "+"}


# ------------------------------------------------------------------ tables


def _rollout_share(record: Record) -> float:
    return float(record.notes["rollout_s"] / (record.notes["rollout_s"] + record.notes["update_s"]))


ROLLOUT_SHARE: Final = derived("of it rollout", _rollout_share, ".0%")


def trainings(records: Sequence[Record]) -> Table[Record]:
    """Return iterations of training over what others reach on the same point on an H200."""

    def how(record: Record) -> str:
        fused = "" if record.point.get("fused", True) else ", not fused"
        return f", {record.point['precision']}, {record.point['mode']}{fused}"

    def over_reference(record: Record) -> str:
        return three_digits(_lead(record)) if math.isfinite(_lead(record)) else ""

    def reference(record: Record) -> str:
        other = anchor(record.point)
        return "" if other is None else other.by if other.env_steps_per_s else f"{other.by} does not run"

    return Table(
        title="train: rollout + update",
        caption="\n".join(f"{name}: {source}" for name, source in SOURCES.items()),
        rows=sorted(records, key=by("env", "n_agents", "n_envs", "algorithm")),
        columns=[
            *(axis(name, name.removeprefix("n_")) for name in ("env", "n_agents", "n_envs", "n_steps")),
            axis("algorithm"),
            axis("network"),
            backend(how),
            measured("env_steps_per_s", "env-steps/s"),
            interval("env_steps_per_s"),
            measured("agent_steps_per_s", "agent-steps/s"),
            ROLLOUT_SHARE,
            Column("x reference\n(on an H200)", over_reference, is_right=True),
            Column("reference", reference),
        ],
    )


def scalings(records: Sequence[Record]) -> Table[Record]:
    """Return iterations of training in several ranks, and what share of as many times one rank's rate they reach."""
    axes = ("env", "n_agents", "n_envs", "n_steps", "algorithm", "network", "precision")
    return Table(
        title="scaling: rollout + update of all ranks",
        rows=sorted(records, key=by(*axes, "backend", "n_ranks")),
        columns=[
            *(axis(name, "envs a rank" if name == "n_envs" else name.removeprefix("n_")) for name in axes),
            backend(),
            axis("n_ranks", "ranks"),
            measured("env_steps_per_s", "env-steps/s"),
            interval("env_steps_per_s"),
            ROLLOUT_SHARE,
            _efficiency(records),
        ],
    )


def _efficiency(records: Sequence[Record], missing: str = "") -> Column[Record]:
    shares = efficiencies(records)
    return derived("efficiency", lambda record: shares.get(id(record)), ".1%", missing)


TABLES: Final[Mapping[str, Mapping[str, MakeTable]]] = {
    "rollout": {"terminal": over_baseline("rollout: policies play", "NumPy", "backend", "cpu")},
    "train": {"terminal": trainings},
    "scaling": {
        "terminal": scalings,
        "paper": lambda records: paper_points(records, _efficiency(records, NOTHING)),
    },
}


# ------------------------------------------------------------------ charts


def rollouts(records: Sequence[Record]) -> Chart:
    """Return the throughput of rollouts, which play and do not learn, in a row for each point."""
    shown = latest(records)
    return Chart(
        name="rollout",
        title="Rollouts",
        caption=f"All steps of the policies, their forward passes and the samples' way into the batch. {MEDIANS}",
        statistic="medians",
        kind="rows",
        x=Axis("environment steps per second of rollout"),
        panels=[
            rows(environment(str(env)), found, "env_steps_per_s", _iteration)
            for (env,), found in grouped(sorted(shown, key=_iteration_order), "env").items()
        ],
        records=shown,
    )


def training(records: Sequence[Record]) -> Chart:
    """Return the throughput of training, and of others on the same points, in a row for each point."""
    shown = latest(records)
    panels = []
    for (env,), found in grouped(sorted(shown, key=_iteration_order), "env").items():
        best = {_iteration(record): record for record in sorted(found, key=lambda r: rate_of(r, "env_steps_per_s"))}

        def beside(record: Record, best: Mapping[str, Record] = best) -> str:
            is_ahead = best[_iteration(record)] is record and _lead(record) >= 1
            return _over_other(record) if is_ahead else ""

        own = rows(environment(str(env)), found, "env_steps_per_s", _iteration, beside)
        panels.append(Panel(own.title, [*own.series, *_others(best, own.ticks)], own.ticks))
    return Chart(
        name="training",
        title="Training",
        caption=f"An iteration is a rollout and the update of every policy. {MEDIANS} What others reach on the same "
        "points was measured on an NVIDIA H200; x is what the fastest backend is over it.",
        statistic="medians",
        kind="rows",
        x=Axis("environment steps per second (x: over the reference)"),
        panels=panels,
        records=shown,
    )


def _others(best: Mapping[str, Record], names: Sequence[str]) -> list[Series]:
    """Return what others reach on the points of our fastest records; what is ahead is labelled, to be readable."""
    points: dict[str, list[DataPoint]] = {}
    for name, record in best.items():
        other = anchor(record.point)
        if other is not None and other.env_steps_per_s is not None:
            rate, label = other.env_steps_per_s, "" if _lead(record) >= 1 else _over_other(record)
            place = DataPoint(rate, names.index(name), rate, rate, "bench/reference.py", label)
            points.setdefault(other.by, []).append(place)
    return [
        Series(f"{by} (on an H200)", GREY | {"marker": REFERENCE_MARKER[by]}, own) for by, own in sorted(points.items())
    ]


def _lead(record: Record) -> float:
    """Return how many times what others reach on a point a record is; infinitely many where they do not run."""
    other = anchor(record.point)
    rate = rate_of(record, "env_steps_per_s")
    return rate / other.env_steps_per_s if other is not None and other.env_steps_per_s else math.inf


def _over_other(record: Record) -> str:
    other = anchor(record.point)
    if other is None:
        return ""
    return f"{ratio_text(_lead(record))} x" if other.env_steps_per_s else f"{other.by}: does not run"


def split(records: Sequence[Record]) -> Chart:
    """Return which share of an iteration is its rollout, and which its update."""
    shown = [record for record in latest(records) if {"rollout_s", "update_s"} <= record.notes.keys()]

    def share(record: Record, part: str) -> Metric:
        value = record.notes[f"{part}_s"] / (record.notes["rollout_s"] + record.notes["update_s"])
        return Metric.exactly(value, "", "lower")

    return Chart(
        name="split",
        title="Time split of an iteration",
        caption="Rollout and update, each measured by itself over the iterations after the warm-up.",
        statistic="means over the iterations after the warm-up",
        kind="rows",
        x=Axis("share of an iteration", is_log=False),
        panels=[
            bars(
                environment(str(env)),
                found,
                {"rollout": "", "update": "///"},
                share,
                lambda record: f"{_iteration(record)}, {BACKEND_NAME[str(record.point['backend'])]}",
                lambda record, part: f"{ratio_text(1e3 * record.notes[f'{part}_s'])} ms",
            )
            for (env,), found in grouped(sorted(shown, key=_iteration_order), "env").items()
        ],
        records=shown,
    )


def _iteration(record: Record) -> str:
    point = record.point
    played = f"{plural(int(point['n_agents']), 'agent')} x {plural(int(point['n_steps']), 'step')}"
    usual = {"precision": "fp32", "mode": "graph" if point["backend"] in ON_GPU else "eager"}
    how = "".join(f", {point[axis]}" for axis, value in usual.items() if point[axis] != value)
    how += "" if point.get("fused", True) else ", not fused"
    algorithm = f"{point['algorithm']} " if "algorithm" in point else ""
    return f"{algorithm}{point['network']}, {point['n_envs']:,} x {played}{how}"


def _iteration_order(record: Record) -> tuple[Any, ...]:
    axes = by("algorithm", "network", "n_agents", "n_envs", "n_steps")
    how = (record.point["precision"] != "fp32", str(record.point["precision"]), record.point["mode"] == "eager")
    backend = list(BACKEND_STYLE).index(str(record.point["backend"]))
    return (*axes(record), *how, not record.point.get("fused", True), backend)


def scaling(records: Sequence[Record]) -> Chart:
    """Return the throughput of training over ranks, beside as many times that of one, and what share of it it is."""
    shown = latest(records)
    panels = []
    for (env, n_agents, _, precision), found in grouped(shown, "env", "n_agents", "n_envs", "precision").items():
        counts = sorted({int(record.point["n_ranks"]) for record in found})
        if len(counts) > 1:
            where = "GPUs" if found[0].threads is None else "processes, each with as many threads"
            title = f"{environment(str(env), int(n_agents))}, {precision}"
            panels.append(Panel(title, _over_ranks(found, counts), [str(count) for count in counts], xlabel=where))
    return Chart(
        name="scaling",
        title="Scaling over GPUs",
        caption="Ranks train together, each on a GPU with as many environments of its own, and the slowest one's time "
        f"counts. {MEDIANS} Percentages are of as many times the rate of one rank in the same run.",
        statistic="median and 95 % interval, and the share of as many times one",
        x=Axis("GPUs", is_log=False),
        y=Axis("environment steps per second"),
        panels=panels,
        records=shown,
    )


def _over_ranks(records: Sequence[Record], counts: Sequence[int]) -> list[Series]:
    """Return a series for each backend over the places of the numbers of ranks, and then what would be ideal."""
    efficiency = efficiencies(records)
    reached, ideal = [], []
    for name, style in BACKEND_STYLE.items():
        points = []
        for record in sorted(records, key=lambda record: int(record.point["n_ranks"])):
            rate, n_ranks = metric(record, "env_steps_per_s"), int(record.point["n_ranks"])
            if record.point["backend"] == name and rate is not None:
                share = f"{efficiency[id(record)]:.0%}" if n_ranks > 1 and id(record) in efficiency else ""
                place = counts.index(n_ranks)
                points.append(DataPoint(place, rate.value, rate.low, rate.high, size_and_run(record), share))
                if n_ranks == 1:
                    rates = [count * rate.value for count in counts]
                    multiples = [DataPoint(place, y, y, y, record.run_id) for place, y in enumerate(rates)]
                    ideal.append(Series("as many times one", GREY | {"marker": "", "linestyle": ":"}, multiples))
        if points:
            reached.append(Series(BACKEND_NAME[name], style, points))
    return reached + ideal


CHARTS: Final[Mapping[str, Sequence[MakeChart]]] = {
    "rollout": (rollouts,),
    "train": (training, split),
    "scaling": (scaling,),
}

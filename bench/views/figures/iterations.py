"""Figures of iterations: rollouts, training, how its time splits, and how it scales over GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.anchors import JAX, WARPDRIVE, anchor
from bench.cases.environments import ON_GPU
from bench.cases.scaling_case import efficiencies
from bench.record import Record
from bench.views.figures.chart import BACKEND_STYLE, GREY, HATCHES, Chart, Dot, Panel, Series, part_look
from bench.views.figures.records import grouped, latest, metric, rate_of
from bench.views.figures.series import panel_of_rows
from bench.views.figures.words import BACKEND_NAME, MEDIANS, counted, environment, said, times

REFERENCE_MARKER: Final = {WARPDRIVE: "x", JAX: "+"}


def rollouts(records: Sequence[Record]) -> Chart:
    """Return the throughput of rollouts, which play and do not learn, in a row for each point."""
    shown = latest(records)
    return Chart(
        name="rollout",
        title="Rollouts",
        explains=f"All steps of the policies, their forward passes and the samples' way into the batch. {MEDIANS}",
        statistic="medians",
        kind="rows",
        xlabel="environment steps per second of rollout",
        panels=[
            panel_of_rows(environment(str(env)), found, "env_steps_per_s", _iteration)
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

        own = panel_of_rows(environment(str(env)), found, "env_steps_per_s", _iteration, beside)
        panels.append(Panel(own.title, [*own.series, *_others(best, own.ticks)], own.ticks))
    return Chart(
        name="training",
        title="Training",
        explains=f"An iteration is a rollout and the update of every policy. {MEDIANS} What others reach on the same "
        "points was measured on an NVIDIA H200; x is what the fastest backend is over it.",
        statistic="medians",
        kind="rows",
        xlabel="environment steps per second (x: over the reference)",
        panels=panels,
        records=shown,
    )


def _others(best: Mapping[str, Record], names: Sequence[str]) -> list[Series]:
    """Return what others reach on the points of our fastest records; what is ahead is labelled, to be readable."""
    rows: dict[str, list[Dot]] = {}
    for name, record in best.items():
        other = anchor(record.point)
        if other is not None and other.env_steps_per_s is not None:
            rate, label = other.env_steps_per_s, "" if _lead(record) >= 1 else _over_other(record)
            rows.setdefault(other.by, []).append(Dot(rate, names.index(name), rate, rate, "bench/reference.py", label))
    return [
        Series(f"{by} (on an H200)", GREY | {"marker": REFERENCE_MARKER[by]}, dots) for by, dots in sorted(rows.items())
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
    return f"{times(_lead(record))} x" if other.env_steps_per_s else f"{other.by}: does not run"


def split(records: Sequence[Record]) -> Chart:
    """Return which share of an iteration is its rollout, and which its update."""
    shown = [record for record in latest(records) if {"rollout_s", "update_s"} <= record.notes.keys()]
    panels = []
    for (env,), found in grouped(sorted(shown, key=_iteration_order), "env").items():
        series = []
        for index, part in enumerate(("rollout", "update")):
            dots = []
            for row, record in enumerate(found):
                seconds = record.notes[f"{part}_s"]
                share = seconds / (record.notes["rollout_s"] + record.notes["update_s"])
                dots.append(Dot(share, row, share, share, record.run_id, f"{times(1e3 * seconds)} ms"))
            series.append(Series(part, part_look(index, HATCHES[index]), dots))
        names = [f"{_iteration(record)}, {BACKEND_NAME[str(record.point['backend'])]}" for record in found]
        panels.append(Panel(environment(str(env)), series, names))
    return Chart(
        name="split",
        title="Time split of an iteration",
        explains="Rollout and update, each measured by itself over the iterations after the warm-up.",
        statistic="means over the iterations after the warm-up",
        kind="bars",
        xlabel="share of an iteration",
        log_x=False,
        panels=panels,
        records=shown,
    )


def scaling(records: Sequence[Record]) -> Chart:
    """Return the throughput of training over ranks, beside as many times that of one, and what share of it it is."""
    shown = latest(records)
    panels = []
    for key, found in grouped(shown, "env", "n_agents", "n_envs", "precision").items():
        env, n_agents, _, precision = key
        counts = sorted({int(record.point["n_ranks"]) for record in found})
        if len(counts) > 1:
            where = "GPUs" if found[0].threads is None else "processes, each with as many threads"
            title = f"{environment(str(env), int(n_agents))}, {precision}"
            panels.append(Panel(title, _over_ranks(found, counts), [str(count) for count in counts], xlabel=where))
    return Chart(
        name="scaling",
        title="Scaling over GPUs",
        explains="Ranks train together, each on a GPU with as many environments of its own, and the slowest one's time "
        f"counts. {MEDIANS} Percentages are of as many times the rate of one rank in the same run.",
        statistic="median and 95 % interval, and the share of as many times one",
        kind="history",
        xlabel="GPUs",
        ylabel="environment steps per second",
        log_x=False,
        panels=panels,
        records=shown,
    )


def _over_ranks(records: Sequence[Record], counts: Sequence[int]) -> list[Series]:
    """Return a series for each backend over the places of the numbers of ranks, and then what would be ideal."""
    efficiency = efficiencies(records)
    reached, ideal = [], []
    for backend, look in BACKEND_STYLE.items():
        dots = []
        for record in sorted(records, key=lambda record: int(record.point["n_ranks"])):
            rate, n_ranks = metric(record, "env_steps_per_s"), int(record.point["n_ranks"])
            if record.point["backend"] == backend and rate is not None:
                share = f"{efficiency[id(record)]:.0%}" if n_ranks > 1 and id(record) in efficiency else ""
                dots.append(Dot(counts.index(n_ranks), rate.value, rate.low, rate.high, said(record), share))
                if n_ranks == 1:
                    rates = [count * rate.value for count in counts]
                    multiples = [Dot(place, y, y, y, record.run_id) for place, y in enumerate(rates)]
                    ideal.append(Series("as many times one", GREY | {"marker": "", "linestyle": ":"}, multiples))
        if dots:
            reached.append(Series(BACKEND_NAME[backend], look, dots))
    return reached + ideal


def _iteration(record: Record) -> str:
    point = record.point
    played = f"{counted(int(point['n_agents']), 'agent')} x {counted(int(point['n_steps']), 'step')}"
    usual = {"precision": "fp32", "mode": "graph" if point["backend"] in ON_GPU else "eager"}
    how = "".join(f", {point[axis]}" for axis, value in usual.items() if point[axis] != value)
    how += "" if point.get("fused", True) else ", not fused"
    algorithm = f"{point['algorithm']} " if "algorithm" in point else ""
    return f"{algorithm}{point['network']}, {point['n_envs']:,} x {played}{how}"


def _iteration_order(record: Record) -> tuple[Any, ...]:
    axes = ("algorithm", "network", "n_agents", "n_envs", "n_steps")
    how = (record.point["precision"] != "fp32", str(record.point["precision"]), record.point["mode"] == "eager")
    backend = list(BACKEND_STYLE).index(str(record.point["backend"]))
    return (*(record.point.get(axis, "") for axis in axes), *how, not record.point.get("fused", True), backend)

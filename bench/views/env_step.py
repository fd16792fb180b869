"""Tables and charts of the cases that step environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from bench.record import Metric, Record
from bench.show.charts import BACKEND_STYLE, Axis, Chart, DataPoint, MakeChart, Panel, Series, lines, points_along
from bench.show.columns import Column, MakeTable, Table, axis, backend, derived, interval, measured, over
from bench.show.labels import (
    BACKEND_NAME,
    MEDIANS,
    backend_label,
    device_label,
    environment,
    number,
    ratio_text,
    three_digits,
)
from bench.show.records import baselines, by, grouped, joules, latest, metric, plain, size, times_baseline
from bench.show.tables import JOULES, over_baseline
from bench.workloads.shared import FULLY_OBSERVED_AGENTS

# ------------------------------------------------------------------ tables

SIZES: Final = (axis("env"), axis("n_agents", "agents"), axis("n_envs", "envs"))


def steps(records: Sequence[Record]) -> Table[Record]:
    """Return throughput over the NumPy baseline of the same environment and size."""
    threads = {record.threads for record in records if record.point["backend"] == "cpu"}
    numpy = f"x NumPy\n({device_label(next(iter(threads)))})" if len(threads) == 1 else "x NumPy"
    return Table(
        title="env_step: sample + step + restart; graph replays on a GPU, eager calls on a CPU",
        rows=sorted(records, key=by("env", "n_agents", "n_envs", "exact")),
        columns=[
            *SIZES,
            backend(),
            *_rates(),
            measured("ns_per_env_step", "ns/env-step", three_digits),
            over(
                numpy,
                "env_steps_per_s",
                records,
                by("env", "n_envs", "n_agents"),
                lambda record: record.point["backend"] == "cpu",
            ),
            derived("max error", lambda record: record.correctness.max_error if record.correctness else None, ".0e"),
        ],
    )


def _rates() -> list[Column[Record]]:
    rate = "env_steps_per_s"
    return [measured(rate, "env-steps/s"), interval(rate), measured("agent_steps_per_s", "agent-steps/s")]


def steps_in_documents(records: Sequence[Record]) -> Table[Record]:
    """Return throughput with its interval, the share of the roofline and, where it was read, energy."""

    def rate(steps: Metric) -> str:
        return f"{number(steps.value)} ({number(steps.low)} to {number(steps.high)})"

    return Table(
        title="env_step: sample + step + restart",
        rows=sorted(records, key=by("env", "n_agents", "n_envs", "exact", "backend")),
        columns=[
            axis("env", "environment"),
            axis("n_agents", "agents"),
            axis("n_envs", "environments"),
            backend(),
            interval("env_steps_per_s", rate, "env-steps/s (95 % interval)"),
            measured("agent_steps_per_s", "agent-steps/s"),
            *([JOULES] if any(map(joules, records)) else []),
            derived("share of the roofline", lambda record: record.roofline, ".1%"),
            derived("set-up, s", lambda record: record.notes.get("setup_s"), ".2g"),
        ],
    )


def neighbor_searches(records: Sequence[Record]) -> Table[Record]:
    """Return the search in a grid of cells over that of all pairs."""
    return Table(
        title="neighbor_search: env_step, neighbours from cells or from all pairs",
        rows=sorted(records, key=by("n_agents", "backend", "neighbor_search")),
        columns=[
            *SIZES,
            backend(),
            axis("neighbor_search", "search"),
            *_rates(),
            over(
                "x all pairs",
                "env_steps_per_s",
                records,
                by("env", "backend", "n_envs", "n_agents"),
                lambda record: record.point["neighbor_search"] == "all_pairs",
            ),
        ],
    )


TABLES: Final[Mapping[str, Mapping[str, MakeTable]]] = {
    "env_step": {"terminal": steps, "document": steps_in_documents},
    "published": {
        "terminal": over_baseline(
            "published: env_step at sizes that others were measured at", "NumPy", "backend", "cpu"
        )
    },
    "neighbor_search": {"terminal": neighbor_searches},
    "graph": {
        "terminal": over_baseline("graph: env_step, launch by launch or as a graph", "eager", "mode", "eager"),
    },
    "step": {"terminal": over_baseline("step: the kernel alone", "NumPy", "backend", "cpu")},
}

# ------------------------------------------------------------------ charts over environments

SATURATED: Final = 0.9
"""Share of the highest rate from which on a device counts as full."""


def throughput(records: Sequence[Record]) -> Chart:
    """Return throughput over the number of environments, and where each backend is saturated."""
    shown = _in_sizes(latest(records))
    panels = _panels(shown, lambda record: metric(record, "env_steps_per_s"), right="agent steps per second")
    return Chart(
        name="throughput",
        title="Throughput over environments",
        caption=f"A step samples random actions, steps every environment and restarts those that ended. {MEDIANS}",
        x=Axis("environments"),
        y=Axis("environment steps per second"),
        panels=panels,
        records=shown,
        findings=_findings(panels, saturation),
    )


def saturation(points: Sequence[DataPoint]) -> str:
    """Say from which measured number of environments on a rate is at least `SATURATED` of the highest one."""
    full = min(point.x for point in points if point.y >= SATURATED * max(point.y for point in points))
    if full == max(point.x for point in points):
        return f"not saturated up to {full:,.0f} environments"
    return f"saturated ({SATURATED:.0%} of its highest rate) from {full:,.0f} environments on"


def speedup_over(baseline: str) -> MakeChart:
    """Return what makes the chart of speed-ups over a backend of the CPU, at the same size in the same run."""

    def speedup(records: Sequence[Record]) -> Chart:
        bases = baselines(records, "backend", baseline)
        others = _in_sizes(
            latest(r for r in records if size(r) in bases and r.point["backend"] not in ("cpu", baseline))
        )
        compared = [bases[size(record)] for record in others]
        names = " and ".join(sorted({backend_label(record) for record in compared}))
        panels = _panels(others, lambda record: times_baseline(record, bases[size(record)]), level=1)
        return Chart(
            name="speedup" if baseline == "cpu" else f"speedup-{baseline}",
            title=f"Speed-up over {names}",
            caption="Each ratio is of two points of the same size in the same run; its interval reaches as far as "
            "theirs allow. Above the line at 1 a backend is faster than the baseline.",
            x=Axis("environments"),
            y=Axis(f"times {names}"),
            panels=panels,
            records=[*others, *compared],
            findings=_findings(panels, crossover),
        )

    return speedup


def crossover(points: Sequence[DataPoint]) -> str:
    """Say from where on a ratio stays above 1: between which measured sizes, and about where on a log-log line."""
    ordered = sorted(points, key=lambda point: point.x)
    best = f"{ratio_text(max(point.y for point in ordered))} times at best"
    slower = [index for index, point in enumerate(ordered) if point.y < 1]
    if not slower:
        return f"faster from the smallest size on, {ordered[0].x:,.0f}; {best}"
    if slower[-1] == len(ordered) - 1:
        return f"not faster at the largest size, {ordered[-1].x:,.0f} environments; {best}"
    before, after = ordered[slower[-1] : slower[-1] + 2]
    share = np.log(before.y) / (np.log(before.y) - np.log(after.y))
    about = float(f"{before.x * (after.x / before.x) ** share:.2g}")
    between = f"measured at {before.x:,.0f} and {after.x:,.0f}"
    return f"faster from about {about:,.0f} environments on ({between}); {best}"


def energy(records: Sequence[Record]) -> Chart:
    """Return the energy of a step over the number of environments, where it was read."""
    shown = latest(record for record in records if joules(record) is not None)
    return Chart(
        name="energy",
        title="Energy",
        caption="Of the whole card, over the window in which the point is repeated.",
        x=Axis("environments"),
        y=Axis("J per million environment steps"),
        panels=_panels(shown, joules),
        records=shown,
    )


def _panels(
    records: Sequence[Record],
    value: Callable[[Record], Metric | None],
    level: float | None = None,
    right: str = "",
) -> list[Panel]:
    """Return a panel over environments for each environment and number of agents, with a series a backend."""
    return [
        Panel(
            environment(str(env), agents=int(n_agents)),
            lines(of_panel, value, "n_envs"),
            level=level,
            right=(right, n_agents) if right and n_agents > 1 else None,
        )
        for (env, n_agents), of_panel in grouped(plain(records), "env", "n_agents").items()
    ]


def _in_sizes(records: Iterable[Record]) -> list[Record]:
    """Keep what was measured at several numbers of environments; the others are for charts over agents."""
    groups = grouped(plain(records), "env", "n_agents")
    several = [each for each in groups.values() if len({record.point["n_envs"] for record in each}) > 1]
    return [record for each in several or groups.values() for record in each]


def _findings(panels: Sequence[Panel], say: Callable[[Sequence[DataPoint]], str]) -> list[str]:
    return [
        f"{panel.title}, {series.name}: {say(series.points)}"
        for panel in panels
        for series in panel.series
        if len(series.points) > 1
    ]


# ------------------------------------------------------------------ charts over agents

AGENTS_IN_EACH: Final = "agents in each environment"


def agents(records: Sequence[Record]) -> Chart:
    """Return throughput over the number of agents, in the number of environments that most sizes were measured in."""
    panels, shown = [], []
    for (env,), of_env in grouped(plain(latest(records)), "env").items():
        by_count = grouped(of_env, "n_envs")
        (n_envs,) = max(by_count, key=lambda count: len({record.point["n_agents"] for record in by_count[count]}))
        found = by_count[n_envs,]
        if len({record.point["n_agents"] for record in found}) > 1:
            series = lines(found, lambda record: metric(record, "agent_steps_per_s"), "n_agents")
            partly = f"{AGENTS_IN_EACH} (above {FULLY_OBSERVED_AGENTS} observed in part)"
            xlabel = partly if env == "tag_gridworld" else ""
            panels.append(Panel(environment(str(env), envs=int(n_envs)), series, xlabel=xlabel))
            shown += found
    return Chart(
        name="agents",
        title="Throughput over agents",
        caption=MEDIANS,
        x=Axis(AGENTS_IN_EACH),
        y=Axis("agent steps per second"),
        panels=panels,
        records=shown,
    )


def neighbors(records: Sequence[Record]) -> Chart:
    """Return the search in a grid of cells beside that of all pairs in its run, and how many times faster it is."""
    pairs = baselines(records, "neighbor_search", "all_pairs")

    def place(record: Record) -> tuple[Any, ...]:
        return size(record, "neighbor_search")

    def rates(found: Sequence[Record], **changed: str) -> list[Series]:
        return lines(found, lambda record: metric(record, "agent_steps_per_s"), "n_agents", **changed)

    def named(series: Sequence[Series], words: str) -> list[Series]:
        return [Series(f"{each.name}, {words}", each.style, each.points) for each in series]

    grids = latest(r for r in records if r.point["neighbor_search"] == "grid" and place(r) in pairs)
    panels = []
    for (env, n_envs), found in grouped(grids, "env", "n_envs").items():
        title = environment(str(env), envs=int(n_envs))
        every = rates([pairs[place(record)] for record in found], linestyle=":", markerfacecolor="none")
        factors = lines(found, lambda record: times_baseline(record, pairs[place(record)]), "n_agents")
        panels += [
            Panel(title, [*named(rates(found), "cells"), *named(every, "all pairs")]),
            Panel(title, named(factors, "cells"), level=1, ylabel="times all pairs"),
        ]
    return Chart(
        name="neighbors",
        title="Search for neighbours",
        caption=f"Only how the neighbours are found differs. {MEDIANS}",
        x=Axis(AGENTS_IN_EACH),
        y=Axis("agent steps per second"),
        panels=panels,
        records=[*grids, *(pairs[place(record)] for record in grids)],
    )


# ------------------------------------------------------------------ charts of what is made of the device

DIRECTION: Final = {"n_envs": "more environments", "n_agents": "more agents"}


def languages(records: Sequence[Record]) -> Chart:
    """Return CUDA C over Numba, at the same size in the same run."""
    bases = baselines(records, "backend", "numba")
    of_cuda_c = latest(record for record in records if record.point["backend"] == "pycuda" and size(record) in bases)
    return Chart(
        name="languages",
        title="CUDA C against Numba",
        caption="Both run the same phases as CUDA graphs, at the same size in the same run. Above the line at 1 "
        "CUDA C is faster; the interval reaches as far as theirs allow.",
        x=Axis("agents in all environments"),
        y=Axis("times Numba-CUDA", is_log=False),
        panels=_panels_of_directions(of_cuda_c, lambda record: times_baseline(record, bases[size(record)])),
        records=[*of_cuda_c, *(bases[size(record)] for record in of_cuda_c)],
    )


def limits(records: Sequence[Record]) -> Chart:
    """Return the share of the machine's limit that each backend reaches."""
    shown = [record for record in latest(records) if record.roofline is not None]

    def share(record: Record) -> Metric | None:
        rate = metric(record, "env_steps_per_s")
        if rate is None or record.roofline is None:
            return None
        per_rate = record.roofline / rate.value
        return Metric(
            value=record.roofline, unit="", direction="higher", low=rate.low * per_rate, high=rate.high * per_rate
        )

    return Chart(
        name="limits",
        title="Share of the machine's limit",
        caption="The shortest time in which the device could move the least bytes, or do the least operations, of a "
        "step, over the time that it takes. 1 is the machine's limit.",
        x=Axis("agents in all environments"),
        y=Axis("share of the machine's limit"),
        panels=_panels_of_directions(shown, share),
        records=shown,
    )


def _panels_of_directions(records: Sequence[Record], value: Callable[[Record], Metric | None]) -> list[Panel]:
    """Return a panel for each environment over all its agents: series for more environments and for more agents."""
    panels = []
    for (env,), of_env in grouped(plain(records), "env").items():
        series = []
        for name, style in BACKEND_STYLE.items():
            of_backend = [record for record in of_env if record.point["backend"] == name]
            for fixed, other, dash in (("n_agents", "n_envs", "-"), ("n_envs", "n_agents", ":")):
                groups = grouped(of_backend, fixed)
                if not groups:
                    continue
                longest = max(groups.values(), key=lambda line: len({record.point[other] for record in line}))
                if len({record.point[other] for record in longest}) > 1:
                    points = points_along(longest, value, _all_agents)
                    series.append(
                        Series(f"{BACKEND_NAME[name]}, {DIRECTION[other]}", style | {"linestyle": dash}, points)
                    )
        if series:
            panels.append(Panel(environment(str(env)), series, level=1))
    return panels


def _all_agents(record: Record) -> float:
    return float(record.point["n_envs"]) * float(record.point["n_agents"])


CHARTS: Final[Mapping[str, Sequence[MakeChart]]] = {
    "env_step": (throughput, speedup_over("cpu"), speedup_over("host"), agents, languages, limits, energy),
    "neighbor_search": (neighbors,),
}

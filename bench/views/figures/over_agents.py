"""Figures over the number of agents in each environment: throughput, the search for neighbours, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bench.cases.environments import FULLY_OBSERVED_AGENTS
from bench.record import Record
from bench.views.figures.chart import Chart, Panel, Series
from bench.views.figures.records import baselines, grouped, latest, metric, plain, size, times_baseline
from bench.views.figures.series import by_backend
from bench.views.figures.words import MEDIANS, environment

AGENTS_IN_EACH: Final = "agents in each environment"


def agents(records: Sequence[Record]) -> Chart:
    """Return throughput over the number of agents, in the number of environments that most sizes were measured in."""
    panels, shown = [], []
    for (env,), of_env in grouped(plain(latest(records)), "env").items():
        by_count = grouped(of_env, "n_envs")
        (n_envs,) = max(by_count, key=lambda count: len({record.point["n_agents"] for record in by_count[count]}))
        found = by_count[n_envs,]
        if len({record.point["n_agents"] for record in found}) > 1:
            series = by_backend(found, lambda record: metric(record, "agent_steps_per_s"), "n_agents")
            partly = f"{AGENTS_IN_EACH} (above {FULLY_OBSERVED_AGENTS} observed in part)"
            xlabel = partly if env == "tag_gridworld" else ""
            panels.append(Panel(environment(str(env), envs=int(n_envs)), series, xlabel=xlabel))
            shown += found
    return Chart(
        name="agents",
        title="Throughput over agents",
        explains=MEDIANS,
        xlabel=AGENTS_IN_EACH,
        ylabel="agent steps per second",
        panels=panels,
        records=shown,
    )


def neighbors(records: Sequence[Record]) -> Chart:
    """Return the search in a grid of cells beside that of all pairs in its run, and how many times faster it is."""
    pairs = baselines(records, "neighbor_search", "all_pairs")

    def place(record: Record) -> tuple[Any, ...]:
        return size(record, "neighbor_search")

    grids = latest(r for r in records if r.point["neighbor_search"] == "grid" and place(r) in pairs)
    bases = [pairs[place(record)] for record in grids]
    panels = []
    for (env, n_envs), found in grouped(grids, "env", "n_envs").items():
        title = environment(str(env), envs=int(n_envs))
        rates: list[Series] = []
        every = [pairs[place(record)] for record in found]
        dotted = {"linestyle": ":", "markerfacecolor": "none"}
        for words, own, changed in (("cells", found, {}), ("all pairs", every, dotted)):
            made = by_backend(own, lambda record: metric(record, "agent_steps_per_s"), "n_agents", **changed)
            rates += [Series(f"{series.name}, {words}", series.look, series.dots) for series in made]
        factors = by_backend(found, lambda record: times_baseline(record, pairs[place(record)]), "n_agents")
        factors = [Series(f"{series.name}, cells", series.look, series.dots) for series in factors]
        panels += [Panel(title, rates), Panel(title, factors, level=1, ylabel="times all pairs")]
    return Chart(
        name="neighbors",
        title="Search for neighbours",
        explains=f"Only how the neighbours are found differs. {MEDIANS}",
        xlabel=AGENTS_IN_EACH,
        ylabel="agent steps per second",
        panels=panels,
        records=[*grids, *bases],
    )


def memory(records: Sequence[Record]) -> Chart:
    """Return the bytes of an environment over the number of its agents, for environments of several sizes."""
    panels, shown = [], []
    for (env,), found in grouped(latest(records), "env").items():
        if len({record.point["n_agents"] for record in found}) > 1:
            series = by_backend(found, lambda record: metric(record, "bytes_per_env"), "n_agents")
            panels.append(Panel(environment(str(env)), series))
            shown += found
    return Chart(
        name="memory",
        title="Memory of an environment",
        explains="What as many environments again make in the arrays of started environments, for each of them.",
        statistic="of the arrays",
        xlabel=AGENTS_IN_EACH,
        ylabel="bytes of an environment",
        panels=panels,
        records=shown,
    )

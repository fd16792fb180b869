"""Charts of env steps: throughput, speed-up, memory, energy.

Each is over environments or over agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from ...core.point import ORACLE, PLAIN, Metric
from ...core.record import Record
from ...workloads.shared import FULLY_OBSERVED_AGENTS
from ..charts import Chart, DataPoint, MakeChart, Panel, Series, chart, in_rows, lines, points_along
from ..labels import BACKEND_NAME, BACKEND_STYLE, backend_label, environment, plural, ratio_text
from ..records import (
    baselines,
    best_on_cpu,
    derived_metric,
    grouped,
    joules,
    latest,
    metric,
    plain,
    size,
    times_baseline,
    work_of,
)

RATE: Final = "env_steps_per_s"
AGENT_RATE: Final = "agent_steps_per_s"
SATURATED: Final = 0.9
"""Share of the highest rate that counts as saturated."""
DIRECTION: Final = {"n_envs": "more environments", "n_agents": "more agents"}

Value = Callable[[Record], Metric | None]

# ------------------------------------------------------------------ over environments


def throughput_chart(records: Sequence[Record]) -> Chart:
    """Chart the throughput over environments, with each backend's saturation."""
    shown = _in_sizes(latest(records))
    panels = _over_envs(shown, lambda record: metric(record, RATE), right="agent steps per second")
    return in_rows(replace(chart("throughput", panels, shown), findings=_findings(panels, saturation)))


def speedup_chart(records: Sequence[Record]) -> Chart:
    """Chart speed-ups over the best CPU code; without a GPU over vectorised NumPy.

    Without either of these it is over the reference.
    """
    best = best_on_cpu(records)
    if not best:
        return speedup_over(ORACLE)(records)
    others = [r for r in records if work_of(r) in best and r.point["backend"] != ORACLE and r is not best[work_of(r)]]
    if all(record.point["backend"] == PLAIN for record in others):
        return speedup_over(PLAIN)(records)
    return _speedup("speedup", "the best CPU code", others, lambda record: best[work_of(record)])


def speedup_over(baseline: str) -> MakeChart:
    """Return the chart of speed-ups over a CPU backend, same size and run."""

    def speedup(records: Sequence[Record]) -> Chart:
        bases = baselines(records, "backend", baseline)
        others = [r for r in records if size(r) in bases and r.point["backend"] not in (ORACLE, PLAIN, baseline)]
        name = "speedup" if baseline in (ORACLE, PLAIN) else f"speedup-{baseline}"
        return _speedup(name, "", others, lambda record: bases[size(record)])

    return speedup


def _speedup(name: str, over: str, others: Iterable[Record], base: Callable[[Record], Record]) -> Chart:
    """Chart the speed-up of each record over its baseline; `over` names several."""
    shown = _in_sizes(latest(others))
    compared = [base(record) for record in shown]
    codes = " and ".join(sorted({backend_label(record) for record in compared}))
    is_base = {id(record) for record in compared}

    def factor(record: Record) -> Metric | None:
        if id(record) in is_base:
            return Metric.exact(1, "", "higher")
        return times_baseline(record, base(record))

    panels = _over_envs(shown, factor, level=1)
    which = f" The baseline at each size is the fastest of {codes}." if over else ""
    made = replace(
        chart("speedup", panels, [*shown, *compared], over=over or codes, which=which),
        name=name,
        findings=_findings(panels, crossover),
    )
    bases = {id(record): record for record in compared}.values()
    rows = in_rows(replace(made, panels=_over_envs([*shown, *bases], factor, level=1)))
    return rows if rows.kind == "rows" else made


def energy_chart(records: Sequence[Record]) -> Chart:
    """Chart the energy per step over environments."""
    shown = latest(record for record in records if joules(record) is not None)
    return chart("energy", _over_envs(shown, joules), shown)


def saturation(points: Sequence[DataPoint]) -> str:
    """Return the smallest number of environments with a saturated rate, as text."""
    full = min(point.x for point in points if point.y >= SATURATED * max(point.y for point in points))
    if full == max(point.x for point in points):
        return f"throughput still grows at {full:,.0f} environments"
    return f"reaches {SATURATED:.0%} of its highest rate at {full:,.0f} environments"


def crossover(points: Sequence[DataPoint]) -> str:
    """Return the number of environments above which a ratio exceeds 1, as text.

    Between two measured sizes it is interpolated on a log-log line.
    """
    ordered = sorted(points, key=lambda point: point.x)
    best = f"at most {ratio_text(max(point.y for point in ordered))}x as fast"
    slower = [index for index, point in enumerate(ordered) if point.y < 1]
    if not slower:
        return f"faster at every size, from {plural(int(ordered[0].x), 'environment')}; {best}"
    if slower[-1] == len(ordered) - 1:
        return f"not faster at the largest size, {ordered[-1].x:,.0f} environments; {best}"
    before, after = ordered[slower[-1] : slower[-1] + 2]
    share = np.log(before.y) / (np.log(before.y) - np.log(after.y))
    about = float(f"{before.x * (after.x / before.x) ** share:.2g}")
    between = f"measured at {before.x:,.0f} and {after.x:,.0f}"
    return f"faster above about {about:,.0f} environments ({between}); {best}"


def _over_envs(records: Sequence[Record], value: Value, *, level: float | None = None, right: str = "") -> list[Panel]:
    """Return a panel for each environment and number of agents."""
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
    """Select environments measured at several sizes, if any."""
    groups = grouped(plain(records), "env", "n_agents")
    several = [each for each in groups.values() if _n_values(each, "n_envs") > 1]
    return [record for each in several or groups.values() for record in each]


def _n_values(records: Sequence[Record], axis: str) -> int:
    return len({record.point[axis] for record in records})


def _findings(panels: Sequence[Panel], say: Callable[[Sequence[DataPoint]], str]) -> list[str]:
    return [
        f"{panel.title}, {series.name}: {say(series.points)}"
        for panel in panels
        for series in panel.series
        if len(series.points) > 1
    ]


# ------------------------------------------------------------------ over agents


def agents_chart(records: Sequence[Record]) -> Chart:
    """Chart the throughput over agents, at the most-measured number of environments."""
    partly = {"tag_gridworld": f"agents in each environment (above {FULLY_OBSERVED_AGENTS} observed in part)"}
    by_env = grouped(plain(latest(records)), "env").values()
    shown = _of_several_sizes(
        max(grouped(each, "n_envs").values(), key=partial(_n_values, axis="n_agents")) for each in by_env
    )
    panels = [
        Panel(
            environment(str(each[0].point["env"]), envs=int(each[0].point["n_envs"])),
            _over_agents(each, AGENT_RATE),
            xlabel=partly.get(str(each[0].point["env"]), ""),
        )
        for each in shown
    ]
    return chart("agents", panels, [record for each in shown for record in each])


def memory_chart(records: Sequence[Record]) -> Chart:
    """Chart the bytes of an environment over its agents."""
    shown = _of_several_sizes(grouped(latest(records), "env").values())
    panels = [Panel(environment(str(each[0].point["env"])), _over_agents(each, "bytes_per_env")) for each in shown]
    return chart("memory", panels, [record for each in shown for record in each])


def neighbors_chart(records: Sequence[Record]) -> Chart:
    """Chart the neighbour search in cells over all pairs of the run."""
    pairs = baselines(records, "neighbor_search", "all_pairs")

    def place(record: Record) -> tuple[Any, ...]:
        return size(record, "neighbor_search")

    def named(series: Sequence[Series], words: str) -> list[Series]:
        return [Series(f"{each.name}, {words}", each.style, each.points) for each in series]

    shown = latest(r for r in records if r.point["neighbor_search"] == "grid" and place(r) in pairs)
    panels = []
    for (env, n_envs), found in grouped(shown, "env", "n_envs").items():
        title = environment(str(env), envs=int(n_envs))
        every = _over_agents([pairs[place(r)] for r in found], AGENT_RATE, linestyle=":", markerfacecolor="none")
        factors = lines(found, lambda record: times_baseline(record, pairs[place(record)]), "n_agents")
        panels += [
            Panel(title, [*named(_over_agents(found, AGENT_RATE), "cells"), *named(every, "all pairs")]),
            Panel(title, named(factors, "cells"), level=1, ylabel="speed-up over all pairs"),
        ]
    return chart("neighbors", panels, [*shown, *(pairs[place(record)] for record in shown)])


def _over_agents(records: Sequence[Record], name: str, **style: str) -> list[Series]:
    """Return a metric of one environment over its agents."""
    return lines(records, lambda record: metric(record, name), "n_agents", **style)


def _of_several_sizes(groups: Iterable[Sequence[Record]]) -> list[Sequence[Record]]:
    """Select groups with several numbers of agents."""
    return [group for group in groups if _n_values(group, "n_agents") > 1]


# ------------------------------------------------------------------ over all agents of all environments


def languages_chart(records: Sequence[Record]) -> Chart:
    """Chart CUDA C over Numba at the same size and run."""
    bases = baselines(records, "backend", "numba")
    of_cuda_c = latest(record for record in records if record.point["backend"] == "pycuda" and size(record) in bases)
    panels = _by_direction(of_cuda_c, lambda record: times_baseline(record, bases[size(record)]))
    return chart("languages", panels, [*of_cuda_c, *(bases[size(record)] for record in of_cuda_c)])


def limits_chart(records: Sequence[Record]) -> Chart:
    """Chart each backend's share of the machine's limit."""
    shown = [record for record in latest(records) if record.roofline is not None]

    def share(record: Record) -> Metric | None:
        rate = metric(record, RATE)
        if rate is None or record.roofline is None:
            return None
        per_rate = record.roofline / rate.value
        return derived_metric(record.roofline, rate.low * per_rate, rate.high * per_rate, rate.kind)

    return chart("limits", _by_direction(shown, share), shown)


def _by_direction(records: Sequence[Record], value: Value) -> list[Panel]:
    """Return a panel per environment, with series over environments and over agents."""
    panels = []
    for (env,), of_env in grouped(plain(records), "env").items():
        series = []
        for name, style in BACKEND_STYLE.items():
            of_backend = [record for record in of_env if record.point["backend"] == name]
            for fixed, other, dash in (("n_agents", "n_envs", "-"), ("n_envs", "n_agents", ":")):
                longest: Sequence[Record] = max(
                    grouped(of_backend, fixed).values(), key=partial(_n_values, axis=other), default=()
                )
                if _n_values(longest, other) > 1:
                    points = points_along(longest, value, _all_agents)
                    name_of_line = f"{BACKEND_NAME[name]}, {DIRECTION[other]}"
                    series.append(Series(name_of_line, style | {"linestyle": dash}, points))
        if series:
            panels.append(Panel(environment(str(env)), series, level=1))
    return panels


def _all_agents(record: Record) -> float:
    return float(record.point["n_envs"]) * float(record.point["n_agents"])

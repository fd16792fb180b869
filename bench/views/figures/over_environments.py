"""Figures over the number of environments: throughput, speed-ups, energy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from bench.record import Metric, Record
from bench.views.figures.chart import Chart, Dot, Panel
from bench.views.figures.records import baselines, grouped, latest, metric, plain, size, times_baseline
from bench.views.figures.series import by_backend
from bench.views.figures.words import MEDIANS, backend_label, environment, times

SATURATED: Final = 0.9
"""Share of the highest rate from which on a device counts as full."""


def throughput(records: Sequence[Record]) -> Chart:
    """Return throughput over the number of environments, and where each backend is saturated."""
    shown = _in_sizes(latest(records))
    panels = _panels(shown, lambda record: metric(record, "env_steps_per_s"), right="agent steps per second")
    return Chart(
        name="throughput",
        title="Throughput over environments",
        explains=f"A step samples random actions, steps every environment and restarts those that ended. {MEDIANS}",
        xlabel="environments",
        ylabel="environment steps per second",
        panels=panels,
        records=shown,
        findings=_findings(panels, knee),
    )


def knee(dots: Sequence[Dot]) -> str:
    """Say from which measured number of environments on a rate is at least `SATURATED` of the highest one."""
    full = min(dot.x for dot in dots if dot.y >= SATURATED * max(dot.y for dot in dots))
    if full == max(dot.x for dot in dots):
        return f"not saturated up to {full:,.0f} environments"
    return f"saturated ({SATURATED:.0%} of its highest rate) from {full:,.0f} environments on"


def speedup_over(baseline: str) -> Callable[[Sequence[Record]], Chart]:
    """Return what makes the figure of speed-ups over a backend of the CPU, at the same size in the same run."""

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
            explains="Each ratio is of two points of the same size in the same run; its interval reaches as far as "
            "theirs allow. Above the line at 1 a backend is faster than the baseline.",
            xlabel="environments",
            ylabel=f"times {names}",
            panels=panels,
            records=[*others, *compared],
            findings=_findings(panels, crossover),
        )

    return speedup


def crossover(dots: Sequence[Dot]) -> str:
    """Say from where on a ratio stays above 1: between which measured sizes, and about where on a log-log line."""
    ordered = sorted(dots, key=lambda dot: dot.x)
    best = f"{times(max(dot.y for dot in ordered))} times at best"
    slower = [index for index, dot in enumerate(ordered) if dot.y < 1]
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
        explains="Of the whole card, over the window in which the point is repeated.",
        xlabel="environments",
        ylabel="J per million environment steps",
        panels=_panels(shown, joules),
        records=shown,
    )


def joules(record: Record) -> Metric | None:
    """Return the energy of a million environment steps with the interval of their rate, if the energy was read."""
    rate, telemetry = metric(record, "env_steps_per_s"), record.telemetry or {}
    if rate is None or telemetry.get("energy_j") is None:
        return None
    watts = 1e6 * telemetry["energy_j"] / telemetry["duration_s"]
    return Metric(
        value=watts / rate.value,
        unit="J per million env_steps",
        direction="lower",
        low=watts / rate.high,
        high=watts / rate.low,
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
            by_backend(of_panel, value, "n_envs"),
            level=level,
            right=(right, n_agents) if right and n_agents > 1 else None,
        )
        for (env, n_agents), of_panel in grouped(plain(records), "env", "n_agents").items()
    ]


def _in_sizes(records: Iterable[Record]) -> list[Record]:
    """Keep what was measured at several numbers of environments; the others are for figures over agents."""
    groups = grouped(plain(records), "env", "n_agents")
    several = [each for each in groups.values() if len({record.point["n_envs"] for record in each}) > 1]
    return [record for each in several or groups.values() for record in each]


def _findings(panels: Sequence[Panel], say: Callable[[Sequence[Dot]], str]) -> list[str]:
    return [
        f"{panel.title}, {series.name}: {say(series.dots)}"
        for panel in panels
        for series in panel.series
        if len(series.dots) > 1
    ]

"""Charts of env steps: throughput, energy, share of the limit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...core.groups import groups_of
from ...core.point import Metric
from ...core.record import Record
from ..charts import Chart, DataPoint, Panel, Series, chart, in_rows, lines, points_along
from ..labels import BACKEND_NAME, BACKEND_STYLE, environment
from ..records import derived_metric, grouped, joules, latest, plain
from .peers import HOLLOW, MANY, another, fastest_variants

RATE: Final = "env_steps_per_s"
SATURATED: Final = 0.9
"""Share of the highest rate that counts as saturated."""
PEER_STYLES: Final = tuple(zip(("#808080", "#000000", "#56B4E9") * 2, ("x", "+", "1", "2", "*", "|"), strict=True))
"""Colour and marker of each other software."""
DIRECTION: Final = {"n_envs": "more environments", "n_agents": "more agents"}

Value = Callable[[Record], Metric | None]

# ------------------------------------------------------------------ over environments


def throughput_chart(records: Sequence[Record]) -> Chart:
    """Chart the throughput over environments, ours and other software's.

    Its findings are the backends' saturation. Ours takes one step per launch, and many where other software does.
    """
    of_cases = groups_of(latest(records), lambda record: record.case)
    steps = of_cases.get("env_step", [])
    shown = _in_sizes(steps)
    panels = _over_envs(shown, lambda record: record.figure(RATE), right="agent steps per second")
    findings = _findings(panels, saturation)
    fused = {"mode": "fused", "kept": "last", "backend": "pycuda"}.items()
    many = [r for r in of_cases.get("many_steps", []) if fused <= r.point.items() and "policy" not in r.point]
    others = [r for r in fastest_variants(of_cases.get("peer", [])) if r.point["work"] == "simulate"]
    keys = list(grouped(plain(shown), "env", "n_agents"))
    many, others = ([r for r in each if (r.point["env"], r.point["n_agents"]) in keys] for each in (many, others))
    with_others = [
        replace(panel, series=[*panel.series, *_beside(many, others, key)])
        for key, panel in zip(keys, panels, strict=True)
    ]
    last = "any steps per launch store the last one"
    words = {"many": f" M{last}.", "last": f"; m{last}"} if many else {"many": "", "last": ""}
    absent = [env for (env,) in grouped(steps, "env") if env not in dict(keys)]
    names = ", ".join(environment(str(env)) for env in absent)
    words["absent"] = f"; not shown, as of one size: {names}" if names else ""
    return in_rows(replace(chart("throughput", with_others, [*shown, *many, *others], **words), findings=findings))


def _beside(many: Sequence[Record], others: Sequence[Record], key: tuple[Any, ...]) -> list[Series]:
    """Return the series of many steps per launch and of other software in a panel."""

    def points(records: Sequence[Record]) -> list[DataPoint]:
        in_panel = [r for r in records if (r.point["env"], r.point["n_agents"]) == key]
        return points_along(in_panel, lambda r: r.figure(RATE), lambda r: float(r.point["n_envs"]))

    style = BACKEND_STYLE["pycuda"] | {"linestyle": "--"} | HOLLOW
    names = dict.fromkeys(" ".join([str(r.point["peer"]), *(f"({each})" for each in another(r))]) for r in others)
    return [
        Series(f"{BACKEND_NAME['pycuda']}, {MANY}", style, points(many)),
        *(
            Series(
                f"{name}, fastest setting",
                {"color": colour, "marker": marker, "linestyle": "-"},
                points([record for record in others if record.point["peer"] == name.partition(" ")[0]]),
            )
            for name, (colour, marker) in zip(names, itertools.cycle(PEER_STYLES), strict=False)
        ),
    ]


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


# ------------------------------------------------------------------ over all agents of all environments


def limits_chart(records: Sequence[Record]) -> Chart:
    """Chart each backend's share of the machine's limit."""
    shown = [record for record in latest(records) if record.roofline is not None]

    def share(record: Record) -> Metric | None:
        rate = record.figure(RATE)
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

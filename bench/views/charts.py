"""What the report shows of records: figures as numbers, not yet drawn. Only evidence is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from bench.record import Curve, Metric, Record
from bench.reference import anchor
from bench.stats import interquartile_band, interquartile_mean
from bench.views.plots import (
    BACKEND_NAME,
    BACKEND_STYLE,
    ENV_NAME,
    backend_label,
    commit_label,
    curve_points,
    latest,
    times_baseline,
)

SATURATED: Final = 0.9
"""Share of the highest rate from which on a device counts as full."""
CURVE_POINTS: Final = 60
"""At which learning curves of several seeds are compared."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One value with its 95 % interval, and what else is to be said of it."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one name; a name looks the same in all panels of a figure."""

    name: str
    look: Mapping[str, str]
    """``color``, ``marker`` and ``linestyle`` as matplotlib writes them."""
    dots: Sequence[Dot]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    series: Sequence[Series]
    ticks: Sequence[str] = ()
    """Names of 0, 1, ... on an axis that has no numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One figure."""

    name: str
    title: str
    explains: str
    """What a reader must know to read it."""
    xlabel: str
    ylabel: str
    kind: Literal["line", "history", "rows", "shares"] = "line"
    """Lines over x; lines over ticks; values along x in a row for each tick; bars there that add up."""
    log_x: bool = True
    log_y: bool = True
    level: float | None = None
    """A value of y that means something, such as 1 of a ratio."""
    panels: Sequence[Panel]
    records: Sequence[Record]
    """What it is made from."""
    findings: Sequence[str] = ()
    """What can be read off it."""


def charts(records: Sequence[Record]) -> list[Chart]:
    """Return every figure for which the records, all of one machine, have evidence."""
    evidence = [record for record in records if record.is_evidence]
    found = []
    for case, make in CHARTS:
        of_case = [record for record in evidence if case in (record.case, "")]
        if of_case and (chart := make(of_case)) is not None and chart.panels:
            found.append(chart)
    return found


# ------------------------------------------------------------------ over environments


MEDIANS: Final = "Medians with their 95 % intervals."


def throughput(records: Sequence[Record]) -> Chart:
    """Return throughput over the number of environments, and where each backend is saturated."""
    shown = _in_sizes(latest(records))
    panels = _panels(shown, lambda record: metric(record, "env_steps_per_s"))
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


def speedup_over(baseline: str) -> Callable[[Sequence[Record]], Chart | None]:
    """Return what makes the figure of speed-ups over a backend of the CPU, at the same size in the same run."""

    def speedup(records: Sequence[Record]) -> Chart | None:
        bases = {size(record): record for record in records if record.point["backend"] == baseline}
        others = _in_sizes(
            latest(r for r in records if size(r) in bases and r.point["backend"] not in ("cpu", baseline))
        )
        if not others:
            return None
        compared = [bases[size(record)] for record in others]
        names = " and ".join(sorted({backend_label(record) for record in compared}))
        panels = _panels(others, lambda record: times_baseline(record, bases[size(record)]))
        return Chart(
            name=f"speedup-{baseline}",
            title=f"Speed-up over {names}",
            explains="Each ratio is of two points of the same size in the same run; its interval reaches as far as "
            "theirs allow. Above the line at 1 a backend is faster than the baseline.",
            xlabel="environments",
            ylabel=f"times {names}",
            level=1,
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
        explains="Of the whole card, over a window of at least 5 s in which the point is repeated.",
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


def _panels(records: Sequence[Record], value: Callable[[Record], Metric | None], axis: str = "n_envs") -> list[Panel]:
    """Return a panel for each environment and number of agents, with a series a backend."""
    return [
        Panel(environment(str(env), agents=int(n_agents)), _by_backend(of_panel, value, axis))
        for (env, n_agents), of_panel in _grouped(_plain(records), "env", "n_agents").items()
    ]


def _by_backend(
    records: Sequence[Record],
    value: Callable[[Record], Metric | None],
    axis: str,
    name: Callable[[Record], str] = backend_label,
    **changed: str,
) -> list[Series]:
    return [
        Series(name(own[0]), _look(BACKEND_STYLE[backend] | changed), dots)
        for backend in BACKEND_STYLE
        if (own := [record for record in records if record.point["backend"] == backend])
        and (dots := _dots(own, value, lambda record: float(record.point[axis])))
    ]


def _dots(
    records: Iterable[Record], value: Callable[[Record], Metric | None], along: Callable[[Record], float]
) -> list[Dot]:
    found = [
        Dot(along(record), each.value, each.low, each.high, record.run_id)
        for record in records
        if (each := value(record)) is not None
    ]
    return sorted(found, key=lambda dot: dot.x)


def _in_sizes(records: Iterable[Record]) -> list[Record]:
    """Keep what was measured at several numbers of environments; the others are for figures over agents."""
    groups = _grouped(_plain(records), "env", "n_agents")
    several = [each for each in groups.values() if len({record.point["n_envs"] for record in each}) > 1]
    return [record for each in several or groups.values() for record in each]


def _plain(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if not record.point.get("exact")]


def _findings(panels: Sequence[Panel], say: Callable[[Sequence[Dot]], str]) -> list[str]:
    return [
        f"{panel.title}, {series.name}: {say(series.dots)}"
        for panel in panels
        for series in panel.series
        if len(series.dots) > 1
    ]


# ------------------------------------------------------------------ over agents


def agents(records: Sequence[Record]) -> Chart:
    """Return throughput over the number of agents, in the number of environments that most sizes were measured in."""
    panels, shown = [], []
    for (env,), of_env in _grouped(_plain(latest(records)), "env").items():
        by_count = _grouped(of_env, "n_envs")
        (n_envs,) = max(by_count, key=lambda count: len({record.point["n_agents"] for record in by_count[count]}))
        found = by_count[n_envs,]
        if len({record.point["n_agents"] for record in found}) > 1:
            series = _by_backend(found, lambda record: metric(record, "agent_steps_per_s"), "n_agents")
            panels.append(Panel(environment(str(env), envs=int(n_envs)), series))
            shown += found
    return Chart(
        name="agents",
        title="Throughput over agents",
        explains=MEDIANS,
        xlabel="agents in each environment",
        ylabel="agent steps per second",
        panels=panels,
        records=shown,
    )


def neighbors(records: Sequence[Record]) -> Chart:
    """Return the search for neighbours in a grid of cells beside that of all pairs."""
    shown = latest(records)
    panels = []
    for (env, n_envs), found in _grouped(shown, "env", "n_envs").items():
        series: list[Series] = []
        for search, changed in (("grid", {}), ("all_pairs", {"linestyle": ":"})):
            own = [record for record in found if record.point["neighbor_search"] == search]
            words = search.replace("_", " ")
            series += _by_backend(
                own,
                lambda record: metric(record, "agent_steps_per_s"),
                "n_agents",
                lambda record, words=words: f"{backend_label(record)}, {words}",
                **changed,
            )
        panels.append(Panel(environment(str(env), envs=int(n_envs)), series))
    return Chart(
        name="neighbors",
        title="Search for neighbours",
        explains=f"Only how the neighbours are found differs. {MEDIANS}",
        xlabel="agents in each environment",
        ylabel="agent steps per second",
        panels=panels,
        records=shown,
    )


# ------------------------------------------------------------------ CUDA C and Numba, and the machine's limit


def languages(records: Sequence[Record]) -> Chart:
    """Return CUDA C over Numba, at the same size in the same run."""
    bases = {size(record): record for record in records if record.point["backend"] == "numba"}
    of_cuda_c = latest(record for record in records if record.point["backend"] == "pycuda" and size(record) in bases)
    return Chart(
        name="languages",
        title="CUDA C against Numba",
        explains="Both run the same phases as CUDA graphs, at the same size in the same run. Above the line at 1 "
        "CUDA C is faster; the interval reaches as far as theirs allow.",
        xlabel="agents in all environments",
        ylabel="times Numba-CUDA",
        level=1,
        log_y=False,
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
        name="roofline",
        title="Roofline",
        explains="The shortest time in which the device could move the least bytes, or do the least operations, of a "
        "step, over the time that it takes. 1 is the machine's limit.",
        xlabel="agents in all environments",
        ylabel="share of the machine's limit",
        level=1,
        panels=_panels_of_directions(shown, share),
        records=shown,
    )


def _panels_of_directions(records: Sequence[Record], value: Callable[[Record], Metric | None]) -> list[Panel]:
    """Return a panel for each environment over all its agents: series for more environments and for more agents."""
    panels = []
    for (env,), of_env in _grouped(_plain(records), "env").items():
        series = []
        for backend in BACKEND_STYLE:
            of_backend = [record for record in of_env if record.point["backend"] == backend]
            for fixed, other, dash in (("n_agents", "n_envs", "-"), ("n_envs", "n_agents", ":")):
                lines = _grouped(of_backend, fixed)
                if not lines:
                    continue
                longest = max(lines.values(), key=lambda line: len({record.point[other] for record in line}))
                if len({record.point[other] for record in longest}) > 1:
                    name = f"{BACKEND_NAME[backend]}, {DIRECTION[other]}"
                    dots = _dots(longest, value, _all_agents)
                    series.append(Series(name, _look(BACKEND_STYLE[backend] | {"linestyle": dash}), dots))
        if series:
            panels.append(Panel(environment(str(env)), series))
    return panels


def _all_agents(record: Record) -> float:
    return float(record.point["n_envs"]) * float(record.point["n_agents"])


DIRECTION: Final = {"n_envs": "more environments", "n_agents": "more agents"}


# ------------------------------------------------------------------ samplers, training


def samplers(records: Sequence[Record]) -> Chart:
    """Return the rate of each sampler, in a row each."""
    shown = latest(records)
    panels = []
    for (n_envs, n_agents, n_actions), found in _grouped(shown, "n_envs", "n_agents", "n_actions").items():
        ordered = sorted(found, key=lambda record: -_rate(record, "samples_per_s"))
        names = [_sampler(record) for record in ordered]
        series = [
            Series(
                "ours" if own else "torch",
                _look(BACKEND_STYLE["pycuda"] if own else BACKEND_STYLE["cpu"]),
                _in_rows(ordered, "samples_per_s", lambda r, own=own: (r.point["implementation"] == "ours") == own),
            )
            for own in (True, False)
        ]
        title = f"{counted(int(n_envs), 'environment')}, {counted(int(n_agents), 'agent')}, {n_actions} actions"
        panels.append(Panel(title, [each for each in series if each.dots], names))
    return Chart(
        name="sampler",
        title="Samplers",
        explains=f"One action for every agent, drawn from its own probabilities. {MEDIANS}",
        kind="rows",
        xlabel="samples per second",
        ylabel="",
        panels=panels,
        records=shown,
    )


def _sampler(record: Record) -> str:
    if record.point["implementation"] == "ours":
        return f"ours, {backend_label(record)}"
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"


def training(records: Sequence[Record]) -> Chart:
    """Return the throughput of training, and of others on the same points, in a row for each point."""
    shown = latest(records)
    panels = []
    for (env,), found in _grouped(shown, "env").items():
        names = list(dict.fromkeys(_iteration(record) for record in found))
        series = []
        for backend in BACKEND_STYLE:
            own = [record for record in found if record.point["backend"] == backend]
            rows = [
                Dot(each.value, names.index(_iteration(record)), each.low, each.high, record.run_id)
                for record in own
                if (each := metric(record, "env_steps_per_s"))
            ]
            if rows:
                series.append(Series(backend_label(own[0]), _look(BACKEND_STYLE[backend]), rows))
        series += _others(found, names)
        panels.append(Panel(environment(str(env)), series, names))
    return Chart(
        name="training",
        title="Training",
        explains=f"An iteration is a rollout and the update of every policy. {MEDIANS} What others reach on the same "
        "points was measured on an NVIDIA H200.",
        kind="rows",
        xlabel="environment steps per second of rollout and update",
        ylabel="",
        panels=panels,
        records=shown,
    )


def _others(records: Sequence[Record], names: Sequence[str]) -> list[Series]:
    """Return what others reach on the points of records."""
    rows: dict[str, dict[int, Dot]] = {}
    for record in records:
        other = anchor(record.point)
        if other is not None and other.env_steps_per_s is not None:
            row, rate = names.index(_iteration(record)), other.env_steps_per_s
            rows.setdefault(other.by, {})[row] = Dot(rate, row, rate, rate, "bench/reference.py")
    look = {"color": "#777777", "marker": "x", "linestyle": "-"}
    return [Series(f"{by} (on an H200)", look, list(dots.values())) for by, dots in sorted(rows.items())]


def split(records: Sequence[Record]) -> Chart:
    """Return which share of an iteration is its rollout, and which its update."""
    shown = [record for record in latest(records) if {"rollout_s", "update_s"} <= record.notes.keys()]
    panels = []
    for (env,), found in _grouped(shown, "env").items():
        names = [f"{_iteration(record)}, {record.point['backend']}" for record in found]
        series = []
        for name, look in (("rollout", "cpu"), ("update", "host")):
            dots = []
            for row, record in enumerate(found):
                seconds = record.notes[f"{name}_s"]
                share = seconds / (record.notes["rollout_s"] + record.notes["update_s"])
                dots.append(Dot(share, row, share, share, f"{1e3 * seconds:.3g} ms; {record.run_id}"))
            series.append(Series(name, _look(BACKEND_STYLE[look]), dots))
        panels.append(Panel(environment(str(env)), series, names))
    return Chart(
        name="split",
        title="Time split of an iteration",
        explains="Rollout and update, each measured by itself over the iterations after the warm-up.",
        kind="shares",
        xlabel="share of an iteration",
        ylabel="",
        log_x=False,
        panels=panels,
        records=shown,
    )


def _iteration(record: Record) -> str:
    point = record.point
    played = f"{counted(int(point['n_agents']), 'agent')} x {counted(int(point['n_steps']), 'step')}"
    how = "" if (point["precision"], point["mode"]) == ("fp32", "graph") else f", {point['precision']}, {point['mode']}"
    return f"{point['algorithm']} {point['network']}, {point['n_envs']:,} x {played}{how}"


def _in_rows(records: Sequence[Record], name: str, keep: Callable[[Record], bool]) -> list[Dot]:
    return [
        Dot(each.value, row, each.low, each.high, record.run_id)
        for row, record in enumerate(records)
        if keep(record) and (each := metric(record, name))
    ]


# ------------------------------------------------------------------ learning


def learning_over(xlabel: str, along: Callable[[Curve], Sequence[float]], log_x: bool) -> Callable[..., Chart]:
    """Return what makes the figure of learning curves along their steps or seconds."""

    def learning(records: Sequence[Record]) -> Chart:
        shown = latest(records)
        panels = []
        for key, found in _grouped(shown, "env", "algorithm", "learner", "n_envs", "threshold").items():
            env, algorithm, learner, n_envs, threshold = key
            series = []
            for backend, look in BACKEND_STYLE.items():
                seeds = [record for record in found if record.point["backend"] == backend]
                dots = _curve([curve_points(record, str(learner), along) for record in seeds], log_x)
                if dots:
                    series.append(Series(backend_label(seeds[0]), _look(look | {"marker": ""}), dots))
            if series:
                ends = [min(each.dots[0].x for each in series), max(each.dots[-1].x for each in series)]
                level = [Dot(x, float(threshold), float(threshold), float(threshold)) for x in ends]
                series.append(Series("threshold", {"color": "#777777", "marker": "", "linestyle": ":"}, level))
                who = "" if learner == "shared" else f" ({learner})"
                panels.append(Panel(f"{environment(str(env), envs=int(n_envs))}{who}, {algorithm}", series))
        return Chart(
            name=f"learning-{xlabel.split()[-1]}",
            title=f"Learning over {xlabel}",
            explains="Interquartile mean of the seeds' mean returns, with its 95 % bootstrap interval; seeds that are "
            "done keep their last return.",
            xlabel=xlabel,
            ylabel="mean return",
            log_x=log_x,
            log_y=False,
            panels=panels,
            records=shown,
        )

    return learning


def _curve(curves: Sequence[tuple[Any, Any]], log_x: bool) -> list[Dot]:
    """Return the interquartile mean from where all seeds have begun to where the last one ends."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return []
    spaced = np.geomspace if log_x else np.linspace
    x = spaced(max(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves), CURVE_POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    columns = (x, interquartile_mean(values), *interquartile_band(values))
    note = counted(len(curves), "seed")
    return [Dot(*(float(f"{each:.6g}") for each in row), note) for row in zip(*columns, strict=True)]


# ------------------------------------------------------------------ history


def history(records: Sequence[Record]) -> Chart:
    """Return the points that several runs measured, in the order in which they did."""
    repeated = [record for record in records if record.metrics and record.point.get("backend") in BACKEND_STYLE]
    repeated = [record for record in repeated if record.case != "learn"]
    panels, shown = [], []
    runs: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Record]]] = {}
    for record in sorted(repeated, key=lambda record: record.started_at):
        place = tuple((axis, value) for axis, value in sorted(record.point.items()) if axis != "backend")
        point = (record.case, record.case_version, place)
        runs.setdefault(point, {}).setdefault((record.point["backend"], record.threads), {})[record.run_id] = record
    for (case, _, place), backends in runs.items():
        found = {run_id: record for each in backends.values() if len(each) > 1 for run_id, record in each.items()}
        ordered = sorted(found.values(), key=lambda record: record.started_at)
        ids = [record.run_id for record in ordered]
        series = []
        for (backend, _), each in sorted(backends.items(), key=lambda item: list(BACKEND_STYLE).index(item[0][0])):
            if len(each) > 1:
                own = list(each.values())
                dots = _dots(own, first_metric, lambda record, ids=ids: float(ids.index(record.run_id)))
                series.append(Series(backend_label(own[0]), _look(BACKEND_STYLE[backend]), dots))
                shown += own
        if series:
            panels.append(Panel(_place(case, dict(place)), series, [commit_label(record) for record in ordered]))
    return Chart(
        name="history",
        title="History over commits",
        explains="The same point of the same version of its case in several runs, oldest first; the ticks name the "
        "commit. Runs may differ in preset and card: their records say so.",
        kind="history",
        xlabel="commit",
        ylabel="units of work per second",
        log_x=False,
        panels=panels,
        records=shown,
    )


def _place(case: str, point: Mapping[str, Any]) -> str:
    """Name a point without its backend."""
    if case in ("env_step", "neighbor_search"):
        more = [f"exact={point['exact']}"] if point.get("exact") else []
        more += [f"{point['neighbor_search']}".replace("_", " ")] if "neighbor_search" in point else []
        return ", ".join([environment(point["env"], agents=point["n_agents"], envs=point["n_envs"]), *more])
    return f"{case}: {', '.join(f'{axis} {value}' for axis, value in point.items())}"


# ------------------------------------------------------------------ words and parts


def metric(record: Record, name: str) -> Metric | None:
    """Return a metric of a record by its name, if it has it."""
    return (record.metrics or {}).get(name)


def first_metric(record: Record) -> Metric | None:
    """Return the metric that a record is mainly about: the rate of its first kind of work."""
    return next(iter((record.metrics or {}).values()), None)


def _rate(record: Record, name: str) -> float:
    found = metric(record, name)
    return found.value if found else 0.0


def size(record: Record) -> tuple[Any, ...]:
    """Return what two points that are compared must share: the run and all axes but the backend."""
    axes = sorted((axis, value) for axis, value in record.point.items() if axis != "backend")
    return (record.run_id, record.case, *axes)


def times(ratio: float) -> str:
    """Write a ratio with three digits."""
    return f"{float(f'{ratio:.3g}'):,g}"


def counted(count: int, what: str) -> str:
    """Write a number of things."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def environment(env: str, agents: int = 1, envs: int | None = None) -> str:
    """Name an environment, its agents if there are several, and how many of it there are."""
    parts = [ENV_NAME.get(env, env)]
    parts += [counted(agents, "agent")] if agents > 1 else []
    parts += [] if envs is None else [counted(envs, "environment")]
    return ", ".join(parts)


def _grouped(records: Iterable[Record], *axes: str) -> dict[tuple[Any, ...], list[Record]]:
    """Group records by the values of axes, in order; environments in the order of their names' list."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.point[axis] for axis in axes), []).append(record)
    order = list(ENV_NAME)

    def place(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple((order.index(part) if part in order else len(order), part) for part in key)

    return {key: groups[key] for key in sorted(groups, key=place)}


def _look(style: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(style[name]) for name in ("color", "marker", "linestyle")}


CHARTS: Final[tuple[tuple[str, Callable[[Sequence[Record]], Chart | None]], ...]] = (
    ("env_step", throughput),
    ("env_step", speedup_over("cpu")),
    ("env_step", speedup_over("host")),
    ("env_step", agents),
    ("env_step", languages),
    ("env_step", limits),
    ("env_step", energy),
    ("neighbor_search", neighbors),
    ("sampler", samplers),
    ("train", training),
    ("train", split),
    ("learn", learning_over("environment steps", lambda curve: curve.env_steps, log_x=False)),
    ("learn", learning_over("seconds", lambda curve: curve.seconds, log_x=True)),
    ("", history),
)
"""What is shown of which case; "" is all of them."""

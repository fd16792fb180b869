"""What the figures are: which records, series, axes, levels and words, as numbers that two painters draw.

`plots.py` draws them with matplotlib and `charts.py` in the report. Nothing is measured, and only evidence is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from bench.cases.environments import FULLY_OBSERVED_AGENTS, ON_GPU
from bench.cases.scaling_case import efficiencies
from bench.record import Curve, Metric, Record
from bench.reference import JAX, WARPDRIVE, anchor
from bench.roofline import LIMITS
from bench.stats import Floats, interquartile_band, interquartile_mean, median, median_interval

SATURATED: Final = 0.9
"""Share of the highest rate from which on a device counts as full."""
CURVE_POINTS: Final = 100
"""At which learning curves of several seeds are compared."""

# Okabe and Ito's colours, which people with any colour vision tell apart; marker and line say the same again.
BACKEND_STYLE: Final[dict[str, dict[str, str]]] = {
    "cpu": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "host": {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    "numba": {"color": "#009E73", "marker": "^", "linestyle": "-."},
    "pycuda": {"color": "#D55E00", "marker": "D", "linestyle": "-"},
}
BACKEND_NAME: Final = {"cpu": "NumPy", "host": "C++", "numba": "Numba-CUDA", "pycuda": "CUDA C (PyCUDA)"}
ENV_NAME: Final = {
    "cartpole": "CartPole",
    "mountain_car": "MountainCar",
    "continuous_mountain_car": "Continuous MountainCar",
    "acrobot": "Acrobot",
    "pendulum": "Pendulum",
    "tag_gridworld": "Tag GridWorld",
    "tag_continuous": "Tag Continuous",
}
GREY: Final = {"color": "#808080", "marker": "x", "linestyle": "none"}
"""Of what is not ours; `OTHERS` is that of code beside our kernels, on a GPU and on a CPU."""
OTHERS: Final = {True: "#555555", False: "#999999"}
OTHER_MARKER: Final = {"torch cumsum": "+"}
"""Where two stand in a row, one of them."""
REFERENCE_MARKER: Final = {WARPDRIVE: "x", JAX: "+"}
PART_COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
HATCHES: Final = ("", "///")


@dataclass(frozen=True, slots=True)
class Dot:
    """One value with its 95 % interval, and what else is to be said of it."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""
    label: str = ""
    """Stands beside it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one name; a name looks the same in all panels of a figure."""

    name: str
    look: Mapping[str, Any]
    """``color``, ``marker``, ``linestyle``, ``markerfacecolor`` and ``hatch`` as matplotlib writes them."""
    dots: Sequence[Dot]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    series: Sequence[Series]
    ticks: Sequence[str] = ()
    """Names of 0, 1, ... on an axis that has no numbers; of rows from the top."""
    level: float | None = None
    """A value of y that means something, such as 1 of a ratio."""
    xlabel: str = ""
    """Instead of the figure's; so is ``ylabel``."""
    ylabel: str = ""
    right: tuple[str, float] | None = None
    """Label of a second axis on the right, and how many times the left one's values it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One figure."""

    name: str
    title: str
    explains: str
    """What a reader must know to read it."""
    statistic: str = "median and 95 % interval"
    """The same in a few words, for a figure that stands alone."""
    xlabel: str
    ylabel: str = ""
    kind: Literal["line", "history", "rows", "bars"] = "line"
    """Lines over x; lines over ticks; values along x in a row for each tick; bars there, one after the other."""
    log_x: bool = True
    log_y: bool = True
    columns: int = 2
    """Of panels on paper; rows and bars have one."""
    has_legend: bool = True
    """False: on paper the names of the rows say it all."""
    panels: Sequence[Panel]
    records: Sequence[Record]
    """What it is made from."""
    findings: Sequence[str] = ()
    """What can be read off it."""


def charts(records: Iterable[Record]) -> list[Chart]:
    """Return every figure for which the records, all of one machine, have evidence."""
    evidence = [record for record in records if record.is_evidence]
    made = [make([record for record in evidence if case in (record.case, "")]) for case, make in CHARTS]
    return [chart for chart in made if chart.panels]


# ------------------------------------------------------------------ over environments


MEDIANS: Final = "Medians with their 95 % intervals."


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
        bases = _bases(records, "backend", baseline)
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


AGENTS_IN_EACH: Final = "agents in each environment"


def neighbors(records: Sequence[Record]) -> Chart:
    """Return the search in a grid of cells beside that of all pairs in its run, and how many times faster it is."""
    pairs = _bases(records, "neighbor_search", "all_pairs")

    def place(record: Record) -> tuple[Any, ...]:
        return size(record, "neighbor_search")

    grids = latest(r for r in records if r.point["neighbor_search"] == "grid" and place(r) in pairs)
    bases = [pairs[place(record)] for record in grids]
    panels = []
    for (env, n_envs), found in _grouped(grids, "env", "n_envs").items():
        title = environment(str(env), envs=int(n_envs))
        rates: list[Series] = []
        every = [pairs[place(record)] for record in found]
        dotted = {"linestyle": ":", "markerfacecolor": "none"}
        for words, own, changed in (("cells", found, {}), ("all pairs", every, dotted)):
            made = _by_backend(own, lambda record: metric(record, "agent_steps_per_s"), "n_agents", **changed)
            rates += [Series(f"{series.name}, {words}", series.look, series.dots) for series in made]
        factors = _by_backend(found, lambda record: times_baseline(record, pairs[place(record)]), "n_agents")
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
    for (env,), found in _grouped(latest(records), "env").items():
        if len({record.point["n_agents"] for record in found}) > 1:
            series = _by_backend(found, lambda record: metric(record, "bytes_per_env"), "n_agents")
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


# ------------------------------------------------------------------ CUDA C and Numba, and the machine's limit


def languages(records: Sequence[Record]) -> Chart:
    """Return CUDA C over Numba, at the same size in the same run."""
    bases = _bases(records, "backend", "numba")
    of_cuda_c = latest(record for record in records if record.point["backend"] == "pycuda" and size(record) in bases)
    return Chart(
        name="languages",
        title="CUDA C against Numba",
        explains="Both run the same phases as CUDA graphs, at the same size in the same run. Above the line at 1 "
        "CUDA C is faster; the interval reaches as far as theirs allow.",
        xlabel="agents in all environments",
        ylabel="times Numba-CUDA",
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
        name="limits",
        title="Share of the machine's limit",
        explains="The shortest time in which the device could move the least bytes, or do the least operations, of a "
        "step, over the time that it takes. 1 is the machine's limit.",
        xlabel="agents in all environments",
        ylabel="share of the machine's limit",
        panels=_panels_of_directions(shown, share),
        records=shown,
    )


def _panels_of_directions(records: Sequence[Record], value: Callable[[Record], Metric | None]) -> list[Panel]:
    """Return a panel for each environment over all its agents: series for more environments and for more agents."""
    panels = []
    for (env,), of_env in _grouped(_plain(records), "env").items():
        series = []
        for backend, style in BACKEND_STYLE.items():
            of_backend = [record for record in of_env if record.point["backend"] == backend]
            for fixed, other, dash in (("n_agents", "n_envs", "-"), ("n_envs", "n_agents", ":")):
                lines = _grouped(of_backend, fixed)
                if not lines:
                    continue
                longest = max(lines.values(), key=lambda line: len({record.point[other] for record in line}))
                if len({record.point[other] for record in longest}) > 1:
                    name = f"{BACKEND_NAME[backend]}, {DIRECTION[other]}"
                    series.append(Series(name, style | {"linestyle": dash}, _dots(longest, value, _all_agents)))
        if series:
            panels.append(Panel(environment(str(env)), series, level=1))
    return panels


def _all_agents(record: Record) -> float:
    return float(record.point["n_envs"]) * float(record.point["n_agents"])


DIRECTION: Final = {"n_envs": "more environments", "n_agents": "more agents"}


def roofline(records: Sequence[Record]) -> Chart:
    """Return the operations a second over the operations for each byte, below what the device allows."""
    shown = [r for r in _plain(latest(records)) if r.roofline is not None and r.samples_ns and _intensity(r)]
    groups: dict[str, list[Record]] = {}
    for record in sorted(shown, key=lambda record: (record.case != "env_step", record.case, _env_order(record))):
        env = ENV_NAME.get(str(record.point.get("env")), "")
        groups.setdefault(env if record.case == "env_step" else f"{record.case}{env and ', '}{env}", []).append(record)
    ends = [scale * end(map(_intensity, shown)) for end, scale in ((min, 0.5), (max, 2))] if shown else []
    panels = []
    for title, found in groups.items():
        series = []
        for name, (look, own) in _by_maker(found).items():
            points = sorted(((_intensity(record), _ops_per_s(record), record) for record in own), key=lambda p: p[:1])
            dots = [Dot(x, each.value, each.low, each.high, said(record)) for x, each, record in points]
            series.append(Series(name, look | {"linestyle": "none"}, dots))
        allowed = LIMITS[str(found[0].machine["gpu"])]
        ridge = allowed.ops_per_s / allowed.bytes_per_s
        corners = [(x, min(allowed.ops_per_s, x * allowed.bytes_per_s)) for x in sorted({*ends, max(ends[0], ridge)})]
        ceiling = [Dot(x, y, y, y, allowed.source) for x, y in corners]
        series.append(Series("the device", {"color": GREY["color"], "marker": "", "linestyle": "-"}, ceiling))
        panels.append(Panel(title, series))
    return Chart(
        name="roofline",
        title="Roofline",
        explains="Bytes and operations are the least that the work needs, so what a run does beyond that lowers its "
        "dot. On the slope memory is the limit, on the flat part arithmetic.",
        xlabel="operations for each byte",
        ylabel="operations per second",
        columns=3,
        panels=panels,
        records=shown,
    )


def _intensity(record: Record) -> float:
    """Return the operations for each byte; 0 where a record does not say, or does not count them."""
    n_bytes = record.notes.get("bytes_per_run")
    return record.notes["ops_per_run"] / n_bytes if n_bytes else 0.0


def _ops_per_s(record: Record) -> Metric:
    assert record.samples_ns is not None
    low_ns, high_ns = median_interval(record.samples_ns)
    value, low, high = (1e9 * record.notes["ops_per_run"] / ns for ns in (median(record.samples_ns), high_ns, low_ns))
    return Metric(value=value, unit="ops/s", direction="higher", low=low, high=high)


# ------------------------------------------------------------------ rows: kernels, rollouts, training


def samplers(records: Sequence[Record]) -> Chart:
    """Return the rate of each sampler in a row of its own, and how it compares with torch on the same device."""
    shown = latest(records)
    panels = []
    for (n_envs, n_agents, n_actions), found in _grouped(shown, "n_envs", "n_agents", "n_actions").items():
        by_rate = sorted(found, key=lambda record: (record.threads is not None, -_rate(record, "samples_per_s")))
        torch = [record for record in found if record.point["implementation"] == "torch.multinomial"]
        base = {record.threads is None: _rate(record, "samples_per_s") for record in torch}
        title = f"{counted(int(n_envs), 'environment')}, {counted(int(n_agents), 'agent')}, {n_actions} actions"

        def over_torch(record: Record, base: Mapping[bool, float] = base) -> str:
            other = base.get(record.threads is None)
            return f"{_rate(record, 'samples_per_s') / other:.3g} x" if other else ""

        panels.append(_rows(title, by_rate, "samples_per_s", _sampler_name, over_torch))
    return Chart(
        name="sampler",
        title="Samplers",
        explains=f"One action for every agent, drawn from its own probabilities. {MEDIANS}",
        kind="rows",
        xlabel="samples per second (x: over torch.multinomial on the same device)",
        has_legend=False,
        panels=panels,
        records=shown,
    )


def _sampler_name(record: Record) -> str:
    return f"ours, {maker(record)}" if _is_ours(record) else maker(record)


def kernels(records: Sequence[Record]) -> Chart:
    """Return the rates of single kernels other than the sampler, a panel for each case and a row for each size."""
    shown = [record for record in latest(records) if record.scope == "kernel" and record.case != "sampler"]
    panels = []
    for case in dict.fromkeys(record.case for record in shown):
        found = sorted((record for record in shown if record.case == case), key=lambda r: (_env_order(r), _extent(r)))
        name = next(iter(found[0].metrics or {}))
        xlabel = f"{name.removesuffix('_per_s').replace('_', ' ').replace('env', 'environment')} per second"
        panels.append(_rows(case.replace("_", " "), found, name, _size_name, xlabel=xlabel))
    return Chart(
        name="kernels",
        title="Kernels",
        explains=f"Single kernels, and what torch offers for the same work. {MEDIANS}",
        kind="rows",
        xlabel="",
        panels=panels,
        records=shown,
    )


def _extent(record: Record) -> float:
    return float(np.prod([value for value in record.point.values() if type(value) is int] or [1]))


def _size_name(record: Record) -> str:
    """Name a point by all axes but who did the work."""
    axes = {axis: value for axis, value in record.point.items() if axis not in ("backend", "implementation")}
    words = [ENV_NAME.get(str(axes.pop("env")), "")] if "env" in axes else []
    for axis, value in axes.items():
        thing = axis.removeprefix("n_").replace("envs", "environments")
        words.append(counted(value, thing[:-1], thing) if type(value) is int else str(value))
    return ", ".join(words)


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
            _rows(environment(str(env)), found, "env_steps_per_s", _iteration)
            for (env,), found in _grouped(sorted(shown, key=_iteration_order), "env").items()
        ],
        records=shown,
    )


def training(records: Sequence[Record]) -> Chart:
    """Return the throughput of training, and of others on the same points, in a row for each point."""
    shown = latest(records)
    panels = []
    for (env,), found in _grouped(sorted(shown, key=_iteration_order), "env").items():
        best = {_iteration(record): record for record in sorted(found, key=lambda r: _rate(r, "env_steps_per_s"))}

        def over_other(record: Record, best: Mapping[str, Record] = best) -> str:
            other = anchor(record.point)
            if other is None or best[_iteration(record)] is not record:
                return ""
            base = other.env_steps_per_s
            return f"{_rate(record, 'env_steps_per_s') / base:.3g} x" if base else f"{other.by}: does not run"

        own = _rows(environment(str(env)), found, "env_steps_per_s", _iteration, over_other)
        panels.append(Panel(own.title, [*own.series, *_others(found, own.ticks)], own.ticks))
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


def _others(records: Sequence[Record], names: Sequence[str]) -> list[Series]:
    """Return what others reach on the points of records."""
    rows: dict[str, dict[int, Dot]] = {}
    for record in records:
        other = anchor(record.point)
        if other is not None and other.env_steps_per_s is not None:
            row, rate = names.index(_iteration(record)), other.env_steps_per_s
            rows.setdefault(other.by, {})[row] = Dot(rate, row, rate, rate, "bench/reference.py")
    return [
        Series(f"{by} (on an H200)", GREY | {"marker": REFERENCE_MARKER[by]}, list(dots.values()))
        for by, dots in sorted(rows.items())
    ]


def split(records: Sequence[Record]) -> Chart:
    """Return which share of an iteration is its rollout, and which its update."""
    shown = [record for record in latest(records) if {"rollout_s", "update_s"} <= record.notes.keys()]
    panels = []
    for (env,), found in _grouped(sorted(shown, key=_iteration_order), "env").items():
        series = []
        for index, part in enumerate(("rollout", "update")):
            dots = []
            for row, record in enumerate(found):
                seconds = record.notes[f"{part}_s"]
                share = seconds / (record.notes["rollout_s"] + record.notes["update_s"])
                dots.append(Dot(share, row, share, share, record.run_id, f"{1e3 * seconds:.3g} ms"))
            series.append(Series(part, _part(index, HATCHES[index]), dots))
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
    for key, found in _grouped(shown, "env", "n_agents", "n_envs", "precision").items():
        env, n_agents, _, precision = key
        counts = sorted({int(record.point["n_ranks"]) for record in found})
        if len(counts) > 1:
            where = "GPUs" if found[0].threads is None else "processes on the CPU, each with as many threads"
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


def starting(records: Sequence[Record]) -> Chart:
    """Return how long each part of a start takes, one after the other, in a row for each point."""
    shown = sorted(latest(records), key=_start_name)
    series = []
    for index, part in enumerate(dict.fromkeys(name for record in shown for name in record.notes["samples_s"])):
        found = [(row, record, metric(record, part)) for row, record in enumerate(shown)]
        dots = [Dot(each.value, row, each.low, each.high, r.run_id) for row, r, each in found if each is not None]
        look = _part(index % len(PART_COLORS), HATCHES[index // len(PART_COLORS)])
        series.append(Series(part.removesuffix("_s").replace("_", " "), look, dots))
    return Chart(
        name="startup",
        title="Start of a process",
        explains="Each part of the start of a fresh process, one after the other. Medians of each part.",
        statistic="medians of each part",
        kind="bars",
        xlabel="seconds in a fresh process",
        log_x=False,
        panels=[Panel("", series, [_start_name(record) for record in shown])] if shown else [],
        records=shown,
    )


def _start_name(record: Record) -> str:
    point = record.point
    return f"{environment(str(point['env']))}, {point['until']}, {backend_label(record)}, {point['cache']}"


def _part(index: int, hatch: str) -> dict[str, str]:
    return {"color": PART_COLORS[index], "marker": "", "linestyle": "none", "hatch": hatch}


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


def _rows(
    title: str,
    records: Sequence[Record],
    value: str,
    row: Callable[[Record], str],
    label: Callable[[Record], str] = lambda record: "",
    xlabel: str = "",
) -> Panel:
    """Return a panel with the value of each record in its row, in the order of the records."""
    names = list(dict.fromkeys(map(row, records)))
    series = []
    for name, (look, own) in _by_maker(records).items():
        dots = [
            Dot(each.value, names.index(row(record)), each.low, each.high, record.run_id, label(record))
            for record in own
            if (each := metric(record, value))
        ]
        series.append(Series(name, look | {"linestyle": "none"}, dots))
    return Panel(title, [each for each in series if each.dots], names, xlabel=xlabel)


def _by_maker(records: Sequence[Record]) -> dict[str, tuple[dict[str, str], list[Record]]]:
    """Group records by who did the work, with a look for each: our backends in their order, then others."""
    found: dict[str, tuple[dict[str, str], list[Record]]] = {}
    order = list(BACKEND_STYLE)
    for record in sorted(records, key=lambda r: (not _is_ours(r), order.index(str(r.point["backend"])))):
        look = BACKEND_STYLE[str(record.point["backend"])]
        if not _is_ours(record):
            marker = OTHER_MARKER.get(str(record.point["implementation"]), GREY["marker"])
            look = GREY | {"color": OTHERS[record.threads is None], "marker": marker}
        found.setdefault(maker(record), (look, []))[1].append(record)
    return found


def _is_ours(record: Record) -> bool:
    return record.point.get("implementation", "ours") == "ours"


def maker(record: Record) -> str:
    """Name who did the work of a record: a backend of ours, or others' code and on what it ran."""
    if _is_ours(record):
        return backend_label(record)
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"


# ------------------------------------------------------------------ learning


def learning_over(
    name: str, xlabel: str, along: Callable[[Curve], Sequence[float]], log_x: bool
) -> Callable[[Sequence[Record]], Chart]:
    """Return what makes the figure of learning curves along their steps or seconds."""

    def learning(records: Sequence[Record]) -> Chart:
        shown = latest(records)
        panels = []
        axes = ("env", "algorithm", "learner", "n_envs", "threshold", "precision")
        for key, found in _grouped(shown, *axes).items():
            env, algorithm, learner, n_envs, threshold, precision = key
            series, counts = [], set()
            for backend, look in BACKEND_STYLE.items():
                seeds = [record for record in found if record.point["backend"] == backend]
                dots = _curve([curve_points(record, str(learner), along) for record in seeds], log_x)
                if dots:
                    series.append(Series(backend_label(seeds[0]), look | {"marker": ""}, dots))
                    counts.add(len(seeds))
            if series:
                who = "" if learner == "shared" else f" ({learner})"
                how = f", {precision}" if precision else ""
                title = f"{environment(str(env))}{who}, {algorithm}{how}, {int(n_envs):,} x, {_seeds(counts)}"
                panels.append(Panel(title, series, level=float(threshold)))
        return Chart(
            name=name,
            title=f"Learning over {xlabel}",
            explains="Interquartile mean of the seeds' mean returns, with its 95 % bootstrap interval; seeds that are "
            "done keep their last return. The level is the task's threshold; x counts environments.",
            statistic="interquartile mean over seeds and its 95 % bootstrap interval; seeds that are done stay",
            xlabel=xlabel,
            ylabel="mean return",
            log_x=log_x,
            log_y=False,
            panels=panels,
            records=shown,
        )

    return learning


def _seeds(counts: set[int]) -> str:
    """Say how many seeds the lines of a panel have."""
    least, most = min(counts), max(counts)
    return counted(most, "seed") if least == most else f"{least} to {most} seeds"


def curve_points(record: Record, learner: str, along: Callable[[Curve], Sequence[float]]) -> tuple[Floats, Floats]:
    """Return where along its curve a seed has a return, and which."""
    assert record.curve is not None
    pairs = zip(along(record.curve), record.curve.mean_return[learner], strict=True)
    found = np.array([pair for pair in pairs if pair[1] is not None], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _curve(curves: Sequence[tuple[Floats, Floats]], log_x: bool) -> list[Dot]:
    """Return the interquartile mean from where all seeds have begun to where the last one ends."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return []
    spaced = np.geomspace if log_x else np.linspace
    x = spaced(max(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves), CURVE_POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    columns = (x, interquartile_mean(values), *interquartile_band(values))
    note = counted(len(curves), "seed")
    return [Dot(*map(float, row), note) for row in zip(*columns, strict=True)]


# ------------------------------------------------------------------ history


def history(records: Sequence[Record]) -> Chart:
    """Return the points that several runs measured, in the order in which they did."""
    repeated = [r for r in records if r.metrics and r.point.get("backend") in BACKEND_STYLE and r.case != "learn"]
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
                series.append(Series(backend_label(own[0]), BACKEND_STYLE[backend], dots))
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


# ------------------------------------------------------------------ records


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each point by its start, of the newest version of its case."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        found[record.case, *sorted(record.point.items())] = record
    newest = {case: max(r.case_version for r in found.values() if r.case == case) for case in {key[0] for key in found}}
    return [record for record in found.values() if record.case_version == newest[record.case]]


def by_machine(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by the machine that made them, named by its GPU, else its CPU."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        name = f"{record.machine.get('gpu') or record.machine.get('cpu')} {record.machine.get('cores')} cores"
        groups.setdefault("-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()), []).append(record)
    return groups


def metric(record: Record, name: str) -> Metric | None:
    """Return a metric of a record by its name, if it has it."""
    return (record.metrics or {}).get(name)


def first_metric(record: Record) -> Metric | None:
    """Return the metric that a record is mainly about: the rate of its first kind of work."""
    return next(iter((record.metrics or {}).values()), None)


def _rate(record: Record, name: str) -> float:
    found = metric(record, name)
    return found.value if found else 0.0


def times_baseline(record: Record, base: Record) -> Metric | None:
    """Return how many times faster a record is than its baseline; None where one of them has no figure."""
    own, reference = metric(record, "agent_steps_per_s"), metric(base, "agent_steps_per_s")
    if own is None or reference is None:
        return None
    return Metric(
        value=own.value / reference.value,
        unit="x",
        direction="higher",
        low=own.low / reference.high,
        high=own.high / reference.low,
    )


def size(record: Record, but: str = "backend") -> tuple[Any, ...]:
    """Return what two points that are compared must share: the run and all axes but one."""
    axes = sorted((axis, value) for axis, value in record.point.items() if axis != but)
    return (record.run_id, record.case, *axes)


def _bases(records: Iterable[Record], axis: str, value: str) -> dict[tuple[Any, ...], Record]:
    """Return what others are compared with, by what they must share."""
    return {size(record, axis): record for record in records if record.point[axis] == value}


# ------------------------------------------------------------------ words


def backend_label(record: Record) -> str:
    """Name the backend, on a CPU with its threads."""
    name = BACKEND_NAME[str(record.point["backend"])]
    return name if record.threads is None else f"{name} ({counted(record.threads, 'thread')})"


def commit_label(record: Record) -> str:
    """Name the commit that was measured, and whether it had changes."""
    sha = record.git.get("sha")
    return (str(sha)[:7] if sha else "unknown") + (" + changes" if record.git.get("dirty") else "")


def notes(records: Iterable[Record]) -> list[str]:
    """Return what whoever measured had to say about it."""
    return sorted({str(record.notes["note"]) for record in records if "note" in record.notes})


def said(record: Record) -> str:
    """Name the size of a point and its run."""
    sizes = [f"{value:,} {axis.removeprefix('n_')}" for axis, value in record.point.items() if axis.startswith("n_")]
    return f"{', '.join(sizes)}; {record.run_id}"


def times(ratio: float) -> str:
    """Write a ratio with three digits."""
    return f"{float(f'{ratio:.3g}'):,g}"


def counted(count: int, one: str, several: str = "") -> str:
    """Write a number of things."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def environment(env: str, agents: int = 1, envs: int | None = None) -> str:
    """Name an environment, its agents if there are several, and how many of it there are."""
    parts = [ENV_NAME.get(env, env)]
    parts += [counted(agents, "agent")] if agents > 1 else []
    parts += [] if envs is None else [counted(envs, "environment")]
    return ", ".join(parts)


# ------------------------------------------------------------------ parts


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
            _by_backend(of_panel, value, "n_envs"),
            level=level,
            right=(right, n_agents) if right and n_agents > 1 else None,
        )
        for (env, n_agents), of_panel in _grouped(_plain(records), "env", "n_agents").items()
    ]


def _by_backend(
    records: Sequence[Record], value: Callable[[Record], Metric | None], axis: str, **changed: str
) -> list[Series]:
    return [
        Series(backend_label(own[0]), look | changed, dots)
        for backend, look in BACKEND_STYLE.items()
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


def _grouped(records: Iterable[Record], *axes: str) -> dict[tuple[Any, ...], list[Record]]:
    """Group records by the values of axes, in order; environments in the order of their names' list."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.point.get(axis, "") for axis in axes), []).append(record)
    order = list(ENV_NAME)

    def place(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple((order.index(part) if part in order else len(order), part) for part in key)

    return {key: groups[key] for key in sorted(groups, key=place)}


def _env_order(record: Record) -> int:
    order, env = list(ENV_NAME), record.point.get("env")
    return order.index(str(env)) if env in order else len(order)


CHARTS: Final[tuple[tuple[str, Callable[[Sequence[Record]], Chart]], ...]] = (
    ("env_step", throughput),
    ("env_step", speedup_over("cpu")),
    ("env_step", speedup_over("host")),
    ("env_step", agents),
    ("env_step", languages),
    ("env_step", limits),
    ("", roofline),
    ("env_step", energy),
    ("neighbor_search", neighbors),
    ("sampler", samplers),
    ("", kernels),
    ("startup", starting),
    ("memory", memory),
    ("rollout", rollouts),
    ("train", training),
    ("train", split),
    ("scaling", scaling),
    ("learn", learning_over("learning", "environment steps", lambda curve: curve.env_steps, log_x=False)),
    ("learn", learning_over("learning-seconds", "seconds of training", lambda curve: curve.seconds, log_x=True)),
    ("", history),
)
"""What is shown of which case; "" is all of them."""

"""Figures from records. Nothing is measured here, and only evidence is drawn."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bench.cases.environments import FULLY_OBSERVED_AGENTS
from bench.record import Curve, Metric, Record
from bench.reference import JAX, WARPDRIVE, anchor
from bench.stats import Floats, interquartile_band, interquartile_mean

Style = Literal["paper", "slides"]
STYLES: Final = Path(__file__).parent / "styles"
FORMATS: Final = ("png", "pdf", "svg")
WIDTH_IN: Final = {1: 3.25, 2: 6.75}
"""Width of one and of two columns of the usual paper, with their gap, in."""
FOOTER_LETTERS_AN_INCH: Final = 24
"""Of the footer in the paper's font."""
PAPER_FONT: Final = 8
"""Font size that these widths are for, pt; figures of a larger one grow with it."""

# Okabe and Ito's colours, which people with any colour vision tell apart; marker and line say the same again.
BACKEND_STYLE: Final[dict[str, dict[str, Any]]] = {
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


class PlotError(ValueError):
    """There is nothing that may be drawn."""


def draw(records: Iterable[Record], out: Path, style: Style = "paper", stem: str | None = None) -> list[Path]:
    """Draw every figure for which there is evidence, each as PNG, PDF and SVG, and return the paths.

    Of a point that was measured several times the latest record is drawn.

    Args:
        records: Of one run or several; what failed or was skipped is left out.
        out: Folder; made if missing.
        style: Fonts and sizes.
        stem: First part of the files' names; None: the run id, or "bench" for several runs.

    Raises:
        PlotError: No record is evidence, or they are from several machines.
    """
    found = [record for record in records if record.is_evidence]
    if not found:
        raise PlotError("plots: no record is measured and right; run `python -m bench run` first")
    if len(machines := by_machine(found)) > 1:
        raise PlotError(f"plots: a figure shows one machine (got {', '.join(machines)}); draw them apart")
    runs = sorted({record.run_id for record in found})
    name = stem or (runs[0] if len(runs) == 1 else "bench")
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(fname=STYLES / f"{style}.mplstyle"):
        for suffix, (case, make) in FIGURES.items():
            of_case = [record for record in found if record.case == case]
            figure = make(of_case)
            if figure is not None:
                FigureCanvasAgg(figure)
                footer(figure, latest(of_case), STATISTIC.get(case, MEDIAN))
                paths += [_save(figure, out / f"{name}-{suffix}.{kind}") for kind in FORMATS]
    return paths


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


# ------------------------------------------------------------------ figures


def throughput(records: Sequence[Record]) -> Figure | None:
    """Draw throughput over the number of environments, a panel for each environment and number of agents."""

    def value(record: Record) -> Metric | None:
        return _metric(record, "env_steps_per_s")

    figure = _panels(latest(records), value, "environment steps per second")
    for axes in figure.axes if figure else ():
        n_agents = axes.n_agents  # type: ignore[attr-defined]
        if n_agents > 1:
            right = axes.secondary_yaxis("right", functions=(lambda y, n=n_agents: y * n, lambda y, n=n_agents: y / n))
            right.yaxis.set_major_formatter(FuncFormatter(_si))
            right.yaxis.set_minor_formatter(NullFormatter())
            right.set_ylabel("agent steps per second")
    return figure


def speedup(records: Sequence[Record]) -> Figure | None:
    """Draw the same over NumPy at the same size in the same run; above the line at 1 a backend is faster."""
    baseline = {_size(record): record for record in records if record.point["backend"] == "cpu"}

    def value(record: Record) -> Metric | None:
        base = baseline.get(_size(record))
        return times_baseline(record, base) if base and record.point["backend"] != "cpu" else None

    threads = {record.threads for record in baseline.values()}
    numpy = f"NumPy, {', '.join(f'{n} thread' + 's' * (n != 1) for n in sorted(threads, key=str))}"
    figure = _panels(latest(record for record in records if _size(record) in baseline), value, f"times {numpy}")
    for axes in figure.axes if figure else ():
        axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    return figure


def agents(records: Sequence[Record]) -> Figure | None:
    """Draw throughput over the number of agents, in as many environments each."""
    steps = [record for record in latest(records) if not record.point["exact"]]
    panels = []
    for env in ENV_NAME:
        by_count: dict[int, list[Record]] = {}
        for record in steps:
            if record.point["env"] == env:
                by_count.setdefault(int(record.point["n_envs"]), []).append(record)
        n_envs = max(by_count, key=lambda n: len({r.point["n_agents"] for r in by_count[n]}), default=0)
        if len({record.point["n_agents"] for record in by_count.get(n_envs, [])}) > 1:
            partly = f" (above {FULLY_OBSERVED_AGENTS} observed in part)" if env == "tag_gridworld" else ""
            panels.append((f"{ENV_NAME[env]}, {_count(n_envs, 'environment')}", partly, by_count[n_envs]))
    if not panels:
        return None
    figure = _figure(min(2, len(panels)), 2.7)
    labels: dict[str, Any] = {}
    for axes, (title, partly, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        labels |= _lines(axes, [(record, _metric(record, "agent_steps_per_s")) for record in found], "n_agents")
        axes.set_title(title, loc="left")
        axes.set_xlabel(f"agents in each environment{partly}")
        axes.set_ylabel("agent steps per second")
    _legend(figure, labels)
    return figure


def neighbors(records: Sequence[Record]) -> Figure | None:
    """Draw the search for neighbours in a grid of cells beside that of all pairs, and how many times faster it is."""
    pairs = {_place(record): record for record in records if record.point["neighbor_search"] == "all_pairs"}
    grids = latest(r for r in records if r.point["neighbor_search"] == "grid" and _place(r) in pairs)
    if not grids:
        return None
    figure = _figure(2, 2.7)
    rates, factors = figure.subplots(1, 2)
    both = [(record, _metric(record, "agent_steps_per_s")) for record in grids]
    labels = {f"{name}, cells": line for name, line in _lines(rates, both, "n_agents").items()}
    every = [(pairs[_place(record)], _metric(pairs[_place(record)], "agent_steps_per_s")) for record in grids]
    look = {"linestyle": ":", "markerfacecolor": "none"}
    labels |= {f"{name}, all pairs": line for name, line in _lines(rates, every, "n_agents", **look).items()}
    rates.set_ylabel("agent steps per second")
    _lines(factors, [(record, times_baseline(record, pairs[_place(record)])) for record in grids], "n_agents")
    factors.set_ylabel("times all pairs")
    factors.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    n_envs = sorted({int(record.point["n_envs"]) for record in grids})
    for axes in (rates, factors):
        axes.set_title(f"Tag Continuous, {_count(n_envs[0], 'environment')}", loc="left")
        axes.set_xlabel("agents in each environment")
    _legend(figure, labels)
    return figure


def _place(record: Record) -> tuple[Any, ...]:
    return (record.run_id, *(record.point[axis] for axis in ("backend", "n_envs", "n_agents")))


def times_baseline(record: Record, base: Record) -> Metric | None:
    """Return how many times faster a record is than its baseline; None where one of them has no figure."""
    own, reference = _metric(record, "agent_steps_per_s"), _metric(base, "agent_steps_per_s")
    if own is None or reference is None:
        return None
    return Metric(
        value=own.value / reference.value,
        unit="x",
        direction="higher",
        low=own.low / reference.high,
        high=own.high / reference.low,
    )


def samplers(records: Sequence[Record]) -> Figure | None:
    """Draw each sampler's rate, and how it compares with `torch.multinomial` on the same device."""
    records = latest(records)
    if not records:
        return None
    shapes = sorted({_shape(record) for record in records})
    counts = [sum(_shape(record) == shape for record in records) for shape in shapes]
    figure = _figure(2, 0.45 * len(shapes) + 0.17 * len(records) + 0.5)
    panels = figure.subplots(len(shapes), 1, squeeze=False, sharex=True, height_ratios=counts)[:, 0]
    for axes, shape in zip(panels, shapes, strict=True):
        _sampler_panel(axes, [record for record in records if _shape(record) == shape], shape)
    panels[-1].set_xlabel("samples per second (x: over torch.multinomial on the same device)")
    return figure


def _sampler_panel(axes: Axes, records: Sequence[Record], shape: tuple[Any, ...]) -> None:
    """Draw a dot for each sampler, those of a GPU above those of the CPU."""
    multinomial = [record for record in records if record.point["implementation"] == "torch.multinomial"]
    base = {record.threads is None: _rate(record, "samples_per_s") for record in multinomial}
    ordered = sorted(records, key=lambda record: (record.threads is None, _rate(record, "samples_per_s")))
    for row, record in enumerate(ordered):
        metric, on_gpu = _metric(record, "samples_per_s"), record.threads is None
        assert metric is not None
        ours = record.point["implementation"] == "ours"
        look = BACKEND_STYLE[str(record.point["backend"])] if ours else {"color": "0.5", "marker": "x"}
        width = [[metric.value - metric.low], [metric.high - metric.value]]
        axes.errorbar(metric.value, row, xerr=width, color=look["color"], marker=look["marker"], linestyle="none")
        ratio = f"{metric.value / base[on_gpu]:.3g} x" if on_gpu in base else ""
        axes.annotate(ratio, (metric.high, row), (6, 0), textcoords="offset points", va="center", fontsize="small")
    axes.set_yticks(range(len(ordered)), [_sampler_name(record) for record in ordered])
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_si))
    n_envs, n_agents, n_actions = shape
    axes.set_title(f"{_count(n_envs, 'environment')}, {_count(n_agents, 'agent')}, {n_actions} actions", loc="left")
    axes.grid(visible=True)


def _sampler_name(record: Record) -> str:
    if record.point["implementation"] == "ours":
        return f"ours, {backend_label(record)}"
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def training(records: Sequence[Record]) -> Figure | None:
    """Draw the throughput of training beside what others reach on the same points, and how many times that it is."""
    records = [r for r in latest(records) if anchor(r.point) and r.point["precision"] == "fp32"]
    places: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record.point["mode"] == record.mode == "graph":
            places.setdefault(_training_place(record), []).append(record)
    if not places:
        return None
    figure = _figure(2, 0.8 + 0.22 * len(places))
    axes = figure.subplots()
    labels: dict[str, Any] = {}
    for row, place in enumerate(sorted(places, reverse=True)):
        other = anchor(places[place][0].point)
        assert other is not None
        base = other.env_steps_per_s
        if base is not None:
            look = {"color": "0.45", "marker": REFERENCE_MARKER[other.by], "linestyle": "none"}
            labels.setdefault(f"{other.by} (on an H200)", axes.plot(base, row, **look)[0])
        for record in places[place]:
            metric = _metric(record, "env_steps_per_s")
            assert metric is not None
            look = BACKEND_STYLE[str(record.point["backend"])] | {"linestyle": "none"}
            labels.setdefault(backend_label(record), axes.plot(metric.value, row, **look)[0])
        best = max(_rate(record, "env_steps_per_s") for record in places[place])
        ratio = f"{best / base:.3g} x" if base else f"{other.by}: does not run"
        axes.annotate(ratio, (best, row), (7, 0), textcoords="offset points", va="center", fontsize="small")
    axes.set_yticks(range(len(places)), [_training_name(place) for place in sorted(places, reverse=True)])
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(FuncFormatter(_si))
    axes.set_xlabel("environment steps per second of rollout and update\n(x: the faster backend over the reference)")
    axes.grid(visible=True)
    _legend(figure, labels)
    return figure


REFERENCE_MARKER: Final = {WARPDRIVE: "x", JAX: "+"}


def _training_place(record: Record) -> tuple[Any, ...]:
    point = record.point
    order = list(ENV_NAME).index(str(point["env"]))
    axes = ("algorithm", "network", "n_agents", "n_envs", "n_steps")
    return (order, point["env"], *(point[axis] for axis in axes))


def _training_name(place: tuple[Any, ...]) -> str:
    _, env, algorithm, network, n_agents, n_envs, n_steps = place
    agents_ = f" x {_count(n_agents, 'agent')}" if n_agents > 1 else ""
    return f"{ENV_NAME[env]}, {algorithm} {network}, {n_envs:,}{agents_} x {n_steps} steps"


def learning_over_steps(records: Sequence[Record]) -> Figure | None:
    """Draw learning curves over steps of all environments."""
    return _learning(records, lambda curve: curve.env_steps, "environment steps", np.linspace)


def learning_over_seconds(records: Sequence[Record]) -> Figure | None:
    """Draw learning curves over the time since the start of training."""
    return _learning(records, lambda curve: curve.seconds, "seconds of training", np.geomspace)


def _learning(
    records: Sequence[Record],
    along: Callable[[Curve], Sequence[float]],
    xlabel: str,
    spaced: Callable[[float, float, int], Floats],
) -> Figure | None:
    """Draw a panel for each task and number of environments, with a line a backend over its seeds."""
    panels: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    for record in latest(records):
        axes_ = ("env", "algorithm", "learner", "n_envs", "threshold")
        panel = panels.setdefault(tuple(record.point[axis] for axis in axes_), {})
        panel.setdefault(str(record.point["backend"]), []).append(record)
    if not panels:
        return None
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(columns, 0.6 + 1.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    labels: dict[str, Any] = {}
    order = sorted(panels, key=lambda key: (list(ENV_NAME).index(key[0]), *key[1:]))
    for axes, key in zip(grid.flat, order, strict=False):
        env, algorithm, learner, n_envs, threshold = key
        for backend, seeds in panels[key].items():
            own = {name: look for name, look in BACKEND_STYLE[backend].items() if name != "marker"}
            drawn = _seeds(axes, [curve_points(record, learner, along) for record in seeds], spaced, own)
            if drawn:
                labels.setdefault(backend_label(seeds[0]), drawn)
        axes.axhline(threshold, color="0.5", linestyle=":", linewidth=0.8, zorder=0)
        who = "" if learner == "shared" else f" ({learner})"
        axes.set_title(f"{ENV_NAME[env]}{who}, {algorithm}, {_count(n_envs, 'environment')}", loc="left")
        axes.set_xlabel(xlabel)
        if spaced is np.geomspace:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(_si))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean return")
    _legend(figure, labels)
    return figure


def curve_points(record: Record, learner: str, along: Callable[[Curve], Sequence[float]]) -> tuple[Floats, Floats]:
    """Return where along its curve a seed has a return, and which."""
    assert record.curve is not None
    pairs = zip(along(record.curve), record.curve.mean_return[learner], strict=True)
    found = np.array([pair for pair in pairs if pair[1] is not None], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _seeds(
    axes: Axes,
    curves: Sequence[tuple[Floats, Floats]],
    spaced: Callable[[float, float, int], Floats],
    look: dict[str, Any],
) -> Any:
    """Draw the mean of curves from where all have begun to where the last one ends; those that ended stay there."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return None
    x = spaced(max(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), CURVE_POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves])
    (line,) = axes.plot(x, interquartile_mean(values), **look)
    axes.fill_between(x, *interquartile_band(values), color=look["color"], alpha=0.2, linewidth=0)
    return line


def starting(records: Sequence[Record]) -> Figure | None:
    """Draw how long each part of a start takes, one after the other, a bar for each point."""
    records = latest(records)
    if not records:
        return None
    rows = sorted(records, key=_start_name, reverse=True)
    parts = list(dict.fromkeys(name for record in rows for name in record.notes["samples_s"]))
    figure = _figure(2, 1.1 + 0.22 * len(rows))
    axes = figure.subplots()
    left = np.zeros(len(rows))
    labels: dict[str, Any] = {}
    for index, part in enumerate(parts):
        metrics = [_metric(record, part) for record in rows]
        seconds = np.array([metric.value if metric else 0.0 for metric in metrics])
        look = {"color": PART_COLORS[index % len(PART_COLORS)], "hatch": HATCHES[index // len(PART_COLORS)]}
        labels[part.removesuffix("_s").replace("_", " ")] = axes.barh(range(len(rows)), seconds, left=left, **look)
        left += seconds
    axes.set_yticks(range(len(rows)), [_start_name(record) for record in rows])
    axes.set_xlabel("seconds in a fresh process")
    axes.grid(visible=True, axis="x")
    _legend(figure, labels)
    return figure


PART_COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
HATCHES: Final = ("", "///")


def _start_name(record: Record) -> str:
    point = record.point
    return f"{ENV_NAME[str(point['env'])]}, {point['until']}, {backend_label(record)}, {point['cache']}"


def memory(records: Sequence[Record]) -> Figure | None:
    """Draw the bytes of an environment over the number of its agents, a panel for each environment of several."""
    records = latest(records)
    sizes = {env: {record.point["n_agents"] for record in records if record.point["env"] == env} for env in ENV_NAME}
    several = [env for env, counts in sizes.items() if len(counts) > 1]
    if not several:
        return None
    figure = _figure(min(2, len(several)), 2.7)
    labels: dict[str, Any] = {}
    for axes, env in zip(figure.subplots(1, len(several), squeeze=False)[0], several, strict=True):
        found = [(record, _metric(record, "bytes_per_env")) for record in records if record.point["env"] == env]
        labels |= _lines(axes, found, "n_agents")
        axes.set_title(ENV_NAME[env], loc="left")
        axes.set_xlabel("agents in each environment")
        axes.set_ylabel("bytes of an environment")
    _legend(figure, labels)
    return figure


CURVE_POINTS: Final = 200
"""At which curves of several seeds are compared."""

FIGURES: Final[dict[str, tuple[str, Callable[[Sequence[Record]], Figure | None]]]] = {
    "throughput": ("env_step", throughput),
    "speedup": ("env_step", speedup),
    "agents": ("env_step", agents),
    "neighbors": ("neighbor_search", neighbors),
    "sampler": ("sampler", samplers),
    "startup": ("startup", starting),
    "memory": ("memory", memory),
    "training": ("train", training),
    "learning": ("learn", learning_over_steps),
    "learning-seconds": ("learn", learning_over_seconds),
}
"""What is drawn of the records of which case, by the last part of the files' names."""


def _panels(
    records: Sequence[Record],
    value: Callable[[Record], Metric | None],
    ylabel: str,
) -> Figure | None:
    """Draw a value over the number of environments: a panel for each environment and size, a line a backend."""
    found = [
        (record, metric) for record in records if not record.point["exact"] and (metric := value(record)) is not None
    ]
    counts: dict[tuple[str, int], set[int]] = {}
    for record, _ in found:
        key = (str(record.point["env"]), int(record.point["n_agents"]))
        counts.setdefault(key, set()).add(int(record.point["n_envs"]))
    # Sizes of one number of environments only are for the figure over agents, if there are others.
    keys = [key for key in counts if len(counts[key]) > 1] or list(counts)
    keys.sort(key=lambda key: (list(ENV_NAME).index(key[0]) if key[0] in ENV_NAME else len(ENV_NAME), *key))
    if not keys:
        return None
    columns = min(2, len(keys))
    rows = -(-len(keys) // columns)
    figure = _figure(columns, 0.6 + 2.1 * rows)
    labels: dict[str, Any] = {}
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(keys) :]:
        axes.remove()
    for axes, (env, n_agents) in zip(panels.flat, keys, strict=False):
        axes.n_agents = n_agents
        of_panel = [(r, m) for r, m in found if (r.point["env"], r.point["n_agents"]) == (env, n_agents)]
        labels |= _lines(axes, of_panel, "n_envs")
        name = f", {_count(n_agents, 'agent')}" if n_agents > 1 else ""
        axes.set_title(f"{ENV_NAME.get(env, env)}{name}", loc="left")
        axes.set_xlabel("environments")
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel)
    _legend(figure, labels)
    return figure


def _lines(axes: Axes, found: Iterable[tuple[Record, Metric | None]], axis: str, **look: Any) -> dict[str, Any]:
    """Draw a line for each backend over an axis of the points, with its interval; returns the lines by their labels."""
    labels = {}
    points = [(record, metric) for record, metric in found if metric is not None]
    for backend, own in BACKEND_STYLE.items():
        line = sorted(
            (
                (int(record.point[axis]), metric, record)
                for record, metric in points
                if record.point["backend"] == backend
            ),
            key=lambda point: point[0],
        )
        if line:
            sizes, values = [size for size, _, _ in line], [metric for _, metric, _ in line]
            (drawn,) = axes.plot(sizes, [metric.value for metric in values], **own | look)
            band = [metric.low for metric in values], [metric.high for metric in values]
            axes.fill_between(sizes, *band, color=own["color"], alpha=0.2, linewidth=0)
            labels.setdefault(backend_label(line[0][2]), drawn)
    _log_axes(axes)
    return labels


def _legend(figure: Figure, labels: dict[str, Any]) -> None:
    columns = min(len(labels), 4)
    figure.legend(labels.values(), labels.keys(), loc="outside upper center", ncols=columns, frameon=False)


def _figure(columns: int, height_in: float) -> Figure:
    """Return an empty figure of one or two columns of a paper, or as much larger as the style's font."""
    scale = mpl.rcParams["font.size"] / PAPER_FONT
    return Figure(figsize=(WIDTH_IN[columns] * scale, height_in * scale), layout="constrained")


def _log_axes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=12))
        axis.set_major_formatter(FuncFormatter(_si))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True)


def _si(value: float, _: int | None = None) -> str:
    for letter, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= unit:
            return f"{value / unit:g} {letter}"
    return f"{value:g}"


MEDIAN: Final = "median and 95 % interval"
STATISTIC: Final = {
    "train": "medians",
    "startup": "medians of each part",
    "memory": "of the arrays",
    "learn": "interquartile mean over seeds and 95 % bootstrap interval; seeds that are done keep their last return",
}
"""What the lines of a case are, if not `MEDIAN`."""


def footer(figure: Figure, records: Sequence[Record], statistic: str = MEDIAN) -> None:
    """Say where the records come from, in as many lines as it takes."""
    machine = records[0].machine
    commits, runs = sorted({commit_label(record) for record in records}), sorted({record.run_id for record in records})
    where = f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} CPU cores"
    text = f"{where}; {statistic}; commit {', '.join(commits)}; run {', '.join(runs)}"
    letters = int(figure.get_figwidth() / (mpl.rcParams["font.size"] / PAPER_FONT) * FOOTER_LETTERS_AN_INCH)
    figure.supxlabel(textwrap.fill(text, letters), fontsize="xx-small", color="0.45", x=0.01, ha="left")


def commit_label(record: Record) -> str:
    """Name the commit that was measured, and whether it had changes."""
    sha = record.git.get("sha")
    return (str(sha)[:7] if sha else "unknown") + (" + changes" if record.git.get("dirty") else "")


def _save(figure: Figure, path: Path) -> Path:
    """Write to a temporary file and rename it, so that a killed run leaves no half picture."""
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(descriptor)
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[path.suffix[1:]]
    figure.savefig(unfinished, format=path.suffix[1:], metadata=metadata)
    os.chmod(unfinished, 0o644)
    os.replace(unfinished, path)
    return path


def backend_label(record: Record) -> str:
    """Name the backend, on a CPU with its threads."""
    name = BACKEND_NAME[str(record.point["backend"])]
    return name if record.threads is None else f"{name} ({record.threads} thread{'s' if record.threads > 1 else ''})"


def _metric(record: Record, name: str) -> Metric | None:
    return record.metrics.get(name) if record.metrics else None


def _rate(record: Record, name: str) -> float:
    metric = _metric(record, name)
    return metric.value if metric else 0.0


def _size(record: Record) -> tuple[Any, ...]:
    return (record.run_id, *(record.point.get(axis) for axis in ("env", "n_agents", "n_envs", "exact")))


def _shape(record: Record) -> tuple[Any, ...]:
    return (record.point["n_envs"], record.point["n_agents"], record.point["n_actions"])

"""Figures from records. Nothing is measured here, and only evidence is drawn."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.record import Metric, Record

Style = Literal["paper", "slides"]
STYLES: Final = Path(__file__).parent / "styles"
FORMATS: Final = ("png", "pdf", "svg")
COLUMN_IN: Final = 3.25
"""Width of one column of the usual two-column paper, in; two with their gap are 6.75."""

# Okabe and Ito's colours, which people with any colour vision tell apart; marker and line say the same again.
BACKEND_STYLE: Final[dict[str, dict[str, Any]]] = {
    "cpu": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "host": {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    "numba": {"color": "#009E73", "marker": "^", "linestyle": "-."},
    "pycuda": {"color": "#D55E00", "marker": "D", "linestyle": "-"},
}
BACKEND_NAME: Final = {"cpu": "NumPy", "host": "C++", "numba": "Numba-CUDA", "pycuda": "CUDA C (PyCUDA)"}
ENV_NAME: Final = {"cartpole": "CartPole", "tag_continuous": "Tag Continuous"}


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
    evidence = latest(found)
    runs = sorted({record.run_id for record in evidence})
    name = stem or (runs[0] if len(runs) == 1 else "bench")
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(fname=STYLES / f"{style}.mplstyle"):
        for suffix, make in FIGURES.items():
            figure = make(evidence)
            if figure is not None:
                FigureCanvasAgg(figure)
                _footer(figure, evidence, runs)
                paths += [_save(figure, out / f"{name}-{suffix}.{kind}") for kind in FORMATS]
    return paths


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each point by its start."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        found[record.case, *sorted(record.point.items())] = record
    return list(found.values())


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

    figure = _panels(records, value, "environment steps per second", lambda point: not point["exact"])
    for axes in figure.axes if figure else ():
        n_agents = axes.n_agents  # type: ignore[attr-defined]
        if n_agents > 1:
            right = axes.secondary_yaxis("right", functions=(lambda y, n=n_agents: y * n, lambda y, n=n_agents: y / n))
            right.yaxis.set_major_formatter(FuncFormatter(_si))
            right.yaxis.set_minor_formatter(NullFormatter())
            right.set_ylabel("agent steps per second")
    return figure


def speedup(records: Sequence[Record]) -> Figure | None:
    """Draw the same over NumPy at the same size; above the line at 1 a backend is faster."""
    baseline = {_size(record): record for record in records if record.point.get("backend") == "cpu"}

    def value(record: Record) -> Metric | None:
        base, own = baseline.get(_size(record)), _metric(record, "env_steps_per_s")
        reference = base and _metric(base, "env_steps_per_s")
        if own is None or not reference or record.point["backend"] == "cpu":
            return None
        return Metric(
            value=own.value / reference.value,
            unit="x",
            direction="higher",
            low=own.low / reference.high,
            high=own.high / reference.low,
        )

    figure = _panels(records, value, "times NumPy on 1 thread", lambda point: not point["exact"])
    for axes in figure.axes if figure else ():
        axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    return figure


def samplers(records: Sequence[Record]) -> Figure | None:
    """Draw each sampler's rate, and how it compares with `torch.multinomial` on the same device."""
    found = [record for record in records if record.case == "sampler"]
    if not found:
        return None
    axes_of = sorted({(r.point["n_envs"], r.point["n_agents"], r.point["n_actions"]) for r in found})
    height = 0.55 * len(axes_of) + 0.17 * len(found) + 0.6
    figure = Figure(figsize=(2 * COLUMN_IN + 0.25, height), layout="constrained")
    panels = figure.subplots(
        len(axes_of), 1, squeeze=False, height_ratios=[sum(_shape(r) == shape for r in found) for shape in axes_of]
    )
    for axes, shape in zip(panels[:, 0], axes_of, strict=True):
        _sampler_panel(axes, [record for record in found if _shape(record) == shape], shape)
    panels[-1, 0].set_xlabel("samples per second")
    return figure


def _sampler_panel(axes: Axes, records: Sequence[Record], shape: tuple[Any, ...]) -> None:
    base = {
        r.threads is None: _metric(r, "samples_per_s")
        for r in records
        if r.point["implementation"] == "torch.multinomial"
    }
    ordered = sorted(records, key=lambda record: _rate(record, "samples_per_s"))
    for row, record in enumerate(ordered):
        metric, ours = _metric(record, "samples_per_s"), record.point["implementation"] == "ours"
        assert metric is not None
        colour = BACKEND_STYLE[str(record.point["backend"])]["color"] if ours else "0.75"
        axes.barh(row, metric.value, color=colour, height=0.7)
        axes.errorbar(
            metric.value,
            row,
            xerr=[[metric.value - metric.low], [metric.high - metric.value]],
            color="0.2",
            linewidth=0.8,
        )
        reference = base.get(record.threads is None)
        ratio = f"  {metric.value / reference.value:.3g} x" if reference else ""
        axes.annotate(ratio, (metric.high, row), va="center", fontsize="small")
    axes.set_yticks(range(len(ordered)), [_sampler_name(record) for record in ordered])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 2, high * 3)
    axes.xaxis.set_major_formatter(FuncFormatter(_si))
    n_envs, n_agents, n_actions = shape
    axes.set_title(
        f"{n_envs:,} environments, {n_agents:,} agents, {n_actions} actions (x: over torch.multinomial on that device)",
        loc="left",
    )
    axes.grid(visible=True, axis="x")


def _sampler_name(record: Record) -> str:
    if record.point["implementation"] == "ours":
        return f"ours, {_backend_label(record)}"
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"


FIGURES: Final[dict[str, Callable[[Sequence[Record]], Figure | None]]] = {
    "throughput": throughput,
    "speedup": speedup,
    "sampler": samplers,
}
"""What is drawn, by the last part of the files' names."""


def _panels(
    records: Sequence[Record],
    value: Callable[[Record], Metric | None],
    ylabel: str,
    keep: Callable[[dict[str, Any]], bool],
) -> Figure | None:
    """Draw a value over the number of environments: a panel for each environment and size, a line a backend."""
    found = [
        (record, metric)
        for record in records
        if record.case == "env_step" and keep(record.point) and (metric := value(record)) is not None
    ]
    keys = sorted({(str(record.point["env"]), int(record.point["n_agents"])) for record, _ in found})
    if not keys:
        return None
    figure = Figure(figsize=((2 * COLUMN_IN + 0.25) * max(1, len(keys) / 2), 2.7), layout="constrained")
    labels: dict[str, Any] = {}
    for axes, (env, n_agents) in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        axes.n_agents = n_agents
        for backend, look in BACKEND_STYLE.items():
            points = sorted(
                ((int(r.point["n_envs"]), m, r) for r, m in found if _belongs(r, env, n_agents, backend)),
                key=lambda point: point[0],
            )
            if not points:
                continue
            counts, values = [count for count, _, _ in points], [metric for _, metric, _ in points]
            (line,) = axes.plot(counts, [metric.value for metric in values], **look)
            band = [metric.low for metric in values], [metric.high for metric in values]
            axes.fill_between(counts, *band, color=look["color"], alpha=0.2, linewidth=0)
            labels.setdefault(_backend_label(points[0][2]), line)
        agents = f", {n_agents:,} agents" if n_agents > 1 else ""
        axes.set_title(f"{ENV_NAME.get(env, env)}{agents}", loc="left")
        _log_axes(axes)
        axes.set_xlabel("environments")
    figure.axes[0].set_ylabel(ylabel)
    figure.legend(labels.values(), labels.keys(), loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _belongs(record: Record, env: str, n_agents: int, backend: str) -> bool:
    return (record.point["env"], record.point["n_agents"], record.point["backend"]) == (env, n_agents, backend)


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


def _footer(figure: Figure, records: Sequence[Record], runs: Sequence[str]) -> None:
    machine = records[0].machine
    commits = sorted({_commit(record) for record in records})
    where = f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} CPU cores"
    text = f"{where}; commit {', '.join(commits)}; run {', '.join(runs)}; median and 95 % interval"
    figure.supxlabel(text, fontsize="xx-small", color="0.45", x=0.01, ha="left")


def _commit(record: Record) -> str:
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


def _backend_label(record: Record) -> str:
    name = BACKEND_NAME[str(record.point["backend"])]
    return name if record.threads is None else f"{name} ({record.threads} thread{'s' if record.threads > 1 else ''})"


def _metric(record: Record, name: str) -> Metric | None:
    return record.metrics.get(name) if record.metrics else None


def _rate(record: Record, name: str) -> float:
    metric = _metric(record, name)
    return metric.value if metric else 0.0


def _size(record: Record) -> tuple[Any, ...]:
    return tuple(record.point.get(axis) for axis in ("env", "n_agents", "n_envs", "exact"))


def _shape(record: Record) -> tuple[Any, ...]:
    return (record.point["n_envs"], record.point["n_agents"], record.point["n_actions"])

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
WIDTH_IN: Final = {1: 3.25, 2: 6.75}
"""Width of one and of two columns of the usual paper, with their gap, in."""
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
    runs = sorted({record.run_id for record in found})
    name = stem or (runs[0] if len(runs) == 1 else "bench")
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(fname=STYLES / f"{style}.mplstyle"):
        for suffix, make in FIGURES.items():
            figure = make(found)
            if figure is not None:
                FigureCanvasAgg(figure)
                _footer(figure, found, runs)
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
    steps = [record for record in records if record.case == "env_step"]
    baseline = {_size(record): record for record in steps if record.point["backend"] == "cpu"}

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

    threads = {record.threads for record in baseline.values()}
    numpy = f"NumPy, {', '.join(f'{n} thread' + 's' * (n != 1) for n in sorted(threads, key=str))}"
    figure = _panels(latest(record for record in steps if _size(record) in baseline), value, f"times {numpy}")
    for axes in figure.axes if figure else ():
        axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    return figure


def samplers(records: Sequence[Record]) -> Figure | None:
    """Draw each sampler's rate, and how it compares with `torch.multinomial` on the same device."""
    found = [record for record in latest(records) if record.case == "sampler"]
    if not found:
        return None
    shapes = sorted({_shape(record) for record in found})
    counts = [sum(_shape(record) == shape for record in found) for shape in shapes]
    figure = _figure(2, 0.45 * len(shapes) + 0.17 * len(found) + 0.5)
    panels = figure.subplots(len(shapes), 1, squeeze=False, sharex=True, height_ratios=counts)[:, 0]
    for axes, shape in zip(panels, shapes, strict=True):
        _sampler_panel(axes, [record for record in found if _shape(record) == shape], shape)
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
        return f"ours, {_backend_label(record)}"
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


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
) -> Figure | None:
    """Draw a value over the number of environments: a panel for each environment and size, a line a backend."""
    found = [
        (record, metric)
        for record in records
        if record.case == "env_step" and not record.point["exact"] and (metric := value(record)) is not None
    ]
    keys = sorted({(str(record.point["env"]), int(record.point["n_agents"])) for record, _ in found})
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
        agents = f", {_count(n_agents, 'agent')}" if n_agents > 1 else ""
        axes.set_title(f"{ENV_NAME.get(env, env)}{agents}", loc="left")
        _log_axes(axes)
        axes.set_xlabel("environments")
    for axes in panels[:, 0]:
        axes.set_ylabel(ylabel)
    ncols = min(len(labels), 2 * columns)
    figure.legend(labels.values(), labels.keys(), loc="outside upper center", ncols=ncols, frameon=False)
    return figure


def _figure(columns: int, height_in: float) -> Figure:
    """Return an empty figure of one or two columns of a paper, or as much larger as the style's font."""
    scale = mpl.rcParams["font.size"] / PAPER_FONT
    return Figure(figsize=(WIDTH_IN[columns] * scale, height_in * scale), layout="constrained")


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
    return (record.run_id, *(record.point.get(axis) for axis in ("env", "n_agents", "n_envs", "exact")))


def _shape(record: Record) -> tuple[Any, ...]:
    return (record.point["n_envs"], record.point["n_agents"], record.point["n_actions"])

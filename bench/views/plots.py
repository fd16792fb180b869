"""The figures on paper and on slides, by matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bench.record import Record
from bench.views.figures import Chart, Panel, by_machine, charts, commit_label, notes
from warpdrive_min.files import replacing

Style = Literal["paper", "slides"]
STYLES: Final = Path(__file__).parent / "styles"
FORMATS: Final = ("png", "pdf", "svg")
WIDTH_IN: Final = {1: 3.15, 2: 6.45, 3: 6.45}
"""Width of so many columns of panels: of one and of two columns of LaTeX's `article`, the narrowest usual ones, in."""
HEIGHT_IN: Final = {2: 2.1, 3: 1.85}
"""Of a panel of a figure with up to so many columns, in."""
LEGEND_COLUMNS: Final = 4
"""At most."""
LEGEND_LETTERS_AN_INCH: Final = 18
KEY_LETTERS: Final = 6
"""That a line in the legend takes the place of."""
TITLE_LETTERS_AN_INCH: Final = 13
"""Of a panel's title, with the labels of the axis beside it."""
FOOTER_LETTERS_AN_INCH: Final = 25
"""Of the footer in the paper's font."""
PAPER_FONT: Final = 8
"""Font size that these widths are for, pt; figures of a larger one grow with it."""


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
        for chart in charts(found):
            figure = paint(chart)
            FigureCanvasAgg(figure)
            paths += [_save(figure, out / f"{name}-{chart.name}.{kind}") for kind in FORMATS]
    return paths


def paint(chart: Chart) -> Figure:
    """Return a figure in the style that is set, with a footer that says where its records come from."""
    columns, rows = _grid(chart)
    width = width_in(chart)
    is_shared = _shares_axis(chart)
    heights = [len(panel.ticks) for panel in chart.panels] if _is_across(chart) else None
    scale = mpl.rcParams["font.size"] / PAPER_FONT
    figure = Figure(figsize=(width * scale, height_in(chart) * scale), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=is_shared, height_ratios=heights)
    for axes in grid.flat[len(chart.panels) :]:
        axes.remove()
    labels: dict[str, Any] = {}
    paint_panel = PAINTERS[chart.kind]
    for index, (axes, panel) in enumerate(zip(grid.flat, chart.panels, strict=False)):
        for name, drawn in paint_panel(axes, chart, panel).items():
            labels.setdefault(name, drawn)
        axes.set_title(textwrap.fill(panel.title, int(width / columns * TITLE_LETTERS_AN_INCH)), loc="left")
        ylabel, before = (each.ylabel or chart.ylabel for each in (panel, chart.panels[index - 1]))
        if index % columns == 0 or ylabel != before:
            axes.set_ylabel(ylabel)
        if not is_shared or index == len(chart.panels) - 1:
            axes.set_xlabel(panel.xlabel or chart.xlabel)
    if chart.has_legend:
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": _legend_columns(chart), "frameon": False}
        figure.legend(labels.values(), labels.keys(), **place)
    _footer(figure, chart)
    return figure


def width_in(chart: Chart) -> float:
    """Return how wide the figure is in the paper's font, in."""
    return WIDTH_IN[2 if _is_across(chart) else _grid(chart)[0]]


def height_in(chart: Chart) -> float:
    """Return how high the figure is in the paper's font, in."""
    columns, rows = _grid(chart)
    if not _is_across(chart):
        return 0.6 + HEIGHT_IN[max(2, columns)] * rows
    n_lines = -(-len(_names(chart)) // _legend_columns(chart)) if chart.has_legend else 0
    n_ticks = sum(len(panel.ticks) for panel in chart.panels)
    return 0.5 + (0.45 if _shares_axis(chart) else 0.7) * rows + 0.17 * n_ticks + 0.18 * n_lines


def _grid(chart: Chart) -> tuple[int, int]:
    """Return the columns and rows of the panels."""
    columns = 1 if _is_across(chart) else min(chart.columns, len(chart.panels))
    return columns, -(-len(chart.panels) // columns)


def _is_across(chart: Chart) -> bool:
    return chart.kind in ("rows", "bars")


def _shares_axis(chart: Chart) -> bool:
    return _is_across(chart) and not any(panel.xlabel for panel in chart.panels)


def _names(chart: Chart) -> set[str]:
    return {series.name for panel in chart.panels for series in panel.series}


def _legend_columns(chart: Chart) -> int:
    """Return in how many columns the legend fits into the width."""
    letters = KEY_LETTERS + max(map(len, _names(chart)))
    return min(len(_names(chart)), LEGEND_COLUMNS, max(1, int(width_in(chart) * LEGEND_LETTERS_AN_INCH / letters)))


# ------------------------------------------------------------------ panels


def _lines(axes: Axes, chart: Chart, panel: Panel) -> dict[str, Any]:
    """Draw a line with its band for each series; returns what stands for each in the legend."""
    labels = {}
    for index, series in enumerate(panel.series):
        x = [dot.x for dot in series.dots]
        # Labels of neighbouring lines stand on either side.
        place: dict[str, Any] = {"xytext": (-4, 4), "ha": "right"} if index % 2 else {"xytext": (4, -8), "ha": "left"}
        for dot in (dot for dot in series.dots if dot.label):
            axes.annotate(dot.label, (dot.x, dot.y), textcoords="offset points", fontsize="small", **place)
        (labels[series.name],) = axes.plot(x, [dot.y for dot in series.dots], **series.look)
        band = [dot.low for dot in series.dots], [dot.high for dot in series.dots]
        if series.look["linestyle"] == "none":
            axes.vlines(x, *band, color=series.look["color"], linewidth=0.8)
        else:
            axes.fill_between(x, *band, color=series.look["color"], alpha=0.2, linewidth=0)
    if panel.level is not None:
        axes.axhline(panel.level, color="0.5", linewidth=0.8, zorder=0)
    _number(axes, "y", chart.log_y)
    if chart.kind == "history":
        names = [tick.replace(" + changes", "+") for tick in panel.ticks]
        axes.set_xticks(range(len(names)), names, rotation=_turn(names, width_in(chart) / _grid(chart)[0]))
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        _number(axes, "x", chart.log_x, MOST_DECADES[_grid(chart)[0]])
    if panel.right is not None:
        label, factor = panel.right
        there_and_back = (lambda y: np.multiply(y, factor), lambda y: np.divide(y, factor))
        right = axes.secondary_yaxis("right", functions=there_and_back)
        low, high = sorted(axes.get_ylim())
        _name_ticks(right.yaxis, factor * low, factor * high, chart.log_y)
        right.set_ylabel(label)
    axes.grid(visible=True)
    return labels


def _turn(names: Sequence[str], width: float) -> int:
    """Return by how much the names of ticks are turned to fit below a panel of a width in inches, degrees."""
    if sum(map(len, names)) <= LETTERS_ACROSS:
        return 0
    return 20 if width / len(names) >= LEAST_SLANTED_IN else 90


LETTERS_ACROSS: Final = 20
"""Of all ticks of an axis, above which they are turned."""
LEAST_SLANTED_IN: Final = 0.45
"""For each tick, below which they are upright."""


def _rows(axes: Axes, chart: Chart, panel: Panel) -> dict[str, Any]:
    """Draw the values of each series in their rows."""
    labels: dict[str, Any] = {}
    for series in panel.series:
        for dot in series.dots:
            width = [[dot.x - dot.low], [dot.high - dot.x]]
            drawn = axes.errorbar(dot.x, dot.y, xerr=width, **series.look)
            labels.setdefault(series.name, drawn.lines[0])
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
            if dot.label:
                axes.annotate(dot.label, (dot.high, dot.y), (6, 0), **place)
    axes.margins(x=0.12)
    _number(axes, "x", chart.log_x)
    axes.grid(visible=True)
    _name_rows(axes, panel)
    return labels


def _bars(axes: Axes, chart: Chart, panel: Panel) -> dict[str, Any]:
    """Draw the values of each row one after the other."""
    labels = {}
    left = np.zeros(len(panel.ticks))
    for series in panel.series:
        rows = [int(dot.y) for dot in series.dots]
        widths = [dot.x for dot in series.dots]
        look = {name: series.look[name] for name in ("color", "hatch")} | {"edgecolor": "white", "linewidth": 0}
        labels[series.name] = axes.barh(rows, widths, left=left[rows], **look)
        for row, dot in zip(rows, series.dots, strict=True):
            if dot.label and dot.x > LEAST_LABELLED:
                background = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
                place: dict[str, Any] = {"va": "center", "ha": "center", "fontsize": "x-small", "bbox": background}
                axes.text(left[row] + dot.x / 2, row, dot.label, **place)
        left[rows] += widths
    axes.grid(visible=True, axis="x")
    _name_rows(axes, panel)
    return labels


LEAST_LABELLED: Final = 0.15
"""Share of a bar that has room for its label."""

PAINTERS: Final[dict[str, Callable[[Axes, Chart, Panel], dict[str, Any]]]] = {
    "line": _lines,
    "history": _lines,
    "rows": _rows,
    "bars": _bars,
}


def _name_rows(axes: Axes, panel: Panel) -> None:
    axes.set_yticks(range(len(panel.ticks)), panel.ticks)
    axes.set_ylim(len(panel.ticks) - 0.4, -0.6)


def _number(axes: Axes, which: Literal["x", "y"], is_log: bool, most: int = 12) -> None:
    """Scale an axis and name its ticks."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if is_log:
        axes.set(**{f"{which}scale": "log"})
    low, high = map(float, axis.get_view_interval())
    _name_ticks(axis, low, high, is_log, most)


def _name_ticks(axis: Axis, low: float, high: float, is_log: bool, most: int = 12) -> None:
    """Write the numbers of an axis short; all of 1, 2 and 5 where powers of ten alone would be few.

    Of more powers of ten than ``most``, every second, third, ... has a number; of a narrow range equal steps have.
    """
    if is_log and high / low > NARROW:
        subs = (1.0, 2.0, 5.0) if high / low < FEW_DECADES else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=most))
    else:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(_si))
    axis.set_minor_formatter(NullFormatter())


NARROW: Final = 5
FEW_DECADES: Final = 100
"""From the lowest to the highest value of an axis."""
MOST_DECADES: Final = {1: 12, 2: 12, 3: 6}
"""That have a number on the horizontal axis in so many columns of panels."""


def _si(value: float, _: int | None = None) -> str:
    for letter, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= unit:
            return f"{value / unit:g} {letter}"
    return f"{value:g}"


# ------------------------------------------------------------------ around the panels


def _footer(figure: Figure, chart: Chart) -> None:
    """Say where the records come from, in as many lines as it takes."""
    records = chart.records
    machine = records[0].machine
    commits, runs = sorted({commit_label(record) for record in records}), sorted({record.run_id for record in records})
    where = f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} CPU cores"
    text = "; ".join(
        [where, chart.statistic, f"commit {', '.join(commits)}", f"run {', '.join(runs)}", *notes(records)]
    )
    letters = int(figure.get_figwidth() / (mpl.rcParams["font.size"] / PAPER_FONT) * FOOTER_LETTERS_AN_INCH)
    figure.supxlabel(textwrap.fill(text, letters), fontsize="xx-small", color="0.45", x=0.01, ha="left")


def _save(figure: Figure, path: Path) -> Path:
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[path.suffix[1:]]
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:], metadata=metadata)
    return path

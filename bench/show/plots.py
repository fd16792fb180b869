"""Charts drawn by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import matplotlib as mpl
import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from PIL import Image

from warpdrive_min.errors import one_line
from warpdrive_min.files import last_below, require_writable, write_atomically
from warpdrive_min.terminal import echo

from ..core.errors import ShowError
from ..core.machine import slug
from ..core.record import RUN_METRICS, SWEEPS, Record, read_reporting
from .charts import COLOURS, Chart, Panel, Series
from .columns import signed_points
from .frames import existing_files
from .labels import commit_label, machine_label, notes
from .records import by_machine, evidence_of
from .sets import published_records
from .views.cases import charts
from .views.training_runs import run_folders, training_run_chart

FIGURES: Final = SWEEPS / "figures"
"""Default folder of the figures, which git ignores."""
STYLE: Final = Path(__file__).with_name("paper.mplstyle")
"""Fonts and sizes of the figures."""
PNG_COLOURS: Final = 128
"""Colours of a PNG's palette, which cuts its size to a third."""
WIDTH_IN: Final = {1: 3.15, 2: 6.45, 3: 6.45}
"""Figure width by columns of panels, in; `article` has one or two."""
HEIGHT_IN: Final = {2: 2.1, 3: 1.85}
"""Height of a row of panels by the figure's columns, in."""
LEGEND_COLUMNS: Final = 4
"""Maximum columns of a legend."""
LEGEND_LETTERS_AN_INCH: Final = 18
KEY_LETTERS: Final = 6
"""Width of a legend's key, characters."""
TITLE_LETTERS_AN_INCH: Final = 13
X_LETTERS: Final = 40
Y_LETTERS: Final = 30
"""Maximum length of a line of an axis's label, characters."""
MOST_NAMED_RUNS: Final = 8
"""Maximum number of runs named in a footer; above, their number."""
FOOTER_LETTERS_AN_INCH: Final = 25
MANY_PANELS: Final = 4
"""Number of panels above which a page has three columns."""
MAX_HEIGHT_IN: Final = 7.0
"""Maximum figure height on a page, in; higher ones are split."""
TALLEST: Final = 1.4
"""Maximum height of a figure, in widths."""
PAPER_FONT: Final = 8
"""Font size for these widths, pt; larger fonts enlarge the figure."""


class Format(StrEnum):
    """File format of the figures."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


def plot(
    records: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or patterns (with *) of records; or folders of runs of `train`."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Output folder; by default {FIGURES}, or the folder of the first run.")
    ] = None,
    formats: Annotated[list[Format] | None, typer.Option("--format", help="File format; may be repeated.")] = None,
) -> None:
    """Draw the figures of each machine from its records, or a learning curve.

    Measures nothing.
    """
    kinds = formats or [Format.png]
    folders = run_folders(records or ())
    out = out or (folders[0] if folders else FIGURES)
    require_writable(out, "--out")
    if folders:
        paths = draw_charts([training_run_chart(folders)], out, kinds, folders[0].name)
    else:
        found = read_reporting(existing_files(records) if records else published_records())
        metrics = next(filter(None, (last_below(Path(name), RUN_METRICS) for name in records or ())), None)
        if metrics and not found:
            raise ShowError(f"plot: a folder of runs has no records; name one or several runs, as {metrics.parent}")
        groups = by_machine(evidence_of(found, "plot"))
        paths = [path for name, group in groups.items() for path in draw(group, out, kinds, stem=name)]
    for line in listed(paths):
        echo(line)


def listed(paths: Iterable[Path]) -> list[str]:
    """Return a line per figure, with the suffixes of its files."""
    suffixes: dict[Path, list[str]] = {}
    for path in paths:
        suffixes.setdefault(path.with_suffix(""), []).append(path.suffix)
    return [
        f"figure: {stem}{first}{''.join(f', {each}' for each in more)}" for stem, (first, *more) in suffixes.items()
    ]


def draw(
    records: Iterable[Record],
    out: Path,
    formats: Sequence[Format] = (Format.png,),
    stem: str | None = None,
    names: Collection[str] = (),
) -> list[Path]:
    """Draw every figure that has evidence, and return the paths.

    If a point was measured several times, the latest record is drawn.

    Args:
        records: Records of one or several runs; failed and skipped ones are left out.
        out: Folder; made if missing.
        formats: A file is written in each.
        stem: First part of the files' names; None: the run id, or "bench" for several runs.
        names: Names of the charts to draw; empty: all.

    Raises:
        ShowError: No record is evidence, or they are from several machines.
    """
    found = evidence_of(records, "plots")
    if len(machines := by_machine(found)) > 1:
        raise ShowError(f"plots: a figure shows one machine (got {', '.join(machines)}); draw each machine separately")
    runs = sorted({record.run_id for record in found})
    name = stem or (slug(runs[0]) if len(runs) == 1 else "bench")
    return draw_charts([each for each in charts(found) if not names or each.name in names], out, formats, name)


def draw_charts(charts: Iterable[Chart], out: Path, formats: Sequence[Format], stem: str) -> list[Path]:
    """Draw charts, a file for each page and format; see `draw`."""
    paths = []
    with mpl.rc_context(fname=STYLE):
        for chart in (page for whole in charts for page in pages(whole)):
            figure = paint(chart)
            FigureCanvasAgg(figure)
            paths += [save(figure, out / f"{stem}-{chart.name}.{kind}") for kind in formats]
    return paths


def paint(chart: Chart) -> Figure:
    """Return a figure in the current style; its footer names its records."""
    columns, n_rows = _grid(chart)
    width = width_in(chart)
    is_shared = _shares_axis(chart)
    heights = [len(panel.ticks) for panel in chart.panels] if chart.kind == "rows" else None
    scale = mpl.rcParams["font.size"] / PAPER_FONT
    figure = Figure(figsize=(width * scale, height_in(chart) * scale), layout="constrained")
    grid = figure.subplots(n_rows, columns, squeeze=False, sharex=is_shared, height_ratios=heights)
    for axes in grid.flat[len(chart.panels) :]:
        axes.remove()
    shared, *others = dict.fromkeys(panel.ylabel or chart.y.label for panel in chart.panels)
    has_one_ylabel = n_rows > 1 and not others
    if has_one_ylabel:
        figure.supylabel(textwrap.fill(shared, Y_LETTERS * n_rows), fontsize=mpl.rcParams["axes.labelsize"])
    keys: dict[str, Any] = {}
    paint_panel = _paint_rows if chart.kind == "rows" else _paint_lines
    for index, (axes, panel) in enumerate(zip(grid.flat, chart.panels, strict=False)):
        for name, key in paint_panel(axes, chart, panel).items():
            keys.setdefault(name, key)
        axes.set_title(textwrap.fill(panel.title, int(width / columns * TITLE_LETTERS_AN_INCH)), loc="left")
        ylabel, before = (each.ylabel or chart.y.label for each in (panel, chart.panels[index - 1]))
        if not has_one_ylabel and (index % columns == 0 or ylabel != before):
            axes.set_ylabel(textwrap.fill(ylabel, Y_LETTERS))
        xlabel, *below = (each.xlabel or chart.x.label for each in chart.panels[index::columns])
        if not below or (below[0] != xlabel and not is_shared):
            axes.set_xlabel(textwrap.fill(xlabel, X_LETTERS))
    if chart.has_legend:
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": _legend_columns(chart), "frameon": False}
        figure.legend(keys.values(), keys.keys(), **place)
    _footer(figure, chart)
    return figure


def width_in(chart: Chart) -> float:
    """Return the width of the figure in the paper's font, in."""
    return WIDTH_IN[2 if chart.kind == "rows" else _grid(chart)[0]]


def height_in(chart: Chart) -> float:
    """Return the height of the figure in the paper's font, in."""
    columns, n_rows = _grid(chart)
    n_lines = -(-len(_names(chart)) // _legend_columns(chart)) if chart.has_legend else 0
    if chart.kind == "lines":
        return 0.6 + HEIGHT_IN[max(2, columns)] * n_rows + 0.18 * max(0, n_lines - 2)
    n_ticks = sum(len(panel.ticks) for panel in chart.panels)
    return 0.5 + (0.45 if _shares_axis(chart) else 0.7) * n_rows + 0.17 * n_ticks + 0.18 * n_lines


def _grid(chart: Chart) -> tuple[int, int]:
    """Return the columns and rows of the panels."""
    columns = 1 if chart.kind == "rows" else min(chart.columns, len(chart.panels))
    return columns, -(-len(chart.panels) // columns)


def _shares_axis(chart: Chart) -> bool:
    return chart.kind == "rows" and not any(panel.xlabel for panel in chart.panels)


def _names(chart: Chart) -> set[str]:
    return {series.name for panel in chart.panels for series in panel.series}


def _legend_columns(chart: Chart) -> int:
    """Return the number of legend columns that fit the width."""
    letters = KEY_LETTERS + max(map(len, _names(chart)))
    return min(len(_names(chart)), LEGEND_COLUMNS, max(1, int(width_in(chart) * LEGEND_LETTERS_AN_INCH / letters)))


def pages(chart: Chart) -> Iterator[Chart]:
    """Split a chart into parts that each fit on a page."""
    has_pairs = len({panel.xlabel for panel in chart.panels}) > 1  # such as steps and seconds, side by side
    if chart.kind == "lines" and len(chart.panels) > MANY_PANELS and not has_pairs:
        chart = replace(chart, columns=3)
    parts = [chart.panels[:1]]
    for panel in chart.panels[1:]:
        longer = [*parts[-1], panel]
        page = replace(chart, panels=longer)
        if height_in(page) <= min(MAX_HEIGHT_IN, TALLEST * width_in(page)):
            parts[-1] = longer
        else:
            parts.append([panel])
    for place, panels in enumerate(parts, start=1):
        name, title = f"{chart.name}-{place}", f"{chart.title}, part {place} of {len(parts)}"
        yield replace(chart, panels=panels, name=name, title=title) if len(parts) > 1 else chart


# ------------------------------------------------------------------ panels


def _paint_lines(axes: Axes, chart: Chart, panel: Panel) -> dict[str, Any]:
    """Draw a line with a band per series; return the legend's keys."""
    keys = {}
    for index, series in enumerate(panel.series):
        x = [point.x for point in series.points]
        # Alternate the side of labels of neighbouring lines.
        place: dict[str, Any] = {"xytext": (-4, 4), "ha": "right"} if index % 2 else {"xytext": (4, -8), "ha": "left"}
        for point in (point for point in series.points if point.label):
            axes.annotate(point.label, (point.x, point.y), textcoords="offset points", fontsize="small", **place)
        (keys[series.name],) = axes.plot(x, [point.y for point in series.points], **series.style)
        band = [point.low for point in series.points], [point.high for point in series.points]
        if series.style["linestyle"] == "none":
            axes.vlines(x, *band, color=series.style["color"], linewidth=0.8)
        else:
            axes.fill_between(x, *band, color=series.style["color"], alpha=0.2, linewidth=0)
    if panel.level is not None:
        axes.axhline(panel.level, color="0.5", linewidth=0.8, zorder=0)
    _set_scale(axes, "y", chart.y.is_log)
    if panel.ticks:
        names = [tick.replace(" + changes", "+") for tick in panel.ticks]
        axes.set_xticks(range(len(names)), names, rotation=_label_rotation(names, width_in(chart) / _grid(chart)[0]))
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        _set_scale(axes, "x", chart.x.is_log, MOST_DECADES[_grid(chart)[0]])
    if panel.right is not None:
        label, factor = panel.right
        there_and_back = (lambda y: np.multiply(y, factor), lambda y: np.divide(y, factor))
        right = axes.secondary_yaxis("right", functions=there_and_back)
        low, high = sorted(axes.get_ylim())
        _name_ticks(right.yaxis, factor * low, factor * high, chart.y.is_log)
        right.set_ylabel(label)
    axes.grid(visible=True)
    return keys


def _label_rotation(names: Sequence[str], width: float) -> int:
    """Return the rotation that fits tick labels below a panel, degrees."""
    if sum(map(len, names)) <= LETTERS_ACROSS:
        return 0
    return 20 if width / len(names) >= LEAST_SLANTED_IN else 90


LETTERS_ACROSS: Final = 20
"""Total characters of an axis's ticks above which they are rotated."""
LEAST_SLANTED_IN: Final = 0.45
"""Minimum width per tick for slanted labels, in; else vertical."""


def _paint_rows(axes: Axes, chart: Chart, panel: Panel) -> dict[str, Any]:
    """Draw the values of each series in rows, or as stacked bars."""
    if chart.has_bars:
        left, bars = np.zeros(len(panel.ticks)), [series for series in panel.series if "hatch" in series.style]
        parts = [point for series in bars for point in series.points]
        longest = np.bincount([int(part.y) for part in parts], [part.x for part in parts]).max(initial=0.0)
        keys = {
            series.name: _paint_bars(axes, series, left, longest) if series in bars else _paint_marks(axes, series)
            for series in panel.series
        }
        axes.grid(visible=True, axis="x")
    else:
        keys = {series.name: _paint_marks(axes, series) for series in panel.series}
        axes.margins(x=0.12)
        if panel.level is not None:
            axes.axvline(panel.level, color="0.5", linewidth=0.8, zorder=0)
        _set_scale(axes, "x", chart.x.is_log)
        axes.grid(visible=True)
    axes.set_yticks(range(len(panel.ticks)), panel.ticks)
    axes.set_ylim(len(panel.ticks) - 0.4, -0.6)
    return keys


def _paint_marks(axes: Axes, series: Series) -> Any:
    """Draw the values of a series; return its key in the legend."""
    keys = []
    for point in series.points:
        width = [[point.x - point.low], [point.high - point.x]]
        keys.append(axes.errorbar(point.x, point.y, xerr=width, **series.style).lines[0])
        place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
        if point.label:
            axes.annotate(point.label, (point.high, point.y), (6, 0), **place)
    return keys[0]


def _paint_bars(axes: Axes, series: Series, left: np.ndarray[Any, np.dtype[np.float64]], longest: float) -> Any:
    """Draw bars from ``left`` on and advance it; return the legend's key."""
    rows = [int(point.y) for point in series.points]
    widths = [point.x for point in series.points]
    style = {name: series.style[name] for name in ("color", "hatch")} | {"edgecolor": "white", "linewidth": 0}
    key = axes.barh(rows, widths, left=left[rows], **style)
    for row, point in zip(rows, series.points, strict=True):
        if point.label and point.x > LEAST_LABELLED * longest:
            background = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
            place: dict[str, Any] = {"va": "center", "ha": "center", "fontsize": "x-small", "bbox": background}
            axes.text(left[row] + point.x / 2, row, point.label, **place)
    left[rows] += widths
    return key


LEAST_LABELLED: Final = 0.07
"""Minimum share of the longest stacked bar that fits a label."""


def _set_scale(axes: Axes, which: Literal["x", "y"], is_log: bool, most: int = 12) -> None:
    """Scale an axis and name its ticks."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if is_log:
        axes.set(**{f"{which}scale": "log"})
    low, high = map(float, axis.get_view_interval())
    _name_ticks(axis, low, high, is_log, most)


def _name_ticks(axis: Axis, low: float, high: float, is_log: bool, most: int = 12) -> None:
    """Name an axis's ticks: powers of ten, and 2 and 5 if few.

    With more powers of ten than ``most``, only every second, third, ... has a number. A narrow range has equal steps.
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
"""Ratio of an axis's limits below which 2 and 5 are named."""
MOST_DECADES: Final = {1: 12, 2: 12, 3: 4}
"""Maximum numbered ticks of the horizontal axis, by columns of panels."""


def _si(value: float, _: int | None = None) -> str:
    for letter, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= unit:
            return f"{value / unit:g} {letter}"
    return f"{value:g}"


# ------------------------------------------------------------------ around the panels


def _footer(figure: Figure, chart: Chart) -> None:
    """Write machine, commits and runs of the records, if any, below a figure."""
    words = [chart.statistic.removesuffix(".")]
    if records := chart.records:
        commits = sorted({commit_label(record) for record in records})
        runs = sorted({record.run_id for record in records})
        named = (
            f"run {', '.join(runs)}" if len(runs) <= MOST_NAMED_RUNS else f"{len(runs)} runs, {runs[0]} to {runs[-1]}"
        )
        words = [each[:1].lower() + each[1:] for each in words]
        words = [machine_label(records[0]), *words, f"commit {', '.join(commits)}", named, *notes(records)]
        words += signed_points(records)
    text = "; ".join(words)
    letters = int(figure.get_figwidth() / (mpl.rcParams["font.size"] / PAPER_FONT) * FOOTER_LETTERS_AN_INCH)
    figure.supxlabel(textwrap.fill(one_line(text), letters), fontsize="xx-small", color="0.45", x=0.01, ha="left")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of its suffix, without a timestamp."""
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[path.suffix[1:]]
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], metadata=metadata)
    return write_atomically(path, _with_few_colours(content) if path.suffix == ".png" else content.getvalue())


def _with_few_colours(png: io.BytesIO) -> bytes:
    """Reduce a PNG to the series' and the most frequent other colours.

    These stay exact; the rest become the nearest of them.
    """
    with Image.open(png) as image:
        pixels, dpi = np.asarray(image.convert("RGB"), np.int64), image.info["dpi"]
    codes = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    codes, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    first = np.isin(codes, [int(colour[1:], 16) for colour in COLOURS])
    kept = np.lexsort((-counts, ~first))[:PNG_COLOURS]
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    nearest = np.array([np.square(colours[kept] - colour).sum(axis=1).argmin() for colour in colours], np.uint8)
    few = Image.fromarray(nearest[places].reshape(pixels.shape[:2]), "P")
    few.putpalette(colours[kept].astype(np.uint8).tobytes())
    few.save(reduced := io.BytesIO(), format="png", optimize=True, dpi=dpi)
    return reduced.getvalue()

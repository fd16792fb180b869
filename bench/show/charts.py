"""Charts as plain data, drawn by `plots` and by `report.js`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from warpdrive_min.errors import escape_texts

from ..core.archive import read_toml
from ..core.point import Metric
from ..core.record import Record
from .labels import BACKEND_STYLE, backend_label, code_and_device, is_ours, means, medians

GREY: Final = {"color": "#808080", "marker": "x", "linestyle": "none"}
"""Style of other software."""
PART_COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
OTHERS: Final = {True: "#555555", False: "#999999"}
"""Colours of code other than our kernels, on GPU and CPU."""
COLOURS: Final = (*(style["color"] for style in (*BACKEND_STYLE.values(), GREY)), *PART_COLORS, *OTHERS.values())
"""Colours that tell series apart."""
OTHER_MARKER: Final = {"torch cumsum": "+", "torch.Categorical": "+"}
"""Markers of the second implementation in a row or panel."""


@dataclass(frozen=True, slots=True)
class DataPoint:
    """Value with its spread, on the axis of values."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""
    """Details where there is room, such as the run."""
    label: str = ""
    """Text next to the point."""
    link: str = ""
    """Address that a click opens, on a page only."""

    @classmethod
    def in_row(cls, record: Record, name: str, row: int, label: str = "") -> list[DataPoint]:
        """Return a record's metric as a point of a row; empty if missing."""
        each = record.figure(name)
        return [cls(each.value, row, each.low, each.high, record.run_id, label)] if each else []


@dataclass(frozen=True, slots=True)
class Series:
    """Values under one name, with one style throughout a chart."""

    name: str
    style: Mapping[str, Any]
    """Style in matplotlib's names; ``hatch`` makes bars."""
    points: Sequence[DataPoint]


@dataclass(frozen=True, slots=True)
class Panel:
    """Pair of axes."""

    title: str
    series: Sequence[Series]
    ticks: Sequence[str] = ()
    """Tick names 0, 1, ...: rows from the top, or along x."""
    level: float | None = None
    """Reference value of y, such as 1 for a ratio."""
    xlabel: str = ""
    """Replaces the chart's label, as does ``ylabel``."""
    ylabel: str = ""
    right: tuple[str, float] | None = None
    """Label of a second y axis, and its scale relative to the first."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Label and scale of an axis."""

    label: str = ""
    is_log: bool = True
    is_date: bool = False
    """True for days since 1970, which a page writes as dates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Figure with its panels."""

    name: str
    title: str
    caption: str
    """Text needed to read the figure."""
    statistic: str = ""
    """The same in a few words, for a figure without its caption.

    Empty: the spread of its records."""
    kind: Literal["lines", "rows"] = "lines"
    """Values of y along x ("lines"), or of x in rows ("rows").

    Rows show points or stacked bars."""
    x: Axis
    y: Axis = field(default_factory=Axis)
    columns: int = 2
    """Columns of panels on paper; charts of rows have one."""
    has_legend: bool = True
    """False: on paper the row names replace the legend."""
    panels: Sequence[Panel]
    records: Sequence[Record]
    """Records shown."""
    findings: Sequence[str] = ()
    """Findings as sentences."""

    @property
    def has_bars(self) -> bool:
        """True if its series are stacked bars."""
        return any("hatch" in series.style for panel in self.panels for series in panel.series)

    def with_points(self) -> Chart:
        """Return the chart without empty series and panels, texts on one line."""
        full = [replace(panel, series=[each for each in panel.series if each.points]) for panel in self.panels]
        shown = replace(self, panels=[panel for panel in full if panel.series], records=())
        return replace(escape_texts(shown), records=self.records, statistic=self.statistic or medians(self.records))


def in_rows(chart: Chart) -> Chart:
    """Return a chart of lines as rows if each panel has one place on x.

    A row is a panel, so that no panel has a single marker. Other charts stay.
    """
    places = [{point.x for series in panel.series for point in series.points} for panel in chart.panels]
    if not places or any(len(each) > 1 for each in places):
        return chart
    sizes = [f"{max(each):,.0f} {chart.x.label.removeprefix('number of ')}" for each in places]
    ticks = [f"{panel.title}, {size}" for panel, size in zip(chart.panels, sizes, strict=True)]
    series: dict[str, Series] = {}
    for row, panel in enumerate(chart.panels):
        for each in panel.series:
            points = [replace(point, x=point.y, y=row) for point in each.points]
            before = series.get(each.name, replace(each, style={**each.style, "linestyle": "none"}, points=[]))
            series[each.name] = replace(before, points=[*before.points, *points])
    one = Panel("", list(series.values()), ticks, chart.panels[0].level, chart.y.label)
    return replace(chart, kind="rows", x=Axis(chart.y.label), y=Axis(), panels=[one])


_DECLARED: Final = read_toml(Path(__file__).with_name("charts.toml"))


def chart(name: str, panels: Sequence[Panel], records: Sequence[Record], **words: str) -> Chart:
    """Return a chart with its texts and axes from `charts.toml`.

    Args:
        name: Name there.
        panels: Panels of the chart.
        records: Records shown.
        words: Parts of its texts.
    """
    spread = medians(records)
    words = {"medians": spread, "spread": spread.removesuffix("."), "means": means(records), **words}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return value.format(**words) if isinstance(value, str) else value

    declared = filled({"x": {}, "y": {}, **_DECLARED[name]})
    declared |= {which: Axis(**declared[which]) for which in ("x", "y")}
    return Chart(name=name, panels=panels, records=records, **declared)


MakeChart: TypeAlias = Callable[[Sequence[Record]], Chart]
"""Makes a chart of a case from its evidence on one machine."""


# ------------------------------------------------------------------ lines


def lines(
    records: Sequence[Record], value: Callable[[Record], Metric | None], along: str, **changed: str
) -> list[Series]:
    """Return a series for each backend with values, along an axis."""
    return [
        Series(backend_label(own[0]), style | changed, points)
        for backend, style in BACKEND_STYLE.items()
        if (own := [record for record in records if record.point["backend"] == backend])
        and (points := points_along(own, value, lambda record: float(record.point[along])))
    ]


def points_along(
    records: Iterable[Record], value: Callable[[Record], Metric | None], along: Callable[[Record], float]
) -> list[DataPoint]:
    """Return the records with a value as points, ordered along the axis."""
    found = [
        DataPoint(along(record), each.value, each.low, each.high, record.run_id)
        for record in records
        if (each := value(record)) is not None
    ]
    return sorted(found, key=lambda point: point.x)


# ------------------------------------------------------------------ rows and bars


def rows(
    title: str,
    records: Sequence[Record],
    name: str,
    row: Callable[[Record], str],
    label: Callable[[Record], str] = lambda record: "",
    xlabel: str = "",
) -> Panel:
    """Return a panel with a row per name and a metric per record."""
    ticks = list(dict.fromkeys(map(row, records)))
    series = []
    for who, (style, own) in by_code(records).items():
        points = [p for each in own for p in DataPoint.in_row(each, name, ticks.index(row(each)), label(each))]
        series += [Series(who, style | {"linestyle": "none"}, points)] if points else []
    return Panel(title, series, ticks, xlabel=xlabel)


def bars(
    title: str,
    records: Sequence[Record],
    parts: Mapping[str, str],
    value: Callable[[Record, str], Metric | None],
    row: Callable[[Record], str],
    label: Callable[[Record, str], str] = lambda record, part: "",
) -> Panel:
    """Return a panel with a row for each record, its parts stacked.

    Args:
        title: Title of the panel.
        records: Records in the order of their rows.
        parts: Parts in their order, each with its hatch.
        value: Returns the length of a part of a record.
        row: Names a row.
        label: Returns what stands on a part of a record.
    """
    series = []
    for index, (part, hatch) in enumerate(parts.items()):
        points = [
            DataPoint(each.value, place, each.low, each.high, record.run_id, label(record, part))
            for place, record in enumerate(records)
            if (each := value(record, part)) is not None
        ]
        color = PART_COLORS[index % len(PART_COLORS)]
        style = {"color": color, "marker": "", "linestyle": "none", "hatch": hatch}
        series.append(Series(part.removesuffix("_s").replace("_", " "), style, points))
    return Panel(title, series, list(map(row, records)))


def by_code(records: Sequence[Record]) -> dict[str, tuple[dict[str, str], list[Record]]]:
    """Group records by code with its style: our backends, then others."""
    found: dict[str, tuple[dict[str, str], list[Record]]] = {}
    order = list(BACKEND_STYLE)
    for record in sorted(records, key=lambda r: (not is_ours(r), order.index(str(r.point["backend"])))):
        style = BACKEND_STYLE[str(record.point["backend"])]
        if not is_ours(record):
            marker = OTHER_MARKER.get(str(record.point["implementation"]), GREY["marker"])
            style = GREY | {"color": OTHERS[record.threads is None], "marker": marker}
        found.setdefault(code_and_device(record), (style, []))[1].append(record)
    return found

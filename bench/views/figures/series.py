"""Series that several figures have: one for each backend over an axis, or one for each maker in named rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bench.record import Metric, Record
from bench.views.figures.chart import BACKEND_STYLE, GREY, Dot, Panel, Series
from bench.views.figures.records import metric
from bench.views.figures.words import OTHER_WAYS, backend_label

OTHERS: Final = {True: "#555555", False: "#999999"}
"""Colours of code beside our kernels, on a GPU and on a CPU."""
OTHER_MARKER: Final = {"torch cumsum": "+", "torch.Categorical": "+"}
"""Where two stand in a row or a panel, one of them."""


def by_backend(
    records: Sequence[Record], value: Callable[[Record], Metric | None], axis: str, **changed: str
) -> list[Series]:
    """Return a series over an axis for each backend that has values, in its look but for what is changed."""
    return [
        Series(backend_label(own[0]), look | changed, dots)
        for backend, look in BACKEND_STYLE.items()
        if (own := [record for record in records if record.point["backend"] == backend])
        and (dots := dots_along(own, value, lambda record: float(record.point[axis])))
    ]


def dots_along(
    records: Iterable[Record], value: Callable[[Record], Metric | None], along: Callable[[Record], float]
) -> list[Dot]:
    """Return the records that have a value as dots, in the order of where along the axis they are."""
    found = [
        Dot(along(record), each.value, each.low, each.high, record.run_id)
        for record in records
        if (each := value(record)) is not None
    ]
    return sorted(found, key=lambda dot: dot.x)


def panel_of_rows(
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
    for name, (look, own) in by_maker(records).items():
        dots = [
            Dot(each.value, names.index(row(record)), each.low, each.high, record.run_id, label(record))
            for record in own
            if (each := metric(record, value))
        ]
        series.append(Series(name, look | {"linestyle": "none"}, dots))
    return Panel(title, [each for each in series if each.dots], names, xlabel=xlabel)


def by_maker(records: Sequence[Record]) -> dict[str, tuple[dict[str, str], list[Record]]]:
    """Group records by who did the work, with a look for each: our backends in their order, then others."""
    found: dict[str, tuple[dict[str, str], list[Record]]] = {}
    order = list(BACKEND_STYLE)
    for record in sorted(records, key=lambda r: (not is_ours(r), order.index(str(r.point["backend"])))):
        look = BACKEND_STYLE[str(record.point["backend"])]
        if not is_ours(record):
            marker = OTHER_MARKER.get(str(record.point["implementation"]), GREY["marker"])
            look = GREY | {"color": OTHERS[record.threads is None], "marker": marker}
        found.setdefault(maker(record), (look, []))[1].append(record)
    return found


def is_ours(record: Record) -> bool:
    """Tell whether code of this project did the work."""
    return record.point.get("implementation", "ours") in ("ours", *OTHER_WAYS)


def maker(record: Record) -> str:
    """Name who did the work of a record: a backend of ours, or others' code and on what it ran."""
    if is_ours(record):
        return backend_label(record)
    return f"{record.point['implementation']}, {'GPU' if record.threads is None else 'CPU'}"

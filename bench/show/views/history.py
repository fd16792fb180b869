"""Histories of points over runs, and the runs at which their level changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from ruptures import KernelCPD

from ...core.groups import groups_of
from ...core.point import Figure
from ...core.record import ALONE, UNTIMED, Record, merged, oldest_first
from ...core.stats import median
from ...judge.evidence import busy, disturbances, mismatches
from ..charts import GREY, Axis, Chart, DataPoint, Panel, Series
from ..labels import BACKEND_STYLE, backend_label, commit_label, is_ours, point_label, quantity
from ..records import axes_except, derived_metric, env_order, first_metric, joules

MOST_RUNS: Final = 730
"""Maximum runs of a history; older ones are left out."""
FEWEST_RUNS: Final = 3
"""Minimum runs on one level, so that a single slow run is no change."""
LEAST_CHANGE: Final = 0.01
"""Smallest change of a level that counts, as a fraction."""
LEAST_NOISE: Final = 0.001
"""Smallest standard deviation of a logarithm; sizes in bytes have none."""
KERNEL_WIDTH: Final = 0.1
"""Factor of squared distances, in units of the noise, in the Gaussian kernel."""
PENALTY: Final = 0.7
"""Cost of a change, in units of the logarithm of the number of runs; from simulations, see docs/board.md."""
CHANGE_STYLE: Final = {"color": "#B3006B", "marker": "x", "linestyle": "none"}
"""Style that no backend has."""


def _peak_bytes(record: Record) -> Figure | None:
    n_bytes = record.notes.get("peak_bytes")
    return derived_metric(n_bytes, n_bytes, n_bytes, None) if n_bytes else None


def _speed(record: Record) -> Figure | None:
    return None if record.scope in ("startup", *UNTIMED) else first_metric(record)


QUANTITIES: Final[Mapping[str, Callable[[Record], Figure | None]]] = {
    "speed": _speed,
    "start-up": lambda record: first_metric(record) if record.scope == "startup" else None,
    "memory": lambda record: first_metric(record) if record.scope == "memory" else _peak_bytes(record),
    "energy": lambda record: joules(record) if _speed(record) else None,
}
"""Quantities with a history; less is better of all but the speed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """Value of a quantity in one run, with its level among the runs around it."""

    quantity: str
    record: Record
    figure: Figure
    level: float
    """Median of the runs between two changes."""
    before: Value | None = None
    """Last value on the old level, if the level changed in this run."""

    @property
    def verdict(self) -> str:
        """Direction of a change; empty: none."""
        if not self.before:
            return ""
        return "worse" if (self.level < self.before.level) == (self.quantity == "speed") else "better"

    @property
    def change(self) -> str:
        """Change of the level as text; empty: none."""
        return f"{self.quantity} {self.level / self.before.level - 1:+.1%}" if self.before else ""

    @property
    def causes(self) -> list[str]:
        """Return the other differences at a change, such as of the driver."""
        if not self.before:
            return []
        other_card = ["another card"] if self.before.record.card != self.record.card else []
        return other_card + mismatches(self.before.record, self.record)

    @property
    def unit(self) -> str:
        """Quantity with its unit."""
        if self.quantity == "energy":
            return "J per million environment steps"
        if self.quantity == "memory" and self.record.scope != "memory":
            return "peak memory, bytes"
        name = quantity(next(iter(self.record.metrics or {})))
        return name.removesuffix(", s") if self.quantity == "memory" else name


History: TypeAlias = Sequence[Value]
"""Values of one quantity of one point, oldest first."""


def histories(records: Iterable[Record]) -> list[History]:
    """Return the histories of one machine's points, by environment and case.

    Records that are no evidence, were disturbed, or ran interleaved are left out, and so are other software, learning
    curves and earlier versions of a case. Several records of a point in a run count as their last.
    """
    chosen = [
        record
        for record in merged(each for each in oldest_first(records) if each.taken == ALONE and each.is_evidence)
        if is_ours(record) and record.point.get("backend") in BACKEND_STYLE and not disturbances(record)
    ]
    newest = {case: max(r.case_version for r in own) for case, own in groups_of(chosen, lambda r: r.case).items()}
    points = groups_of((each for each in chosen if each.case_version == newest[each.case]), point_key)
    found = []
    for of_point in sorted(points.values(), key=lambda of_point: _order(of_point[-1])):
        runs = list({record.run_id: record for record in of_point}.values())[-MOST_RUNS:]
        for name, figure_of in QUANTITIES.items():
            pairs = [(each, figure) for each in runs if (figure := figure_of(each)) and figure.value > 0]
            if pairs:
                found.append(_history(name, pairs))
    return found


def _history(name: str, pairs: Sequence[tuple[Record, Figure]]) -> History:
    """Return the values of a quantity with their levels."""
    values = [figure.value for _, figure in pairs]
    made = list[Value]()
    for start, end in pairwise([0, *changes_of(values), len(values)]):
        level = median(values[start:end])
        for place, (record, figure) in enumerate(pairs[start:end], start):
            before = made[-1] if place == start > 0 else None
            made.append(Value(quantity=name, record=record, figure=figure, level=level, before=before))
    return made


def point_key(record: Record) -> tuple[Any, ...]:
    """Return the identity of a record's point, with its preset, mode and threads."""
    return (record.case, record.preset, record.mode, record.threads, axes_except(record))


def total_size(record: Record) -> float:
    """Return the product of all sizes of a point."""
    return float(math.prod(value for value in record.point.values() if type(value) is int))


def _order(record: Record) -> tuple[Any, ...]:
    return (
        env_order(record),
        str(record.point.get("env", "")),
        record.case,
        -total_size(record),
        str(point_key(record)),
    )


def changes_of(values: Sequence[float]) -> list[int]:
    """Return the first places on new levels, by PELT with a Gaussian kernel.

    The kernel is bounded, so that single outliers make no change. Noise is estimated from the differences of successive
    runs, which a change hardly affects.

    Args:
        values: Positive values, one for each run, oldest first.

    Source: Killick, Fearnhead and Eckley 2012, "Optimal detection of changepoints with a linear computational cost";
    Arlot, Celisse and Harchaoui 2019, "A kernel multiple change-point algorithm via model selection". Implementation:
    ruptures, Truong, Oudre and Vayatis 2020, "Selective review of offline change point detection methods".
    """
    if len(values) < 2 * FEWEST_RUNS:
        return []
    logs = np.log(np.asarray(values, np.float64))
    noise = float(np.median(np.abs(np.diff(logs)))) / (0.6745 * math.sqrt(2))  # of a normal distribution
    scaled = (logs - np.median(logs)) / max(noise, LEAST_NOISE)
    search = KernelCPD(kernel="rbf", min_size=FEWEST_RUNS, params={"gamma": KERNEL_WIDTH}).fit(scaled[:, None])
    ends = [0, *search.predict(pen=PENALTY * math.log(len(values)))]
    levels = [median(values[start:end]) for start, end in pairwise(ends)]
    steps = zip(ends[1:], pairwise(levels), strict=False)
    return [place for place, (before, after) in steps if abs(after / before - 1) >= LEAST_CHANGE]


# ------------------------------------------------------------------ charts


def days(record: Record) -> float:
    """Return the start of a record in days since 1970."""
    return record.start.timestamp() / 86400


def name_of_point(record: Record) -> str:
    """Name a point without its environment, with its preset."""
    point = {axis: value for axis, value in record.point.items() if axis != "env"}
    return f"{point_label(point)}, preset {record.preset}".removeprefix(", ")


def charts(found: Sequence[History], link: Callable[[Record], str]) -> list[Chart]:
    """Return a chart for each case, with a panel for each history.

    Args:
        found: Histories of one environment on one machine.
        link: Returns the address of a record; empty: none.
    """
    dates, values = Axis("date", is_log=False, is_date=True), Axis(is_log=False)
    made = []
    for case, of_case in groups_of(found, lambda history: history[-1].record.case).items():
        panels = [_panel(history, link) for history in of_case]
        shown = [value.record for history in of_case for value in history]
        made.append(Chart(name=case, title=case, caption="", x=dates, y=values, panels=panels, records=shown))
    return [chart.with_points() for chart in made]


def _panel(history: History, link: Callable[[Record], str]) -> Panel:
    points, level, changed = list[DataPoint](), list[DataPoint](), list[DataPoint]()
    for each in history:
        record, figure, x = each.record, each.figure, days(each.record)
        note = "; ".join(filter(None, (each.change, commit_label(record), record.run_id, busy(record))))
        points.append(DataPoint(x, figure.value, figure.low, figure.high, note, link=link(record)))
        level.append(DataPoint(x, each.level, each.level, each.level))
        changed += [replace(points[-1], low=figure.value, high=figure.value)] if each.before else []
    last = history[-1].record
    series = [
        Series(code_of(last), BACKEND_STYLE[str(last.point["backend"])], points),
        Series("level", GREY | {"marker": "", "linestyle": "-"}, level if changed else []),
        Series("level changed", CHANGE_STYLE, changed),
    ]
    return Panel(f"{history[-1].quantity}: {point_and_code(last)}", series, ylabel=history[-1].unit)


def point_and_code(record: Record) -> str:
    """Name a record's point, without its environment, and its code."""
    return f"{name_of_point(record)}; {code_of(record)}"


def code_of(record: Record) -> str:
    """Name the code of a history, and its launch mode."""
    return f"{backend_label(record)}, {record.mode}" if record.mode else backend_label(record)

"""Tables that several cases share: rates over a baseline, every point with all that was read, and the headline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from ..record import Record
from .charts import BACKEND_STYLE, is_ours
from .columns import (
    Column,
    MakeTable,
    Table,
    axis_column,
    backend_column,
    interval_column,
    metric_column,
    number_column,
    over_column,
)
from .labels import (
    ENV_NAME,
    backend_label,
    commit_label,
    device_label,
    interval_text,
    number,
    plain_text,
    ratio_text,
    three_digits,
)
from .records import env_order, joules, latest, measured_alone, metric, size

# ------------------------------------------------------------------ at the end of a sweep, and in documents


def over_baseline(title: str, baseline: str, by: Literal["backend", "implementation", "mode"], value: str) -> MakeTable:
    """Return what makes the table of a case with a rate: its axes, and each point over a baseline of equal axes.

    Args:
        title: Title of the table.
        baseline: Name of the baseline in the header.
        by: Axis that tells the baseline: ``backend``, on any device; ``implementation``, of any backend on the same
            device; or ``mode``.
        value: Value of the baseline on that axis.
    """
    apart = {"backend": {"backend", "mode"}, "implementation": {"backend", "implementation"}, "mode": {"mode"}}[by]

    def make(records: Sequence[Record]) -> Table[Record]:
        rate = next(iter(records[0].metrics or {}))
        kind = rate.removesuffix("_per_s")
        unit = kind.removesuffix("s")
        axes = list(dict.fromkeys(name for record in records for name in record.point))
        shown = [name for name in axes if name != "backend"]

        def key(record: Record) -> tuple[Any, ...]:
            device = by == "backend" or record.threads is None
            return (device, *(record.point.get(name) for name in axes if name not in apart))

        return Table(
            title=title,
            rows=sorted(records, key=lambda record: [_order(record.point.get(name)) for name in shown]),
            columns=[
                *map(axis_column, shown),
                backend_column(),
                metric_column(rate, f"{kind}/s"),
                interval_column(rate),
                metric_column(f"ns_per_{unit}", f"ns/{SINGULAR.get(unit, unit)}", three_digits),
                over_column(f"x {baseline}", rate, records, by, value, key),
            ],
        )

    return make


SINGULAR: Final = {"indice": "index"}
"""Names of work that are wrong without their s."""


def _order(value: Any) -> tuple[float, str]:
    """Let numbers go by their size, and words after them."""
    return (value, "") if isinstance(value, int | float) else (float("inf"), str(value))


# ------------------------------------------------------------------ every point, on the page

SHARE: Final = number_column("share of the limit", lambda record: record.roofline, ".1%")
JOULES: Final = number_column(
    "J per million env-steps", lambda record: found.value if (found := joules(record)) else None, ".3g"
)


def _note(name: str, unit: str, scale: float = 1) -> Column[Record]:
    def value(record: Record) -> float | None:
        return None if record.notes.get(name) is None else float(record.notes[name]) * scale

    return number_column(f"{name.rsplit('_', 1)[0]}, {unit}", value, ".3g")


ROLLOUT: Final = _note("rollout_s", "ms", 1e3)
UPDATE: Final = _note("update_s", "ms", 1e3)
SAMPLES: Final = number_column("samples", lambda record: record.n, "")
BESIDE: Final = (SHARE, JOULES, _note("setup_s", "s"), ROLLOUT, UPDATE, _note("peak_bytes", "GiB", 2**-30), SAMPLES)
"""Columns of what was read beside the metrics; shown where a record of the case has it."""


def largest_error(record: Record) -> float | None:
    """Return the larger error of both checks."""
    return record.correctness.max_error if record.correctness else None


ERROR: Final = number_column("largest error", largest_error, ".1e")
RUN: Final[Column[Record]] = Column("run", lambda record: record.run_id)
ORIGIN: Final[tuple[Column[Record], ...]] = (
    ERROR,
    Column("commit", commit_label, is_choice=True),
    replace(RUN, is_choice=True),
    Column("command", lambda record: record.command, is_code=True),
)
INTERVAL: Final = "95 % interval"


def points(records: Sequence[Record]) -> Table[Record]:
    """Return all records of a case: axes, every metric with its interval, what was read beside it, its origin."""
    axes = dict.fromkeys(axis for record in records for axis in record.point)
    metrics = dict.fromkeys(name for record in records for name in record.metrics or {})
    return Table(
        rows=records,
        columns=[
            *(_page_axis(axis, records) for axis in axes),
            Column("threads", lambda record: "GPU" if record.threads is None else str(record.threads)),
            *(column for name in metrics for column in (_metric(name), _page_interval(name))),
            *(column for column in BESIDE if any(map(column.text, records))),
            *ORIGIN,
        ],
    )


def _page_axis(name: str, records: Sequence[Record]) -> Column[Record]:
    def text(record: Record) -> str:
        value = record.point.get(name, "")
        return str(value) if isinstance(value, bool) else plain_text(value)

    if any(isinstance(record.point.get(name, ""), str | bool) for record in records):
        return Column(name, text, is_choice=True)
    return Column(name, text, lambda record: float(record.point[name]))


def _metric(name: str, missing: str = "", header: str = "") -> Column[Record]:
    return metric_column(name, header or name.replace("_per_s", "/s").replace("_", " "), missing=missing)


def _page_interval(name: str) -> Column[Record]:
    return interval_column(
        name, lambda found: f"{number(found.low)} to {number(found.high)}", header=INTERVAL, is_right=False
    )


def headline(records: Sequence[Record]) -> Table[Record]:
    """Return, for each environment, where the most agent steps are done; without rows if none was measured.

    A ratio is of the newest run that has both of its points.
    """
    alone = measured_alone(record for record in records if record.case == "env_step")
    steps = [record for record in latest(alone) if not record.point.get("exact")]
    best = {record.point["env"]: record for record in sorted(steps, key=_agent_steps)}
    newest_first = sorted(alone, key=lambda record: record.started_at, reverse=True)
    bases = {(size(record), record.point["backend"]): record for record in newest_first}

    def over_backend(name: str) -> Column[Record]:
        labels = {backend_label(record) for record in steps if record.point["backend"] == name}

        def value(record: Record) -> float | None:
            pairs = (
                (other, bases[size(other), name])
                for other in newest_first
                if other.point == record.point and (size(other), name) in bases
            )
            return next((_agent_steps(own) / _agent_steps(base) for own, base in pairs), None)

        def text(record: Record) -> str:
            return "not measured" if (found := value(record)) is None else ratio_text(found)

        return Column(f"times {' and '.join(sorted(labels))}", text, value)

    return Table(
        caption="Where each environment does the most agent steps; ratios are over the same size in one run, the "
        "newest that has both",
        rows=sorted(best.values(), key=env_order),
        columns=[
            Column("environment", lambda record: ENV_NAME.get(str(record.point["env"]), str(record.point["env"]))),
            _page_axis("n_agents", steps),
            _page_axis("n_envs", steps),
            Column("backend", backend_label),
            _metric("env_steps_per_s"),
            _page_interval("env_steps_per_s"),
            _metric("agent_steps_per_s"),
            *(over_backend(name) for name in ("cpu", "host") if any(r.point["backend"] == name for r in steps)),
            SHARE,
            ERROR,
            RUN,
        ],
    )


def _agent_steps(record: Record) -> float:
    found = metric(record, "agent_steps_per_s")
    return found.value if found else 0.0


# ------------------------------------------------------------------ on paper

NOTHING: Final = "\N{EN DASH}"
"""Stands where a point does not have an axis, or a metric."""
KEPT: Final = (SHARE, JOULES, ROLLOUT, UPDATE, ERROR)
"""Columns beside the metrics on paper; the records in the paper's folder have the rest."""
FIRST: Final = ("env", "n_agents", "n_envs")
SAME: Final = 1e-6
"""Share of an interval's end by which rounding moves it at most."""


def paper_headline(records: Sequence[Record]) -> Table[Record]:
    """Return the headline with words for axes, and intervals with the digits that they need."""
    made = headline(records)
    columns = [
        paper_interval("env_steps_per_s") if column.name == INTERVAL else replace(column, name=_axis_name(column.name))
        for column in made.columns
        if column is not RUN
    ]
    caption = "Where each environment does the most agent steps; ratios are of one size in the newest run of both."
    return replace(made, columns=columns, caption=caption)


def paper_points(records: Sequence[Record], *more: Column[Record]) -> Table[Record]:
    """Return a row for each point, with the axes that differ and more columns; the caption says the other axes."""
    keys, same = differing(records)
    names = list(dict.fromkeys(name for record in records for name in record.metrics or {}))
    rates = [name for name in names if not name.startswith("ns_per_")]
    beside = []
    for column in KEPT:
        texts = {column.text(record) for record in records}
        if len(texts) > 1:
            beside.append(column)
        elif any(texts):
            same.append(f"{column.name} {texts.pop()}")
    return Table(
        caption=f"Case {records[0].case}: medians over samples, the latest record of each point.{all_points(same)}",
        rows=sorted(records, key=paper_order(keys)),
        columns=[
            *map(paper_axis, keys),
            PAPER_BACKEND,
            *(column for name in rates for column in _paper_metric(name, rates[0], records)),
            *more,
            *beside,
        ],
        n_grouping=len(keys),
    )


def differing(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """Return the axes that differ between points, sizes after environments, and in words those that do not."""
    found = dict.fromkeys(axis for record in records for axis in record.point if axis != "backend")
    every = sorted(found, key=lambda axis: FIRST.index(axis) if axis in FIRST else len(FIRST))
    values = {axis: {paper_axis(axis).text(record) for record in records} for axis in every}
    differ = [axis for axis, texts in values.items() if len(texts) > 1]
    return differ, [f"{_axis_name(axis)} {texts.pop()}" for axis, texts in values.items() if axis not in differ]


def all_points(same: Sequence[str]) -> str:
    """Return the sentence on the axes that all points share."""
    return f" All points: {', '.join(same)}." if same else ""


def paper_axis(name: str) -> Column[Record]:
    """Return the column of an axis in words."""

    def text(record: Record) -> str:
        value = record.point.get(name, NOTHING)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return ENV_NAME.get(value, value) if isinstance(value, str) else plain_text(value)

    return Column(_axis_name(name), text, is_right=name.startswith("n_"))


def _axis_name(axis: str) -> str:
    return "environment" if axis == "env" else axis.removeprefix("n_").replace("_", " ")


def _paper_backend(record: Record) -> str:
    if is_ours(record) and "backend" in record.point:
        return backend_label(record)
    return "GPU" if record.threads is None else f"CPU ({device_label(record.threads)})"


PAPER_BACKEND: Final = Column("backend", _paper_backend)


def paper_order(axes: Sequence[str]) -> Callable[[Record], Any]:
    """Return the key of the order of rows: environments and backends as in charts, numbers by their size."""
    order = [*ENV_NAME, *BACKEND_STYLE]

    def place(value: Any) -> tuple[float, str]:
        if isinstance(value, int | float):
            return value, ""
        return (order.index(value) if value in order else len(order)), str(value)

    return lambda record: [place(record.point.get(axis, -1)) for axis in (*axes, "backend")]


def paper_metric(name: str, header: str = "") -> Column[Record]:
    """Return the column of a metric on paper."""
    return _metric(name, NOTHING, header)


def paper_interval(name: str) -> Column[Record]:
    """Return the column of a metric's interval on paper."""
    return interval_column(name, interval_text, INTERVAL, NOTHING)


def _paper_metric(name: str, first: str, records: Sequence[Record]) -> list[Column[Record]]:
    """Return the columns of a metric: with its interval, unless it has none or is a multiple of the first metric."""

    def has_own_interval(record: Record) -> bool:
        own, base = metric(record, name), metric(record, first)
        if own is None or base is None or name == first:
            return own is not None and own.low != own.high
        return not math.isclose(own.low * base.value, base.low * own.value, rel_tol=SAME)

    return [paper_metric(name), *([paper_interval(name)] if any(map(has_own_interval, records)) else [])]


# ------------------------------------------------------------------ of a machine


def hardware(records: Sequence[Record]) -> dict[str, str]:
    """Return each field of the machine, with all values that the records have."""
    fields = dict.fromkeys(name for record in records for name in record.machine if name != "unread")
    found = {}
    for name in fields:
        values = dict.fromkeys(record.machine.get(name) for record in records)
        words = [f"{value / 2**30:.0f} GiB" if name == "memory_bytes" else str(value) for value in values if value]
        found[name.replace("_bytes", "").replace("_", " ")] = ", ".join(words) or "not known"
    return found

"""Tables and charts of the start of a process and of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.record import Record
from bench.show.charts import HATCHES, PART_COLORS, Axis, Chart, MakeChart, Panel, bars, lines
from bench.show.columns import Column, MakeTable, Table, axis, backend, derived, interval, measured
from bench.show.labels import backend_label, environment, number, plain_text, three_digits
from bench.show.records import by, grouped, latest, metric
from bench.show.tables import (
    PAPER_BACKEND,
    all_points,
    differing,
    paper_axis,
    paper_interval,
    paper_metric,
    paper_order,
)
from bench.views.env_step import AGENTS_IN_EACH


class Part(NamedTuple):
    """A part of a start."""

    record: Record
    metric: str
    is_first: bool


def _parts(records: Sequence[Record]) -> list[Part]:
    return [Part(each, name, index == 0) for each in records for index, name in enumerate(each.metrics or {})]


def _of(column: Column[Record], is_first: bool = False) -> Column[Part]:
    """Return a column of records as one of their parts, or of the first one alone."""
    return Column(
        column.name,
        lambda part: "" if is_first and not part.is_first else column.text(part.record),
        is_right=column.is_number,
    )


def starts(records: Sequence[Record]) -> Table[Part]:
    """Return the seconds of each part of a start, medians over processes."""
    axes = ("until", "env", "n_agents", "n_envs", "cache")
    return Table(
        title="startup: in a fresh process",
        rows=_parts(sorted(records, key=by(*axes))),
        columns=[
            *(_of(column, is_first=True) for column in (*map(axis, axes), backend())),
            Column("part", lambda part: part.metric.removesuffix("_s")),
            Column("s", lambda part: measured(part.metric, "", "{:.3g}".format).text(part.record), is_right=True),
            Column("+-", lambda part: interval(part.metric).text(part.record), is_right=True),
        ],
    )


def paper_starts(records: Sequence[Record]) -> Table[Part]:
    """Return a row for each part of the start of each point."""
    keys, same = differing(records)
    axes = [*map(paper_axis, keys), PAPER_BACKEND]
    return Table(
        caption=f"Start of a process, part after part: medians over fresh processes.{all_points(same)}",
        rows=_parts(sorted(records, key=paper_order(keys))),
        columns=[
            *map(_of, axes),
            Column("part", lambda part: part.metric.removesuffix("_s").replace("_", " ")),
            Column("s", lambda part: paper_metric(part.metric).text(part.record), is_right=True),
            Column("95 % interval", lambda part: paper_interval(part.metric).text(part.record), is_right=True),
        ],
        n_grouping=len(axes),
    )


def starting(records: Sequence[Record]) -> Chart:
    """Return how long each part of a start takes, one after the other, in a row for each point."""
    shown = sorted(latest(records), key=_start_name)
    names = dict.fromkeys(name for record in shown for name in record.notes["samples_s"])
    parts = {name: HATCHES[index // len(PART_COLORS)] for index, name in enumerate(names)}
    return Chart(
        name="startup",
        title="Start of a process",
        caption="Each part of the start of a fresh process, one after the other. Medians of each part.",
        statistic="medians of each part",
        kind="rows",
        x=Axis("seconds in a fresh process", is_log=False),
        panels=[bars("", shown, parts, metric, _start_name)] if shown else [],
        records=shown,
    )


def _start_name(record: Record) -> str:
    point = record.point
    return f"{environment(str(point['env']))}, {point['until']}, {backend_label(record)}, {point['cache']}"


def memories(records: Sequence[Record]) -> Table[Record]:
    """Return the bytes of an environment and of its agents, and how many environments fit."""
    axes = ("env", "n_agents", "backend")

    return Table(
        title="memory: of an environment's arrays",
        rows=sorted(records, key=by(*axes)),
        columns=[
            *map(axis, axes),
            measured("bytes_per_env", "bytes/env", "{:,.0f}".format),
            measured("bytes_per_agent", "bytes/agent", three_digits),
            derived("fixed bytes", lambda record: record.notes["fixed_bytes"], ","),
            Column("free bytes", lambda record: number(record.notes["free_bytes"]), is_right=True),
            measured("largest_n_envs", "envs that fit"),
            Column("started and stepped", lambda record: plain_text(record.notes.get("stepped_envs")), is_right=True),
        ],
    )


def memory(records: Sequence[Record]) -> Chart:
    """Return the bytes of an environment over the number of its agents, for environments of several sizes."""
    panels, shown = [], []
    for (env,), found in grouped(latest(records), "env").items():
        if len({record.point["n_agents"] for record in found}) > 1:
            series = lines(found, lambda record: metric(record, "bytes_per_env"), "n_agents")
            panels.append(Panel(environment(str(env)), series))
            shown += found
    return Chart(
        name="memory",
        title="Memory of an environment",
        caption="What as many environments again make in the arrays of started environments, for each of them.",
        statistic="of the arrays",
        x=Axis(AGENTS_IN_EACH),
        y=Axis("bytes of an environment"),
        panels=panels,
        records=shown,
    )


TABLES: Final[Mapping[str, Mapping[str, MakeTable]]] = {
    "startup": {"terminal": starts, "paper": paper_starts},
    "memory": {"terminal": memories},
}
CHARTS: Final[Mapping[str, Sequence[MakeChart]]] = {"startup": (starting,), "memory": (memory,)}

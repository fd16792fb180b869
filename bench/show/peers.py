"""The table and the chart of other people's software beside ours, measured in turns on the same work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..case import Place
from ..record import Metric, Record
from .charts import BACKEND_STYLE, GREY, Axis, Chart, DataPoint, MakeChart, Panel, Series
from .columns import Column, MakeTable, Table, axis_column, interval_column, metric_column
from .labels import (
    BACKEND_NAME,
    MEDIANS,
    device_label,
    environment,
    plain_text,
    plural,
    ratio_text,
    three_digits,
)
from .records import by, grouped, latest, rate_of
from .tables import paper_axis, paper_metric, paper_order


def _work(record: Record) -> str:
    return " ".join(str(record.point[axis]) for axis in ("work", "algorithm", "precision") if axis in record.point)


WORK: Final = Column("work", _work)


def beside_ours(records: Sequence[Record]) -> Table[Record]:
    """Return other people's software, and how many times as fast ours is on the same work, measured in turns."""

    def envs(record: Record) -> str:
        n_steps = f" x {record.point['n_steps']}" if "n_steps" in record.point else ""
        return plain_text(record.point["n_envs"]) + n_steps

    def ends(ratio: Metric) -> str:
        return f"{three_digits(ratio.low)} to {three_digits(ratio.high)}"

    return Table(
        title="peer: other people's software in turns with ours",
        rows=sorted(records, key=by("work", "env", "n_agents", "n_envs", "peer")),
        columns=[
            axis_column("peer"),
            Column("version", lambda record: record.notes["version"] or "unnamed"),
            WORK,
            axis_column("env"),
            axis_column("n_agents", "agents"),
            Column("envs", envs, is_right=True),
            Column("on", lambda record: device_label(record.threads)),
            Column("counts as a step", lambda record: record.notes["counts"]),
            metric_column("env_steps_per_s", "env-steps/s"),
            interval_column("env_steps_per_s"),
            Column("ours", lambda record: str(record.notes["ours"]["point"]["backend"])),
            metric_column("ours_env_steps_per_s", "ours, env-steps/s"),
            metric_column("ours_over_peer", "ours / peer", three_digits),
            interval_column("ours_over_peer", ends, "95 % interval"),
        ],
    )


def on_paper(records: Sequence[Record]) -> Table[Record]:
    """Return the rates of each peer and of ours in the same turns, and how many times as fast ours is."""

    def ratio(found: Metric) -> str:
        return f"{ratio_text(found.value)} ({ratio_text(found.low)} to {ratio_text(found.high)})"

    return Table(
        caption="Environment steps per second of other people's software and of ours, medians in turns, with their "
        "ratio.",
        rows=sorted(records, key=paper_order(("env", "work", "algorithm", "n_agents", "n_envs", "precision", "peer"))),
        columns=[
            paper_axis("env"),
            WORK,
            *map(paper_axis, ("n_agents", "n_envs", "peer")),
            paper_metric("env_steps_per_s", "theirs"),
            paper_metric("ours_env_steps_per_s", "ours"),
            interval_column("ours_over_peer", ratio, "ours over theirs"),
        ],
        n_grouping=4,
    )


WORKS: Final = {"simulate": "random actions", "train": "training"}


def peers(records: Sequence[Record]) -> Chart:
    """Return the throughput of each peer and of ours, in a row for each point, with how many times as fast ours is."""
    shown = [record for record in latest(records) if rate_of(record, "ours_over_peer")]
    order = by("algorithm", "n_agents", "n_envs", "precision", "peer")
    panels = []
    for (work, env), found in grouped(sorted(shown, key=order), "work", "env").items():
        places = list(enumerate(found))
        series = [Series("theirs", GREY, [_data_point(each, row, "env_steps_per_s") for row, each in places])]
        for backend, style in BACKEND_STYLE.items():
            own = [place for place in places if place[1].notes["ours"]["point"]["backend"] == backend]
            points = [_data_point(each, row, "ours_env_steps_per_s") for row, each in own]
            name = f"ours, {BACKEND_NAME[backend]}"
            series += [Series(name, style | {"linestyle": "none"}, points)] if points else []
        panels.append(Panel(f"{environment(str(env))}, {WORKS[str(work)]}", series, list(map(_row, found))))
    return Chart(
        name="peers",
        title="Beside other people's software",
        caption=f"The same environment in the same sizes, in turns. {MEDIANS} x is how many times as fast ours is.",
        statistic="medians",
        kind="rows",
        x=Axis("environment steps per second (x: ours over theirs)"),
        panels=panels,
        records=shown,
    )


def _row(record: Record) -> str:
    point = record.point
    agents = f" x {plural(int(point['n_agents']), 'agent')}" if int(point["n_agents"]) > 1 else " environments"
    how = [str(point[axis]) for axis in ("algorithm", "precision") if axis in point]
    size = ", ".join([str(point["peer"]), *how, f"{point['n_envs']:,}{agents}"])
    return f"{size}: {ratio_text(rate_of(record, 'ours_over_peer'))} x"


def _data_point(record: Record, row: int, name: str) -> DataPoint:
    assert record.metrics is not None
    rate = record.metrics[name]
    return DataPoint(rate.value, row, rate.low, rate.high, record.run_id)


TABLES: Final[Mapping[Place, MakeTable]] = {"terminal": beside_ours, "paper": on_paper}
CHARTS: Final[Sequence[MakeChart]] = (peers,)

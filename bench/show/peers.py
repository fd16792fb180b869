"""Table and chart of peers and our code on the same work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..core.point import Metric
from ..core.record import Record
from .charts import BACKEND_STYLE, GREY, Axis, Chart, DataPoint, MakeChart, Panel, Series
from .columns import Column, Table, axis_column, interval_column, metric_column
from .labels import BACKEND_NAME, MEDIANS, device_label, environment, plural, ratio_text
from .records import axes_except, by, derived, grouped, latest, point_order, rate_of


def peers_table(records: Sequence[Record]) -> Table[Record]:
    """Return each peer variant's rate, ours, and their ratio.

    A column marks the fastest of a point's variants; remarks name disturbances.
    """
    variants = {record.point["variant"] for record in records if "variant" in record.point}
    best = {record.id for record in opponents(records)}

    def work(record: Record) -> str:
        return " ".join(str(record.point[axis]) for axis in ("work", "algorithm", "precision") if axis in record.point)

    def ratio(found: Metric) -> str:
        return f"{ratio_text(found.value)} ({ratio_text(found.low)} to {ratio_text(found.high)})"

    def axes(*names: str) -> list[Column[Record]]:
        return [axis_column(name, records) for name in names]

    def opponent(record: Record) -> str:
        return "yes" if record.id in best else "no"

    def remarks(record: Record) -> str:
        return "; ".join(record.notes.get("remarks", ()))

    def taken(record: Record) -> str:
        return "many a launch" if record.notes["ours"]["point"].get("mode") == "fused" else "one by one"

    ways = [axis_column("variant", records), Column("opponent", opponent, is_choice=True)] if variants else []
    how = [Column("our steps", taken)] if "many a launch" in map(taken, records) else []
    said = [Column("remarks", remarks, is_long=True)] if any(map(remarks, records)) else []
    more = " The opponent is the fastest variant of each." if variants else ""
    axes_of_rows = ("env", "work", "algorithm", "n_agents", "n_envs", "precision", "peer", "variant")
    return Table(
        caption="Environment steps per second of other people's software and of ours, medians in turns, with their "
        f"ratio.{more}",
        rows=sorted(records, key=point_order(axes_of_rows)),
        columns=[
            *(*axes("env"), Column("work", work), *axes("n_agents", "n_envs", "peer"), *ways),
            Column("version", lambda record: record.notes["version"] or "unnamed"),
            Column("on", lambda record: device_label(record.threads)),
            Column("counts as a step", lambda record: record.notes["counts"]),
            metric_column("env_steps_per_s", "theirs"),
            metric_column("ours_env_steps_per_s", "ours"),
            *how,
            interval_column("ours_over_peer", "ours over theirs", ratio),
            *said,
        ],
        n_grouping=4,
    )


def peer_learning_table(records: Sequence[Record]) -> Table[Record]:
    """Return when a peer and our code reached the threshold, by seed."""
    axes = ("env", "algorithm", "threshold", "peer", "variant", "n_envs", "seed")
    columns = {
        "env_steps_to_threshold": "steps, theirs",
        "ours_env_steps_to_threshold": "steps, ours",
        "seconds_to_threshold": "s, theirs",
        "ours_seconds_to_threshold": "s, ours",
        "ours_over_peer": "ours sooner, times",
        "return_after": "greedy, theirs",
        "ours_return_after": "greedy, ours",
        "whole_run_s": "their whole run, s",
        "compile_s": "they compiled, s",
    }
    return Table(
        caption="Training until a mean return reaches the threshold, other people's software and ours from a seed "
        "each, without compiling. Their program is timed as a whole, and its steps share the time.",
        rows=sorted(records, key=point_order(axes)),
        columns=[
            *(axis_column(name, records) for name in axes),
            *(metric_column(name, header) for name, header in columns.items()),
        ],
        n_grouping=6,
    )


def opponents(records: Sequence[Record]) -> list[Record]:
    """Return the fastest variant of each peer at each point."""
    compared = (record for record in records if rate_of(record, "ours_over_peer"))
    slowest_first = sorted(compared, key=lambda record: rate_of(record, "env_steps_per_s"))
    frame = derived(slowest_first, point=lambda record: axes_except(record, "variant"))
    return list(frame.groupby("point", sort=False)["record"].last())


WORKS: Final = {"simulate": "random actions", "train": "training"}


def peers(records: Sequence[Record]) -> Chart:
    """Return the throughput of peers and our code, a row per point.

    Each peer is shown with its fastest variant. An asterisk marks Python loops timed in laps on shared cores.
    """
    shown = opponents(latest(records))
    shared = "; *: shared cores" if any("laps" in record.notes for record in shown) else ""
    order = by("algorithm", "n_agents", "n_envs", "precision", "peer")
    panels = []
    for (work, env), found in grouped(sorted(shown, key=order), "work", "env").items():
        places = list(enumerate(found))
        series = [Series("theirs", GREY, [_data_point(each, row, "env_steps_per_s") for row, each in places])]
        for backend, style in BACKEND_STYLE.items():
            own = [place for place in places if place[1].notes["ours"]["point"].get("backend") == backend]
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
        x=Axis(f"environment steps/s (x: ours over theirs{shared})"),
        panels=panels,
        records=shown,
    )


def _row(record: Record) -> str:
    point = record.point
    agents = f" x {plural(int(point['n_agents']), 'agent')}" if int(point["n_agents"]) > 1 else " environments"
    how = [str(point[axis]) for axis in ("algorithm", "precision") if axis in point]
    peer = " ".join(str(point[axis]) for axis in ("peer", "variant") if axis in point)
    size = ", ".join([peer, *how, f"{point['n_envs']:,}{agents}"])
    return f"{size}: {ratio_text(rate_of(record, 'ours_over_peer'))} x{'*' * ('laps' in record.notes)}"


def _data_point(record: Record, row: int, name: str) -> DataPoint:
    assert record.metrics is not None
    rate = record.metrics[name]
    return DataPoint(rate.value, row, rate.low, rate.high, record.run_id)


CHARTS: Final[Sequence[MakeChart]] = (peers,)

"""Table and chart of peers and our code on the same work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from ...core.point import Figure
from ...core.record import Record
from ...judge.evidence import speed_of
from ..charts import GREY, Chart, DataPoint, Panel, Series, chart
from ..columns import TEXTS, Column, Table, axis_column, interval_column, metric_column, speed_up_text
from ..labels import (
    BACKEND_NAME,
    BACKEND_STYLE,
    SPREADS,
    USUAL,
    device_label,
    environment,
    means,
    plural,
    ratio_text,
    software,
)
from ..records import axes_except, by, derived, grouped, latest, point_order, rate_of

LAPS: Final = "theirs: a Python loop on shared cores; of each lap the fastest time counts"
"""Remark on a peer that is timed in laps."""
ANOTHER: Final = ": another "
"""Separator in ``counts`` before the kind of work, if it is not ours."""


def _ratio(found: Figure) -> str:
    return f"{ratio_text(found.value)} ({SPREADS[found.kind][0]}{ratio_text(found.low)} to {ratio_text(found.high)})"


def peers_table(records: Sequence[Record]) -> Table[Record]:
    """Return each peer variant's rate, ours, and their ratio.

    A column marks the fastest of a point's variants; remarks name disturbances.
    """
    variants = {record.point["variant"] for record in records if "variant" in record.point}
    best = {record.id for record in fastest_variants(records)}

    def work(record: Record) -> str:
        return " ".join(str(record.point[axis]) for axis in ("work", "algorithm", "precision") if axis in record.point)

    def axes(*names: str) -> list[Column[Record]]:
        return [axis_column(name, records) for name in names]

    def is_fastest(record: Record) -> str:
        return "yes" if record.id in best else "no"

    def remarks(record: Record) -> str:
        laps = [LAPS] if "laps" in record.notes else []
        return "; ".join([*record.notes.get("remarks", ()), *laps])

    def steps_per_launch(record: Record) -> str:
        if record.point["work"] != "simulate":
            return ""
        return "many" if _ours(record)[1] else "one"

    ways = [axis_column("variant", records), Column("fastest variant", is_fastest, is_choice=True)] if variants else []
    how = [Column("our steps per launch", steps_per_launch)] if "many" in map(steps_per_launch, records) else []
    said = [Column("remarks", remarks, is_long=True)] if any(map(remarks, records)) else []
    more = " Only the fastest variant of each peer counts (column: fastest variant)." if variants else ""
    axes_of_rows = ("env", "work", "algorithm", "n_agents", "n_envs", "precision", "peer", "variant")
    return Table(
        caption=TEXTS["peer"] + more,
        rows=sorted(records, key=point_order(axes_of_rows)),
        columns=[
            *(*axes("env"), Column("work", work), *axes("n_agents", "n_envs", "peer"), *ways),
            Column("version", lambda record: record.notes.get("version") or "unnamed"),
            Column("device", lambda record: device_label(record.threads)),
            Column("unit that counts as a step", lambda record: record.notes["counts"]),
            metric_column("env_steps_per_s", "peer, env steps/s"),
            metric_column("ours_env_steps_per_s", "ours, env steps/s"),
            *how,
            interval_column("ours_over_peer", "ours / peer (above 1: ours is faster)", _ratio),
            *said,
        ],
        n_grouping=4,
    )


def peer_learning_table(records: Sequence[Record]) -> Table[Record]:
    """Return when a peer and our code reached the threshold, by seed."""
    return _threshold_table("peer_learn", records, "seed")


def peer_solutions_table(records: Sequence[Record]) -> Table[Record]:
    """Return the time to a solution of a peer's process and of our command."""
    ratio = interval_column("ours_over_peer", "peer / ours (above 1: ours is faster)", _ratio)
    return _threshold_table("peer_solution", records, "caches", ratio)


def _threshold_table(name: str, records: Sequence[Record], last_axis: str, *more: Column[Record]) -> Table[Record]:
    """Return a table of training until a threshold.

    Args:
        name: Name of its texts.
        records: Records of peers.
        last_axis: Axis after those that all such tables have.
        more: Columns after those of the metrics.
    """
    axes = ("env", "algorithm", "threshold", "peer", "variant", "n_envs", last_axis)
    return Table(
        caption=TEXTS[name].format(means=means(records)),
        rows=sorted(records, key=point_order(axes)),
        columns=[
            *(axis_column(name, records) for name in axes),
            *(metric_column(name, header) for name, header in TEXTS["metrics"][name].items()),
            *more,
        ],
        n_grouping=6,
    )


def fastest_variants(records: Sequence[Record]) -> list[Record]:
    """Return the fastest variant of each peer at each point, by newest records.

    Records without a ratio, such as a search's of one start, do not count.
    """
    slowest_first = sorted(latest(each for each in records if rate_of(each, "ours_over_peer")), key=speed_of)
    frame = derived(slowest_first, point=lambda record: axes_except(record, "variant"))
    return list(frame.groupby("point", sort=False)["record"].last())


WORKS: Final = {"simulate": "random actions", "train": "training"}
MANY: Final = "many steps per launch"
HOLLOW: Final = {"markerfacecolor": "none"}
"""Style of ours that takes many steps per launch."""


def peers(records: Sequence[Record]) -> Chart:
    """Return the throughput of peers and our code, a row per point.

    Each peer is shown with its fastest variant. An asterisk marks Python loops timed in laps on shared cores.
    """
    shown = fastest_variants(records)
    shared = "; *: shared cores" if any("laps" in record.notes for record in shown) else ""
    order = by("algorithm", "n_agents", "n_envs", "precision", "peer")
    panels = []
    for (work, env), found in grouped(sorted(shown, key=order), "work", "env").items():
        places = list(enumerate(found))
        series = [
            Series(
                "other software",
                GREY,
                [p for row, each in places for p in DataPoint.in_row(each, "env_steps_per_s", row)],
            )
        ]
        for (backend, style), is_many in itertools.product(BACKEND_STYLE.items(), (False, True)):
            own = [place for place in places if _ours(place[1]) == (backend, is_many)]
            points = [p for row, each in own for p in DataPoint.in_row(each, "ours_env_steps_per_s", row)]
            name = ", ".join(["ours", BACKEND_NAME[backend], *([MANY] if is_many else [])])
            marks = style | {"linestyle": "none"} | (HOLLOW if is_many else {})
            series += [Series(name, marks, points)] if points else []
        panels.append(Panel(f"{environment(str(env))}, {WORKS[str(work)]}", series, list(map(_row, found))))
    return chart("peers", panels, shown, shared=shared)


def _ours(record: Record) -> tuple[str | None, bool]:
    """Return our backend beside a peer, and True if it took many steps per launch."""
    point = record.notes["ours"]["point"]
    return point.get("backend"), point.get("mode") == "fused"


def setting_label(record: Record) -> str:
    """Return a peer's setting: unusual options, else its variant's name."""
    words = []
    for name, value in (record.notes.get("options") or {}).items():
        if USUAL.get(name) == value:
            continue
        switch = name.removeprefix("is_").replace("_", " ")
        words.append(f"{name} {value}" if not isinstance(value, bool) else switch if value else f"not {switch}")
    return ", ".join(words) or str(record.point.get("variant", ""))


def another(record: Record) -> list[str]:
    """Return the kind of a peer's work if it is not ours, such as "another game"."""
    return [f"another {kind}" for kind in str(record.notes.get("counts", "")).split(ANOTHER)[1:]]


def _row(record: Record) -> str:
    point = record.point
    agents = f" x {plural(int(point['n_agents']), 'agent')}" if int(point["n_agents"]) > 1 else " environments"
    how = [str(point[axis]) for axis in ("algorithm", "precision") if axis in point]
    how += another(record)
    size = ", ".join([software(record), setting_label(record), *how, f"{point['n_envs']:,}{agents}"])
    return f"{size}: {speed_up_text(record)}{'*' * ('laps' in record.notes)}"

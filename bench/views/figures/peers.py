"""The figure of other people's software beside ours, measured in turns on the same work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bench.record import Record
from bench.views.figures.chart import BACKEND_STYLE, GREY, Chart, Dot, Panel, Series
from bench.views.figures.records import grouped, latest, rate_of
from bench.views.figures.words import BACKEND_NAME, MEDIANS, counted, environment, times

WORKS: Final = {"simulate": "random actions", "train": "training"}


def peers(records: Sequence[Record]) -> Chart:
    """Return the throughput of each peer and of ours, in a row for each point, with how many times as fast ours is."""
    shown = [record for record in latest(records) if rate_of(record, "ours_over_peer")]
    panels = []
    for (work, env), found in grouped(sorted(shown, key=_order), "work", "env").items():
        series = [Series("theirs", GREY, [_dot(each, row, "env_steps_per_s") for row, each in enumerate(found)])]
        for backend, look in BACKEND_STYLE.items():
            rows = [(row, each) for row, each in enumerate(found) if each.notes["ours"]["point"]["backend"] == backend]
            dots = [_dot(each, row, "ours_env_steps_per_s") for row, each in rows]
            series += [Series(f"ours, {BACKEND_NAME[backend]}", look | {"linestyle": "none"}, dots)] if dots else []
        panels.append(Panel(f"{environment(str(env))}, {WORKS[str(work)]}", series, list(map(_row, found))))
    return Chart(
        name="peers",
        title="Beside other people's software",
        explains=f"The same environment in the same sizes, in turns. {MEDIANS} x is how many times as fast ours is.",
        statistic="medians",
        kind="rows",
        xlabel="environment steps per second (x: ours over theirs)",
        panels=panels,
        records=shown,
    )


def _order(record: Record) -> tuple[Any, ...]:
    return tuple(record.point.get(axis, "") for axis in ("algorithm", "n_agents", "n_envs", "precision", "peer"))


def _row(record: Record) -> str:
    point = record.point
    agents = f" x {counted(int(point['n_agents']), 'agent')}" if int(point["n_agents"]) > 1 else " environments"
    how = [str(point[axis]) for axis in ("algorithm", "precision") if axis in point]
    size = ", ".join([str(point["peer"]), *how, f"{point['n_envs']:,}{agents}"])
    return f"{size}: {times(rate_of(record, 'ours_over_peer'))} x"


def _dot(record: Record, row: int, name: str) -> Dot:
    assert record.metrics is not None
    rate = record.metrics[name]
    return Dot(rate.value, row, rate.low, rate.high, record.run_id)

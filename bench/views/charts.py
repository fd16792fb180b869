"""The figures of the report: their numbers for the script of the page, and what stands around them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bench.record import Record
from bench.views.figures import Chart, Dot, commit_label, notes


def figure(machine: str, chart: Chart) -> dict[str, Any]:
    """Return what the template says of a figure, and under ``drawn`` the numbers that the page's script draws."""
    return {
        "id": f"{machine}-{chart.name}",
        "chart": chart,
        "runs": sorted({record.run_id for record in chart.records}),
        "commits": sorted({commit_label(record) for record in chart.records}),
        "notes": notes(chart.records),
        "commands": commands(chart.records),
        "drawn": drawn(chart),
    }


def looks(chart: Chart) -> dict[str, Mapping[str, Any]]:
    """Return how each series of a figure looks, by its name."""
    return {series.name: series.look for panel in chart.panels for series in panel.series}


def drawn(chart: Chart) -> dict[str, Any]:
    """Return a figure as JSON has it."""
    return {
        "kind": chart.kind,
        "x": {"log": chart.log_x},
        "y": {"log": chart.log_y},
        "looks": looks(chart),
        "panels": [
            {
                "title": panel.title,
                "ticks": panel.ticks,
                "level": panel.level,
                "x": panel.xlabel or chart.xlabel,
                "y": panel.ylabel or chart.ylabel,
                "right": panel.right,
                "series": [
                    {"name": series.name, "dots": [_dot(dot) for dot in series.dots]} for series in panel.series
                ],
            }
            for panel in chart.panels
        ],
    }


def _dot(dot: Dot) -> list[Any]:
    numbers = [float(f"{each:.6g}") for each in (dot.x, dot.y, dot.low, dot.high)]
    return [*numbers, dot.note, *([dot.label] if dot.label else [])]


def commands(records: Sequence[Record]) -> list[str]:
    """Return the commands that measure the points of a figure again."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for record in records:
        envs = found.setdefault((record.preset, record.case), {})
        if "env" in record.point:
            envs[str(record.point["env"])] = None
    return [shlex.join(_command(preset, case, sorted(envs))) for (preset, case), envs in sorted(found.items())]


def _command(preset: str, case: str, envs: Sequence[str]) -> list[str]:
    """Return the words of a command; what others' software does is no case of a sweep."""
    of_bench = ["peers", "--preset", preset] if case == "peer" else ["run", "--preset", preset, "--case", case]
    each = ("--where", "env={}") if case == "peer" else ("--env", "{}")
    return ["python", "-m", "bench", *of_bench, *(word.format(env) for env in envs for word in each)]

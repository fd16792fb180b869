"""`python -m bench list`: show the cases and the backends."""

from __future__ import annotations

import json
import sys

import typer

from warpdrive_min.processes import run
from warpdrive_min.terminal import echo

from .core.point import PresetName
from .show.labels import AXES
from .workloads.cases import CASES

ASK = """
import json
from warpdrive_min.backends import availability
print(json.dumps({name: str(state) for name, state in availability().items()}))
"""


def list_() -> None:
    """Show the cases with their axes, and the available backends."""
    echo("Each case is NAME (WHAT ITS POINTS TIME): description. A point is one measured combination of axis values.")
    echo("A line of an axis has the values of all points; not every combination of values is a point.")
    for axis, text in AXES.items():
        echo(f"  {axis}: {text}")
    for case in CASES.values():
        echo(f"{case.name} ({case.scope}): {case.title}")
        for preset in PresetName:
            echo(f"  {preset.value}: {len(case.points(preset.value))} points")
            for axis, values in case.axes(preset.value).items():
                echo(f"    {axis}: {', '.join(map(str, values))}")
    echo("backends")
    for name, state in availability().items():
        echo(f"  {name}: {state}")


def availability() -> dict[str, str]:
    """Return the backends' availability from a new process, because it needs torch."""
    done = run([sys.executable, "-c", ASK], stderr=None)
    if done.returncode:
        echo(f"backends: must answer in a process of their own (exit code {done.returncode}); see above", err=True)
        raise typer.Exit(1)
    states: dict[str, str] = json.loads(done.stdout)
    return states

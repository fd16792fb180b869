"""`python -m bench list`: the cases and the backends."""

from __future__ import annotations

from warpdrive_min.backends import availability
from warpdrive_min.terminal import echo

from .core.point import PresetName
from .workloads.cases import CASES


def list_() -> None:
    """Show the cases with their axes, and which backends can run here."""
    for case in CASES.values():
        echo(f"{case.name} ({case.scope}): {case.title}")
        for preset in PresetName:
            echo(f"  {preset.value}: {len(case.points(preset.value))} points")
            for axis, values in case.axes(preset.value).items():
                echo(f"    {axis}: {', '.join(map(str, values))}")
    echo("backends")
    for name, state in availability().items():
        echo(f"  {name}: {state}")

"""The command line: `python -m bench`."""

from __future__ import annotations

import typer

from warpdrive_min.backends import availability
from warpdrive_min.commands.strict import Strict

from . import documents, plots, sweep
from .calibrate import calibrate
from .cases import CASES
from .claims import claims
from .compare import compare
from .doctor import doctor
from .export import export
from .gate import GateCommand, gate
from .paper import paper
from .peers.command import peers
from .point import PresetName
from .publish import publish
from .report import report
from .reproduce import reproduce
from .selftest import selftest
from .static.command import static
from .static.model import static_model

app = typer.Typer(
    cls=Strict, help="Run, record, compare and plot benchmarks.", no_args_is_help=True, add_completion=False
)
app.command("claims")(claims)
app.command("paper")(paper)
app.command("table")(documents.table)
app.command("refresh")(documents.refresh)
app.command("compare")(compare)
app.command("calibrate")(calibrate)
app.command("gate", cls=GateCommand)(gate)
app.command("export")(export)
app.command("selftest", cls=GateCommand)(selftest)
app.command("reproduce", cls=GateCommand)(reproduce)
app.command("doctor")(doctor)
app.command("peers")(peers)
app.command("publish")(publish)
app.command("run")(sweep.command)
app.command("static")(static)
app.command("static-model")(static_model)
app.command("plot")(plots.plot)
app.command("report")(report)


@app.command("list")
def list_() -> None:
    """Show the cases with their axes, and which backends can run here."""
    for case in CASES.values():
        sweep.say(f"{case.name} ({case.scope}): {case.title}")
        for preset in PresetName:
            sweep.say(f"  {preset.value}: {len(case.points(preset.value))} points")
            for axis, values in case.axes(preset.value).items():
                sweep.say(f"    {axis}: {', '.join(map(str, values))}")
    sweep.say("backends")
    for name, state in availability().items():
        sweep.say(f"  {name}: {state}")

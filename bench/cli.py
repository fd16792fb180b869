"""The command line: `python -m bench`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final

import typer

from warpdrive_min.backends import availability
from warpdrive_min.commands.strict import Strict
from warpdrive_min.errors import WriteError
from warpdrive_min.files import FULL
from warpdrive_min.terminal import echo

from . import options, sweep
from .claims import claims
from .core import record
from .core.errors import FileError
from .core.point import PresetName
from .doctor import doctor
from .export import export
from .judge.calibrate import calibrate
from .judge.compare import compare
from .judge.gate import GateCommand, gate
from .judge.reproduce import reproduce
from .paper import paper
from .peers.command import peers
from .publish import publish
from .report import report
from .show import documents, plots
from .static.command import static
from .workloads.cases import CASES

BROKEN: Final = ("calibrate", "compare", "gate", "reproduce", "static")
"""Commands that exit with 5 where a file cannot be read or written; others exit with 1."""


class Commands(Strict):
    """Commands whose errors about files, standard output among them, are one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        record.TOLD.clear()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (FileError, WriteError) as error:
            why: Exception = error
        except OSError as error:
            if error.errno not in FULL:
                raise
            why = error
            with suppress(OSError):  # what is left in its buffer cannot be written at the exit either
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            return result
        text = str(why) if isinstance(why, FileError | WriteError) else f"standard output or a temporary file: {why}"
        echo(text, err=True)
        raise typer.Exit(5 if ctx.invoked_subcommand in BROKEN else 1) from why


app = typer.Typer(
    cls=Commands, help="Run, record, compare and plot benchmarks.", no_args_is_help=True, add_completion=False
)
app.command("claims")(claims)
app.command("paper")(paper)
app.command("table")(documents.table)
app.command("refresh")(documents.refresh)
app.command("compare")(compare)
app.command("calibrate")(calibrate)
app.command("gate", cls=GateCommand)(gate)
app.command("export")(export)
app.command("reproduce", cls=GateCommand)(reproduce)
app.command("doctor")(doctor)
app.command("peers")(peers)
app.command("publish")(publish)
app.command("run")(sweep.command)
app.command("static")(static)
app.command("plot")(plots.plot)
app.command("report")(report)


@app.command("list")
def list_() -> None:
    """Show the cases with their axes, and which backends can run here."""
    for case in CASES.values():
        options.say(f"{case.name} ({case.scope}): {case.title}")
        for preset in PresetName:
            options.say(f"  {preset.value}: {len(case.points(preset.value))} points")
            for axis, values in case.axes(preset.value).items():
                options.say(f"    {axis}: {', '.join(map(str, values))}")
    options.say("backends")
    for name, state in availability().items():
        options.say(f"  {name}: {state}")

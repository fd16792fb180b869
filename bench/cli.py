"""The command line: `python -m bench`; commands are imported when they run."""

from __future__ import annotations

from typing import Any, ClassVar

import typer

from warpdrive_min.commands.table import Row, TableGroup
from warpdrive_min.terminal import echo

from .core.errors import CompareError, FileError, ShowError, WorkerError


class Commands(TableGroup):
    """Commands that turn errors of users and files into one line and an exit code."""

    rows: ClassVar = {
        "claims": Row(f"{__package__}.judge.published.command:claims"),
        "paper": Row(f"{__package__}.paper:paper"),
        "table": Row(f"{__package__}.show.documents:table"),
        "refresh": Row(f"{__package__}.show.documents:refresh"),
        "compare": Row(f"{__package__}.judge.compare:compare", file_error=5),
        "calibrate": Row(f"{__package__}.judge.calibrate:calibrate", file_error=5),
        "gate": Row(f"{__package__}.judge.gate:gate", file_error=5, usage_error=5),
        "export": Row(f"{__package__}.export:export"),
        "reproduce": Row(f"{__package__}.judge.reproduce:reproduce", file_error=5, usage_error=5),
        "doctor": Row(f"{__package__}.doctor:doctor"),
        "peers": Row(f"{__package__}.peers.command:peers"),
        "publish": Row(f"{__package__}.publish:publish"),
        "run": Row(f"{__package__}.sweep:command"),
        "static": Row(f"{__package__}.static.command:static", file_error=5),
        "plot": Row(f"{__package__}.show.plots:plot"),
        "board": Row(f"{__package__}.board:board"),
        "report": Row(f"{__package__}.report:report"),
        "learning": Row(f"{__package__}.judge.learning:learning"),
        "list": Row(f"{__package__}.list:list_"),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        from .core.record import REPORTED  # noqa: PLC0415  (`--help` needs no records)

        REPORTED.clear()
        try:
            return super().invoke(ctx)
        except (FileError, ShowError, CompareError, WorkerError) as error:
            echo(str(error), err=True)
            raise typer.Exit(getattr(error, "code", self.rows[ctx.invoked_subcommand].file_error)) from error


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Run, record, compare and plot benchmarks."""

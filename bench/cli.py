"""The command line: `python -m bench`; commands are imported when they run."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperCommand

from warpdrive_min.commands.strict import Strict, refuse_empty
from warpdrive_min.errors import WriteError
from warpdrive_min.files import FULL
from warpdrive_min.terminal import echo

from .core.errors import FileError

# Typer brings its own click or needs click, by its release; this is the UsageError of the one in use.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


@dataclass(frozen=True, slots=True)
class Row:
    """A command."""

    function: str
    """Its module and function."""
    help: str
    """First paragraph of the function's docstring."""
    file_error: int = 1
    """Exit code where a file cannot be read or written."""
    usage_error: int = 2
    """Exit code of wrong usage."""


ROWS: Final = {
    "claims": Row(
        "judge.claims:claims", "Compare every claim about speed and learning, WarpDrive's and our own, with records."
    ),
    "paper": Row(
        "paper:paper", "Write figures, LaTeX tables, the method and a manifest for a paper; measures nothing."
    ),
    "table": Row("show.documents:table", "Print the records of each case as a Markdown table, for documents."),
    "refresh": Row(
        "show.documents:refresh",
        "Update the tables of documents: run the `python -m bench table ...` command above each.",
    ),
    "compare": Row(
        "judge.compare:compare",
        "Measure two sides in turns, or read two files of records, and say which is faster.",
        file_error=5,
    ),
    "calibrate": Row(
        "judge.calibrate:calibrate", "Compare the present code with itself and store the noise.", file_error=5
    ),
    "gate": Row(
        "judge.gate:gate",
        "Fail if something is slower than a baseline, or with --static if the machine code of kernels is worse.",
        file_error=5,
        usage_error=5,
    ),
    "export": Row(
        "export:export", "Write records for ASV, github-action-benchmark or Bencher, as times or costs: less is better."
    ),
    "reproduce": Row(
        "judge.reproduce:reproduce",
        "Measure the points of a run again; exits with 0 reproduced, 1 not, 2 other hardware, 3 no such run, 5 broken.",
        file_error=5,
        usage_error=5,
    ),
    "doctor": Row(
        "doctor:doctor",
        "Report what this machine can measure, and what to do about problems; exits with 1 if there is one.",
    ),
    "peers": Row(
        "peers.command:peers",
        "Measure other software in turns with ours, on the same work; exits with 1 if a point failed.",
    ),
    "publish": Row(
        "publish:publish",
        "Make or continue the set of this commit on this kind of machine: records, figures, tables, manifest.",
    ),
    "run": Row(
        "sweep:command",
        "Check, measure and record every point, and show a table; exits with 1 if one failed, with 3 if there is none.",
    ),
    "static": Row(
        "static.command:static",
        "Compile every kernel as it would be launched, read its machine code, record it, and show a table.",
        file_error=5,
    ),
    "plot": Row("show.plots:plot", "Draw the figures of each machine from its records; measures nothing."),
    "report": Row(
        "report:report",
        "Write one self-contained HTML page of claims, tables and interactive figures from records; measures nothing.",
    ),
    "list": Row("list:list_", "Show the cases with their axes, and which backends can run here."),
}
"""The commands by name, in the order of `--help`."""


def import_function(name: str) -> Callable[..., None]:
    """Import and return the function of a command."""
    module, _, function = ROWS[name].function.partition(":")
    imported: Callable[..., None] = getattr(importlib.import_module(f".{module}", __package__), function)
    return imported


class Command(TyperCommand):
    """A command that is imported when it runs."""

    def imported(self) -> Any:
        """Return the command with its options."""
        command = typer.Typer(add_completion=False)
        command.command(self.name)(import_function(str(self.name)))
        imported = typer.main.get_command(command)
        refuse_empty(imported)
        return imported

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Import the command and parse its arguments."""
        try:
            return self.imported().make_context(*args, **options)
        except UsageError as error:
            vars(error)["exit_code"] = ROWS[str(self.name)].usage_error
            raise


class Commands(Strict):
    """Commands that turn file errors into one line and an exit code."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": {name: Command(name, help=row.help) for name, row in ROWS.items()}})

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        from .core.record import TOLD  # noqa: PLC0415  (`--help` needs no records)

        TOLD.clear()
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
        raise typer.Exit(ROWS[ctx.invoked_subcommand].file_error) from why


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Run, record, compare and plot benchmarks."""

"""The command line: `python -m bench`; commands are imported when they run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand

from warpdrive_min.commands.strict import Strict, refuse_empty
from warpdrive_min.errors import WriteError
from warpdrive_min.terminal import echo

from .core.errors import FileError

# Depending on its release Typer brings its own click or needs click; this is the UsageError of the one in use.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


@dataclass(frozen=True, slots=True)
class Row:
    """Command with its exit codes."""

    function: str
    """Module and function of the command."""
    file_error: int = 1
    """Exit code if a file cannot be read or written."""
    usage_error: int = 2
    """Exit code of incorrect usage."""

    def help(self) -> str:
        """Return the first paragraph of the docstring, without importing the module."""
        module, _, function = self.function.partition(":")
        source = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        docstring = re.search(rf'^def {function}\(.*?"""(.*?)("""|\n\n)', source, re.MULTILINE | re.DOTALL)
        return " ".join(docstring[1].split()) if docstring else ""


ROWS: Final = {
    "claims": Row("claims:claims"),
    "paper": Row("paper:paper"),
    "table": Row("show.documents:table"),
    "refresh": Row("show.documents:refresh"),
    "compare": Row("judge.compare:compare", file_error=5),
    "calibrate": Row("judge.calibrate:calibrate", file_error=5),
    "gate": Row("judge.gate:gate", file_error=5, usage_error=5),
    "export": Row("export:export"),
    "reproduce": Row("judge.reproduce:reproduce", file_error=5, usage_error=5),
    "doctor": Row("doctor:doctor"),
    "peers": Row("peers.command:peers"),
    "publish": Row("publish:publish"),
    "run": Row("sweep:command"),
    "static": Row("static.command:static", file_error=5),
    "plot": Row("show.plots:plot"),
    "report": Row("report:report"),
    "list": Row("list:list_"),
}
"""Commands by name, in the order of `--help`."""


def import_function(name: str) -> Callable[..., None]:
    """Import and return the function of a command."""
    module, _, function = ROWS[name].function.partition(":")
    imported: Callable[..., None] = getattr(importlib.import_module(f".{module}", __package__), function)
    return imported


class Command(TyperCommand):
    """Command that is imported when it runs."""

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

    exit_codes: ClassVar = {name: row.file_error for name, row in ROWS.items()}

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": {name: Command(name, help=row.help()) for name, row in ROWS.items()}})

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        from .core.record import REPORTED  # noqa: PLC0415  (`--help` needs no records)

        REPORTED.clear()
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if ctx.invoked_subcommand in ROWS:
                vars(error)["exit_code"] = ROWS[ctx.invoked_subcommand].usage_error
            raise
        except (FileError, WriteError) as error:
            echo(str(error), err=True)
            raise typer.Exit(ROWS[ctx.invoked_subcommand].file_error) from error


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Run, record, compare and plot benchmarks."""

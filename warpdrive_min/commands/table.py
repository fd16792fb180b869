"""Commands that are imported when they run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from warpdrive_min.commands.strict import Strict, check_values


@dataclass(frozen=True, slots=True)
class Row:
    """Command with its exit codes."""

    function: str
    """Module and function of the command, as ``module:function``."""
    file_error: int = 1
    """Exit code if a file cannot be read or written."""
    usage_error: int = 2
    """Exit code of incorrect usage."""

    def help(self) -> str:
        """Return the first paragraph of the docstring, without importing the module."""
        module, _, function = self.function.partition(":")
        package, _, name = module.rpartition(".")
        (folder,) = find_spec(package).submodule_search_locations  # type: ignore[union-attr, misc]
        source = Path(folder, name).with_suffix(".py").read_text(encoding="utf-8")
        docstring = re.search(rf'^def {function}\(.*?"""(.*?)("""|\n\n)', source, re.MULTILINE | re.DOTALL)
        return " ".join(docstring[1].split()) if docstring else ""

    def imported(self) -> Callable[..., None]:
        """Import and return the function."""
        module, _, function = self.function.partition(":")
        command: Callable[..., None] = getattr(importlib.import_module(module), function)
        return command


class Command(TyperCommand):
    """Command of a table; `row` is set by its group."""

    row: Row

    def imported(self) -> Any:
        """Return the command with its options."""
        command = typer.Typer(add_completion=False)
        command.command(self.name)(self.row.imported())
        imported = typer.main.get_command(command)
        check_values(imported)
        return imported

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Import the command and parse its arguments."""
        return self.imported().make_context(*args, **options)


class TableGroup(Strict):
    """Group of the commands in `rows`."""

    rows: ClassVar[Mapping[str, Row]] = {}
    """Commands by name, in the order of `--help`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.exit_codes = {name: row.file_error for name, row in cls.rows.items()}
        cls.usage_codes = {name: row.usage_error for name, row in cls.rows.items()}

    def __init__(self, **given: Any) -> None:
        commands = {name: Command(name, help=row.help()) for name, row in self.rows.items()}
        for name, row in self.rows.items():
            commands[name].row = row
        super().__init__(**{**given, "commands": commands})

"""Command groups that report bad input and unwritable output in one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from warpdrive_min.terminal import output_required


class Strict(TyperGroup):
    """Group of commands that rejects empty values and reports broken output.

    Broken output is a full or closed standard output.
    """

    exit_codes: ClassVar[Mapping[str, int]] = {}
    """Exit codes by command, for unreadable input or unwritable output; default 1."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in self.commands.values():
            refuse_empty(command)

    @classmethod
    def exit_code(cls, words: Sequence[str]) -> int:
        """Return the exit code in `exit_codes` for a command line."""
        return cls.exit_codes.get(words[0], 1) if words else 1

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run the command of a command line."""
        words = sys.argv[1:] if args is None else [*args]
        with output_required(self.exit_code(words)):
            return super().main(words, *more, **options)


def refuse_empty(command: Any) -> None:
    """Make an empty argument or option of a command a usage error."""
    for parameter in command.params:
        _refuse_empty(parameter)


def _refuse_empty(parameter: Any) -> None:
    process = parameter.process_value

    def checked(context: Any, value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, str) and not each.strip() for each in values):
            raise typer.BadParameter("must not be empty; name it, or leave it out", ctx=context, param=parameter)
        return process(context, value)

    parameter.process_value = checked

"""Command lines that refuse an empty value, which would stand for the current folder or for everything."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class Strict(TyperGroup):
    """Group of commands; an argument or option of any of them that is empty is a usage error."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in self.commands.values():
            refuse_empty(command)


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

"""Command groups that report bad input and unwritable output in one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup

from warpdrive_min.errors import shortened
from warpdrive_min.terminal import echo, output_required

# Depending on its release Typer brings its own click or needs click; this is the UsageError of the one in use.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


class Strict(TyperGroup):
    """Group of commands that rejects empty values and reports broken output.

    Broken output is a full or closed standard output. Incorrect usage is reported in one line.
    """

    exit_codes: ClassVar[Mapping[str, int]] = {}
    """Exit codes by command, for unreadable input or unwritable output; default 1."""
    usage_codes: ClassVar[Mapping[str, int]] = {}
    """Exit codes by command, for incorrect usage; default 2."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in self.commands.values():
            check_values(command)

    @classmethod
    def exit_code(cls, words: Sequence[str]) -> int:
        """Return the exit code in `exit_codes` for a command line."""
        return cls.exit_codes.get(words[0], 1) if words else 1

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run the command of a command line."""
        words = sys.argv[1:] if args is None else [*args]
        with output_required(self.exit_code(words)):
            return super().main(words, *more, **options)

    def make_context(self, info_name: str | None, *args: Any, **options: Any) -> Any:
        """Parse the options before a command."""
        try:
            return super().make_context(info_name, *args, **options)
        except UsageError as error:
            raise _reported(error, info_name or "", 2) from error

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            name = ctx.invoked_subcommand or ""
            raise _reported(error, f"{ctx.command_path} {name}".rstrip(), self.usage_codes.get(name, 2)) from error


def _reported(error: Any, command: str, exit_code: int) -> Exception:
    """Print an error of usage in one line; return what to raise."""
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
        same: Exception = error
        return same
    command = error.ctx.command_path if error.ctx else command
    message = " ".join(error.format_message().split()).removesuffix(".")
    echo(f"{command}: {message}; see `{command} --help`", err=True)
    return typer.Exit(exit_code)


def check_values(command: Any) -> None:
    """Refuse empty arguments and options of a command, and name each wrong value."""
    for parameter in command.params:
        _check(parameter)


def _check(parameter: Any) -> None:
    process = parameter.process_value

    def checked(context: Any, value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, str) and not each.strip() for each in values):
            raise typer.BadParameter("must not be empty; name it, or leave it out", ctx=context, param=parameter)
        try:
            return process(context, value)
        except typer.BadParameter as error:
            error.message = _with_rule_and_value(error.message, value)
            raise

    parameter.process_value = checked


def _with_rule_and_value(message: str, value: Any) -> str:
    """Return a parser's message as a rule and the value that breaks it."""
    rule = re.sub(r"^Value error, '.*?' is not one of (.*?)\.?$", r"must be one of \1", message, flags=re.DOTALL)
    rule = rule.replace("Input should be", "must be").removesuffix(", unable to parse string as an integer")
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return rule if rule == message else f"{rule} (got {shortened(shown)})"

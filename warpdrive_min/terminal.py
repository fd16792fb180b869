"""Terminal output of all commands, with unprintable characters escaped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TextIO

import rich.console
import typer
from rich.console import ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from warpdrive_min.errors import WriteError, printable


class OutputError(OSError):
    """Standard output is not writable; no number if a pipe's reader ended."""


def echo(text: object, err: bool = False) -> None:
    """Print text on standard output or standard error.

    Raises:
        OutputError: Standard output cannot be written.
    """
    with nullcontext() if err else _as_output_error():
        typer.echo(printable(str(text)), err=err)


@contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise OutputError("the reader has ended") from error  # with its number, typer would exit with 1
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from error


@contextmanager
def output_required(exit_code: int) -> Iterator[None]:
    """End a command with a message if output cannot be written.

    Raises:
        SystemExit: Standard output is closed, which is checked first, or a write failed.
    """
    output = sys.stdout
    if output is None:
        raise SystemExit(
            _print_error("standard output: must not be closed; redirect it to a file or to /dev/null", exit_code)
        )
    try:
        try:
            yield
        finally:
            with _as_output_error():
                output.flush()
    except OSError as error:
        _discard(output)
        if isinstance(error, OutputError):
            text = f"standard output: must be writable (got {error.strerror}); redirect it to another place"
        else:
            text = error_line(error)
        is_reader_gone = isinstance(error, OutputError) and error.errno is None
        raise SystemExit(exit_code if is_reader_gone else _print_error(text, exit_code)) from error


def error_line(error: Exception) -> str:
    """Return an error's message, with the file name of system errors."""
    if not isinstance(error, OSError) or isinstance(error, WriteError):
        return str(error)
    if error.filename is None:
        return f"standard output or a temporary file: {error}" if error.errno else str(error)
    return f"{error.filename}: cannot be read or written ({error.strerror}); name another path"


def _print_error(text: str, exit_code: int) -> int:
    """Print a line on standard error, if possible; return the exit code."""
    try:
        echo(text, err=True)
    except OSError:
        _discard(sys.stderr)
    return exit_code


def _discard(stream: TextIO) -> None:
    """Discard a stream's buffer, which could not be written at exit either."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Console(rich.console.Console, RenderHook):
    """Console without markup, emoji names or highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        self.push_render_hook(self)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Escape unprintable characters in all printed text."""
        return [_Printable(each) for each in renderables]

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does; raise `OutputError` for standard output."""
        with nullcontext() if self.stderr else _as_output_error():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Raise the error instead of exiting with 1."""
        raise BrokenPipeError

    def say(self, text: str) -> None:
        """Print text without breaking its lines."""
        self.print(text, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Printable:
    """Renderable whose text is escaped; rich's colours and cursor movements stay."""

    content: ConsoleRenderable

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.content, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

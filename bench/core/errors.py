"""Errors of commands, with their exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import typer

from warpdrive_min.terminal import echo


class Skip(Exception):  # noqa: N818  (not a failure)
    """A point cannot run on this machine; the message says why and what to install."""


class CompareError(ValueError):
    """A point is wrong or breaks, or a command is used wrongly."""

    code: ClassVar[int] = 5
    """Exit code of the command."""


class NothingMeasured(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """No point is left to compare."""

    code = 3


class NotComparable(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """A side is missing, or the two differ in a field that decides a figure."""

    code = 4


class FileError(ValueError):
    """A file, or a line of it, has the wrong content; names the place."""


class ShowError(ValueError):
    """Records cannot be shown as a figure, page, document or other tool's file."""


@contextmanager
def exiting(code: int, *kinds: type[Exception], to_stderr: bool = False) -> Iterator[None]:
    """Print errors of these kinds and exit with their code, or the default."""
    try:
        yield
    except kinds as error:
        echo(str(error), err=to_stderr)
        raise typer.Exit(getattr(error, "code", code)) from error

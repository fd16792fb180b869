"""Errors of what should be compared and cannot be, each with the exit code that says so, and the exit of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


class CompareError(ValueError):
    """Two sides cannot be compared; ``code`` is the exit code of the command."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NothingMeasured(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """No point is left to compare."""

    def __init__(self, message: str) -> None:
        super().__init__(3, message)


class NotComparable(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """A side is missing, or the two differ in a field that decides a figure."""

    def __init__(self, message: str) -> None:
        super().__init__(4, message)


class PointFailed(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """A point is wrong or breaks."""

    def __init__(self, message: str) -> None:
        super().__init__(5, message)


@contextmanager
def exiting(code: int, *kinds: type[Exception], to_stderr: bool = False) -> Iterator[None]:
    """Print an error of these kinds and exit with its own code, else with the one that is given."""
    try:
        yield
    except kinds as error:
        typer.echo(str(error), err=to_stderr)
        raise typer.Exit(getattr(error, "code", code)) from error

"""Exit codes, and the errors that end a command with one."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Skip(Exception):  # noqa: N818  (not a failure)
    """Reason why a point cannot run on this machine, and what to install."""


class Code(IntEnum):
    """Exit codes of all commands; scripts may rely on them."""

    OK = 0
    REGRESSION = 1
    FAILED = 1
    """A point, a file or a figure is wrong."""
    INCONCLUSIVE = 2
    NOTHING = 3
    """Nothing was measured, or the set of points changed."""
    NOT_COMPARABLE = 4
    UNFINISHED = 4
    BROKEN = 5


class CompareError(ValueError):
    """A point is wrong or fails, or a command is used incorrectly."""

    code: ClassVar[Code] = Code.BROKEN
    """Exit code of the command."""


class NothingMeasured(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """No point is left to compare."""

    code = Code.NOTHING


class NotComparable(CompareError):  # noqa: N818  (an outcome, not a mistake)
    """A side is missing, or the two differ in a field that must match."""

    code = Code.NOT_COMPARABLE


class FileError(ValueError):
    """A file or a line has wrong content; names the place."""


class ShowError(ValueError):
    """Records cannot be shown or exported."""


class WorkerError(RuntimeError):
    """Failed request; ``kind`` names the process's exception, or is "Died"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message if kind in ("Skip", "Died") else f"{kind}: {message}")
        self.kind, self.message = kind, message

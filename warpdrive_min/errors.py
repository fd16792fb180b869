"""The errors of the project, one class for each border at which something can be wrong."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable
from typing import Any, Final, Self

from warpdrive_min.text import printable, shortened

MAX_SHOWN: Final = 1_000
"""Longest value that an error shows, characters."""


class WarpDriveError(Exception):
    """Base of every error that the project raises on purpose; one of a broken rule keeps its parts."""

    what: str = ""
    """Thing that breaks a rule: a setting or argument, with the names around it and dots."""
    rule: str = ""
    """Rule, as the end of a sentence that ``what`` begins: "must be at least 1"."""
    got: Any = ...
    """Value that broke it; ``...``: none to show."""
    do: str = ""
    """Advice; "": none."""

    @classmethod
    def of(cls, what: str, rule: str, got: Any = ..., do: str = "", who: str = "") -> Self:
        """Make the error of a broken rule: ``who what: rule (got value); what to do``."""
        shown = "" if got is ... else f" (got {_shown(got)})"
        error = cls(f"{who} {what}".strip() + f": {rule}{shown}" + (f"; {do}" if do else ""))
        error.what, error.rule, error.got, error.do = what, rule, got, do
        return error

    def __str__(self) -> str:
        return printable(super().__str__())  # logs and warnings print it too


def _shown(got: Any) -> str:
    """Return a value in one line of limited length; Python writes out neither long integers nor deep lists."""
    try:
        text = repr(got) if isinstance(got, str) else re.sub(r"\s*\n\s*", " ", str(got))
    except (ValueError, RecursionError):
        text = f"a value of type {type(got).__name__} that is too long to show"
    return shortened(text, MAX_SHOWN)


class ConfigError(WarpDriveError, ValueError):
    """A setting breaks a rule."""


class DataError(WarpDriveError, ValueError):
    """An array, scalar or name given to a feed or a data manager breaks a rule."""


class BindingError(WarpDriveError, TypeError):
    """A kernel's parameter and the data that should be bound to it disagree."""


class TypeMismatch(BindingError):  # noqa: N818  (of kernels with a thread for each agent it is a warning)
    """The data that should be bound to a parameter are of another type than it declares, and could be passed."""


class BackendUnavailable(WarpDriveError, RuntimeError):  # noqa: N818  (a state, not a mistake)
    """A backend is unknown or cannot run on this machine."""


class CompileError(WarpDriveError, RuntimeError):
    """A kernel source does not compile; the message ends with what the compiler said."""


class KernelError(WarpDriveError, RuntimeError):
    """A kernel cannot end: its threads wait for each other, or what it asserts does not hold (on `host`)."""


class DeviceMemoryError(WarpDriveError, MemoryError):
    """The device has too little free memory for what was asked."""


class ActionError(WarpDriveError, ValueError):
    """An action lies outside its space (checked in debug mode)."""


class TrainingError(WarpDriveError, ArithmeticError):
    """Training went wrong: a number is not finite, or explodes."""


class CheckpointError(WarpDriveError, ValueError):
    """A checkpoint is missing, damaged, of another release, or of another run."""


class CertificateError(WarpDriveError, ValueError):
    """A certificate is missing, damaged, of another release, or of a run that cannot be replayed."""


class WriteError(WarpDriveError, OSError):
    """A file or folder cannot be written."""


class DiskFullError(WriteError):
    """A disk has too little free space for a file, or the file is longer than allowed."""


def known(names: Iterable[str]) -> str:
    """List the known names, for errors about an unknown one."""
    return ", ".join(sorted(names)) or "none"


def meant(name: str, names: Iterable[str]) -> str:
    """Ask, for errors about an unknown name, whether the nearest known one was meant; "": none is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]}?" if near else ""


def whole(
    what: str, value: Any, low: int = 1, high: int = 2**31 - 1, do: str = "", error: type[WarpDriveError] = ConfigError
) -> int:
    """Return an integer argument, of Python or NumPy; raise an error unless it lies within bounds. True is none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise error.of(what, "must be an integer", value, do)
    require(number >= low, what, f"must be at least {low}", number, do, error)
    require(number <= high, what, f"must be at most {high}", number, do, error)
    return number


def of_type(what: str, value: Any, kind: type, do: str = "", error: type[WarpDriveError] = ConfigError) -> Any:
    """Return an argument; raise an error unless it is of a type. A `bool` may be NumPy's."""
    if kind is bool and type(value).__module__ == "numpy" and value.dtype.kind == "b" and value.ndim == 0:
        value = bool(value)
    if not isinstance(value, kind):
        raise error.of(what, f"must be a {kind.__name__}", value, do)
    return value


def require(
    holds: object, what: str, rule: str, got: Any = ..., do: str = "", error: type[WarpDriveError] = ConfigError
) -> None:
    """Raise an error, by default a `ConfigError`, unless a rule holds; the other arguments are its parts."""
    if not holds:
        raise error.of(what, rule, got, do)

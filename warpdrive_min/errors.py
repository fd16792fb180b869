"""The errors of the project, one class for each border at which something can be wrong."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Self, TypeVar, cast

Value = TypeVar("Value")

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


# ------------------------------------------------------------------ text from elsewhere, made safe to show

UNUSUAL: Final = re.compile(r"[^\n\t -~]")
"""Characters that may not be printable."""


def printable(text: str) -> str:
    """Escape characters that are not printable, as `repr` does; line breaks and tabs stay.

    Terminal escapes, characters that XML forbids, lone surrogates and marks of text direction are not printable.
    """
    return UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), text)


def shortened(text: str, most: int = 200) -> str:
    """Return the first characters of a text, with three dots where more follow."""
    return text if len(text) <= most else f"{text[:most]}..."


def one_line(text: str) -> str:
    """Escape line breaks and tabs too: what enters a line must not begin another one."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def in_lines(value: Value) -> Value:
    """Apply `one_line` to all texts in lists, tuples, dicts and dataclasses."""
    found: Any = value
    if isinstance(found, str):
        found = one_line(found)
    elif isinstance(found, list | tuple):
        found = type(found)(map(in_lines, found))
    elif isinstance(found, dict):
        found = {in_lines(key): in_lines(each) for key, each in found.items()}
    elif is_dataclass(found) and not isinstance(found, type):
        found = replace(found, **{each.name: in_lines(getattr(found, each.name)) for each in fields(found)})
    return cast("Value", found)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()

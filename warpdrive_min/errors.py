"""Error classes, one for each kind of input or resource."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Self, TypeVar, cast

Value = TypeVar("Value")

MAX_SHOWN: Final = 1_000
"""Longest value shown in an error, characters."""


class WarpDriveError(Exception):
    """Base of the project's errors; broken rules keep their parts."""

    what: str = ""
    """Setting or argument that breaks a rule, with dots after enclosing names."""
    rule: str = ""
    """Rule that follows ``what``: "must be at least 1"."""
    got: Any = ...
    """Value that broke the rule; ``...``: no value."""
    do: str = ""
    """Advice, or ""."""

    @classmethod
    def of(cls, what: str, rule: str, got: Any = ..., do: str = "", who: str = "") -> Self:
        """Build the error ``who what: rule (got value); what to do``."""
        shown = "" if got is ... else f" (got {_shown(got)})"
        error = cls(f"{who} {what}".strip() + f": {rule}{shown}" + (f"; {do}" if do else ""))
        error.what, error.rule, error.got, error.do = what, rule, got, do
        return error

    def __str__(self) -> str:
        return printable(super().__str__())  # logs and warnings print it too


def _shown(got: Any) -> str:
    """Format a value as one line of limited length.

    Python formats neither very long integers nor deeply nested lists.
    """
    try:
        text = repr(got) if isinstance(got, str) else re.sub(r"\s*\n\s*", " ", str(got))
    except (ValueError, RecursionError):
        text = f"a value of type {type(got).__name__} that is too long to show"
    return shortened(text, MAX_SHOWN)


class ConfigError(WarpDriveError, ValueError):
    """A setting breaks a rule."""


class DataError(WarpDriveError, ValueError):
    """Data or a name given to a feed or data manager breaks a rule."""


class BindingError(WarpDriveError, TypeError):
    """A kernel parameter and its data disagree."""


class TypeMismatch(BindingError):  # noqa: N818  (of kernels with a thread for each agent it is a warning)
    """A parameter's data differ from its declared type, but could be passed."""


class BackendUnavailable(WarpDriveError, RuntimeError):  # noqa: N818  (a state, not a mistake)
    """A backend is unknown or cannot run on this machine."""


class CompileError(WarpDriveError, RuntimeError):
    """A kernel source does not compile; the message ends with the compiler's."""


class KernelError(WarpDriveError, RuntimeError):
    """A kernel deadlocks, or one of its assertions fails (on `host`)."""


class DeviceMemoryError(WarpDriveError, MemoryError):
    """The device has too little free memory."""


class ActionError(WarpDriveError, ValueError):
    """An action lies outside its space (checked with ``debug``)."""


class TrainingError(WarpDriveError, ArithmeticError):
    """Training failed: a number is not finite, or explodes."""


class CheckpointError(WarpDriveError, ValueError):
    """A checkpoint is missing, damaged, or of another release or run."""


class CertificateError(WarpDriveError, ValueError):
    """A certificate is missing, damaged, of another release, or not replayable."""


class WriteError(WarpDriveError, OSError):
    """A file or folder cannot be written."""


class DiskFullError(WriteError):
    """A disk is full, or a file exceeds its size limit."""


def known(names: Iterable[str]) -> str:
    """List known names, for errors about an unknown one."""
    return ", ".join(sorted(names)) or "none"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the closest known name for an unknown one, or ""."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {near[0]}?" if near else ""


def near_or_known(name: str, names: Iterable[str]) -> str:
    """Suggest the closest known name for an unknown one, and list all."""
    return f"{did_you_mean(name, names)} known are {known(names)}".lstrip()


def require_int(
    what: str, value: Any, low: int = 1, high: int = 2**31 - 1, do: str = "", error: type[WarpDriveError] = ConfigError
) -> int:
    """Return an integer argument; raise an error unless within bounds.

    NumPy's integers are accepted; a bool is not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise error.of(what, "must be an integer", value, do)
    require(number >= low, what, f"must be at least {low}", number, do, error)
    require(number <= high, what, f"must be at most {high}", number, do, error)
    return number


def require_type(what: str, value: Any, kind: type, do: str = "", error: type[WarpDriveError] = ConfigError) -> Any:
    """Return an argument; raise an error if its type differs.

    A `bool` may be NumPy's.
    """
    if kind is bool and type(value).__module__ == "numpy" and value.dtype.kind == "b" and value.ndim == 0:
        value = bool(value)
    if not isinstance(value, kind):
        raise error.of(what, f"must be a {kind.__name__}", value, do)
    return value


def require(
    holds: object, what: str, rule: str, got: Any = ..., do: str = "", error: type[WarpDriveError] = ConfigError
) -> None:
    """Raise an error, by default a `ConfigError`, unless a rule holds.

    The other arguments are parts of the message.
    """
    if not holds:
        raise error.of(what, rule, got, do)


# ------------------------------------------------------------------ text from elsewhere, made safe to show

UNPRINTABLE: Final = re.compile(r"[^\n\t -~]")
"""Characters that may be unprintable."""


def printable(text: str) -> str:
    """Escape unprintable characters as `repr` does; line breaks and tabs stay.

    Unprintable are also terminal escapes, characters that XML forbids, lone surrogates and marks of text direction.
    """

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0].isprintable() else found[0].encode("unicode_escape").decode()

    return UNPRINTABLE.sub(escaped, text)


def shortened(text: str, most: int = 200) -> str:
    """Cut a text to its first characters and three dots."""
    return text if len(text) <= most else f"{text[:most]}..."


def one_line(text: str) -> str:
    """Escape unprintable characters, line breaks and tabs."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def escape_texts(value: Value) -> Value:
    """Apply `one_line` to all texts in a list, tuple, dict or dataclass."""
    found: Any = value
    if isinstance(found, str):
        found = one_line(found)
    elif isinstance(found, list | tuple):
        found = type(found)(map(escape_texts, found))
    elif isinstance(found, dict):
        found = {escape_texts(key): escape_texts(each) for key, each in found.items()}
    elif is_dataclass(found) and not isinstance(found, type):
        found = replace(found, **{each.name: escape_texts(getattr(found, each.name)) for each in fields(found)})
    return cast("Value", found)

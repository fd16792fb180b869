"""Text from files and other programs, made safe to show."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar, cast

Value = TypeVar("Value")

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

"""Comparison of runs to the bit, and the words for the first element that differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from warpdrive_min.validation.subject import Array, Arrays, Trace


class CheckFailedError(Exception):
    """Failure of a check; the message says where."""


class CheckSkippedError(Exception):
    """A check does not apply; the message says why."""


def require_same(want: Trace, got: Trace, what: str = "", first_step: int = 0) -> None:
    """Raise `CheckFailedError` at the first step whose bits differ in the environments that both runs have."""
    if found := first_difference(want, got, first_step):
        raise CheckFailedError(f"{what}{found}")


def first_difference(want: Trace, got: Trace, first_step: int = 0) -> str:
    """Describe the first step whose bits differ in the environments that both runs have; "" if none does."""
    for step, (want_row, all_rows) in enumerate(zip(want, got, strict=True), start=first_step):
        got_row = {name: all_rows[name][: len(array)] for name, array in want_row.items()}
        if names := differing(want_row, got_row):
            return f"step {step}: {described(names, want_row, got_row)}"
    return ""


def require_equal(want: Arrays, got: Arrays, what: str, names: Iterable[str] | None = None) -> None:
    """Raise `CheckFailedError` if bits of the named arrays, by default all, differ; tells which others do too."""
    if found := differing(want, got, names):
        raise CheckFailedError(f"{what}: {described(list(dict.fromkeys([*found, *differing(want, got)])), want, got)}")


def require_value(row: Arrays, name: str, is_right: Any, want: str, what: str) -> None:
    """Raise `CheckFailedError` at the first element that is not right."""
    wrong = np.argwhere(~is_right)
    if len(wrong):
        raise CheckFailedError(f"{what}{place(name, wrong[0])}: want {want}, got {row[name][tuple(wrong[0])]:.9g}")


def differing(want: Arrays, got: Arrays, names: Iterable[str] | None = None) -> list[str]:
    """Return the names, of those that both have, whose bits differ."""
    both = [name for name in (want if names is None else names) if name in want and name in got]
    return [name for name in both if _unequal(want[name], got[name]).any()]


def described(names: Sequence[str], want: Arrays, got: Arrays) -> str:
    """Say where the first of the named arrays first differs, both values there, and which other arrays differ."""
    index = tuple(np.argwhere(_unequal(want[names[0]], got[names[0]]))[0])
    return values_at(names, index, want[names[0]][index], got[names[0]][index])


def values_at(names: Sequence[str], index: Sequence[int], want: float, got: float) -> str:
    """Say where the first of the named arrays differs, both values there, and which other arrays differ."""
    name, *others = names
    also = f"; so do {', '.join(others)}" if others else ""
    return f"{place(name, index)}: want {want:.9g}, got {got:.9g}{also}"


def place(name: str, index: Sequence[int]) -> str:
    """Name an array and the axes that most have: the environment and the agent."""
    axes = [f"{axis} {i}" for axis, i in zip(("environment", "agent"), index, strict=False)]
    return ", ".join([f"{name} of {axes[0]}", *axes[1:], *(f"element {i}" for i in index[2:])])


def _unequal(want: Array, got: Array) -> Array:
    bits = np.dtype(f"u{want.dtype.itemsize}")
    unequal: Array = np.ascontiguousarray(want).view(bits) != np.ascontiguousarray(got).view(bits)
    return unequal

"""Records as a pandas frame: for notebooks, exports, selecting and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from ..core.archive import glob_paths, read_toml
from ..core.errors import ShowError
from ..core.machine import commit_of, kind
from ..core.record import Record, read_reporting

_COLUMNS: Final = read_toml(Path(__file__).with_name("frames.toml"))
DERIVED: Final[Mapping[str, Callable[[Record], Any]]] = {
    "mode": lambda record: record.mode or record.point.get("mode"),
    "machine": lambda record: kind(record.machine),
    "commit": lambda record: commit_of(record.git),
}
"""Values of columns that are no field of a record."""
TYPES: Final = {int: "Int64", bool: "boolean", float: "float64", str: "str"}
"""Types of axes; nullable, because some points lack an axis."""


def records(paths: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Read records as a frame with a row for each.

    Unreadable lines are skipped and reported on standard error.

    Args:
        paths: One or several files, folders and patterns with ``*``, on disk or in ``results/archive.zip``.

    Returns:
        A column for each axis of the points and three for each metric: its value under its own name, and the ends of
        its spread under ``NAME_low`` and ``NAME_high``, whose meaning for times and rates is in ``interval_kind``:
        see `stats.SpreadKind`. What a record lacks is missing (NaN or NA).

    Raises:
        ShowError: Nothing has a path's name.
        FileError: A file cannot be read.
    """
    names = [paths] if isinstance(paths, str | Path) else paths
    return frame_of(read_reporting(existing_files(names)))


def existing_files(names: Iterable[str | Path]) -> list[Path]:
    """Return the files for names and patterns; raises ShowError without a match."""
    paths: list[Path] = []
    for name in names:
        found = glob_paths(str(name))
        if not found:
            raise ShowError(f"{name} must be an existing file, folder or pattern (got none); check its path")
        paths += found
    return paths


def frame_of(records: Iterable[Record]) -> pd.DataFrame:
    """Return a row per record; fields take precedence over equally named axes."""
    rows = list(records)
    columns = _fields("before", rows)
    for axis in dict.fromkeys(axis for record in rows for axis in record.point):
        types = {type(record.point[axis]) for record in rows if axis in record.point}
        dtype = "float64" if types == {int, float} else TYPES[types.pop()] if len(types) == 1 else "object"
        columns.setdefault(axis, _column(dtype, (record.point.get(axis) for record in rows)))
    for name in dict.fromkeys(name for record in rows for name in record.metrics or {}):
        metrics = [record.figure(name) for record in rows]
        for column, end in ((name, "value"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            columns.setdefault(column, _column("float64", (getattr(each, end, None) for each in metrics)))
    return pd.DataFrame(columns | _fields("after", rows))


def _fields(where: str, records: Sequence[Record]) -> dict[str, pd.Series]:
    """Return the columns before or after those of axes and metrics."""
    return {
        name: _column(dtype, map(DERIVED.get(name, partial(_value, place=(place or [name])[0])), records))
        for name, (dtype, *place) in _COLUMNS[where].items()
    }


def _value(record: Record, place: str) -> Any:
    """Return the value at a dotted place in a record; None if absent."""
    value: Any = record
    for name in place.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def _column(dtype: str, values: Iterable[Any]) -> pd.Series:
    listed = list(values)
    try:
        return pd.Series(listed, dtype=dtype)
    except (OverflowError, ValueError):  # an integer or a time that exceeds the type
        return pd.Series(listed, dtype="object")

"""Records as a pandas frame: for notebooks, exports, selecting and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from ..core.archive import glob_paths
from ..core.errors import ShowError
from ..core.machine import commit_of, kind
from ..core.record import Record, read_all, reporting_skipped_lines

Field = tuple[str, Callable[[Record], Any]]
"""Type of a pandas column, and its value for a record."""

ORIGIN: Final[Mapping[str, Field]] = {
    "run_id": ("str", lambda record: record.run_id),
    "id": ("str", lambda record: record.id),
    "preset": ("str", lambda record: record.preset),
    "case": ("str", lambda record: record.case),
    "case_version": ("Int64", lambda record: record.case_version),
    "scope": ("str", lambda record: record.scope),
    "status": ("str", lambda record: record.status),
    "reason": ("str", lambda record: record.reason),
    "is_evidence": ("bool", lambda record: record.is_evidence),
    "taken": ("str", lambda record: record.taken),
    "started_at": ("datetime64[us, UTC]", lambda record: record.start),
    "duration_s": ("float64", lambda record: record.duration_s),
}
"""Columns before the axes."""
REST: Final[Mapping[str, Field]] = {
    "mode": ("str", lambda record: record.mode or record.point.get("mode")),
    "threads": ("Int64", lambda record: record.threads),
    "interval_kind": ("str", lambda record: record.spread and record.spread.kind),
    "n_samples": ("Int64", lambda record: record.n),
    "settled": ("boolean", lambda record: (record.warm_up or {}).get("settled")),
    "roofline": ("float64", lambda record: record.roofline),
    "passed": ("boolean", lambda record: record.correctness and record.correctness.passed),
    "max_error": ("float64", lambda record: record.correctness and record.correctness.max_error),
    "machine": ("str", lambda record: kind(record.machine)),
    "gpu": ("str", lambda record: record.machine.get("gpu")),
    "cpu": ("str", lambda record: record.machine.get("cpu")),
    "cores": ("Int64", lambda record: record.machine.get("cores")),
    "card": ("str", lambda record: record.card),
    "commit": ("str", lambda record: commit_of(record.git)),
    "dirty": ("boolean", lambda record: record.git.get("dirty")),
    "note": ("str", lambda record: record.notes.get("note")),
}
"""Columns after the metrics."""
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
    with reporting_skipped_lines() as skipped_lines:
        return frame_of(read_all(existing_files(names), skipped_lines))


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
    columns = {name: _column(dtype, map(value, rows)) for name, (dtype, value) in ORIGIN.items()}
    for axis in dict.fromkeys(axis for record in rows for axis in record.point):
        types = {type(record.point[axis]) for record in rows if axis in record.point}
        dtype = "float64" if types == {int, float} else TYPES[types.pop()] if len(types) == 1 else "object"
        columns.setdefault(axis, _column(dtype, (record.point.get(axis) for record in rows)))
    for name in dict.fromkeys(name for record in rows for name in record.metrics or {}):
        metrics = [record.figure(name) for record in rows]
        for column, end in ((name, "value"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            columns.setdefault(column, _column("float64", (getattr(each, end, None) for each in metrics)))
    return pd.DataFrame(columns | {name: _column(dtype, map(value, rows)) for name, (dtype, value) in REST.items()})


def _column(dtype: str, values: Iterable[Any]) -> pd.Series:
    listed = list(values)
    try:
        return pd.Series(listed, dtype=dtype)
    except (OverflowError, ValueError):  # an integer or a time that exceeds the type
        return pd.Series(listed, dtype="object")

"""Points that have become slower: their newest record is beaten by an older one on the same hardware."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from ..core.groups import groups_of
from ..core.record import Record, oldest_first
from ..judge.evidence import worker
from .columns import BACKEND, Column, Table
from .labels import commit_label, is_ours, number, point_label
from .records import first_metric, measured_alone

LEAST: Final = 0.1
"""Share by which a figure must be worse: less differs between two runs of the same code on two cards."""

Row = tuple[Record, Record]
"""The best record of a point before, and the newest."""


def slower(records: Sequence[Record], past: Sequence[Record] = ()) -> Table[Row]:
    """Return points of ours that are slower on a GPU than they were, the most first.

    CPUs are left out, as virtual machines give those of one name at different speeds, and so are launches one by one.

    Args:
        records: Evidence of one machine.
        past: Other records, of any machine.
    """
    gpus = {worker(record) for record in records if record.threads is None}
    timed = [
        record
        for record in measured_alone(chain(records, past))
        if record.is_evidence and record.samples_ns and not record.is_contended
        if is_ours(record) and record.mode != "eager" and worker(record) in gpus
    ]
    groups = groups_of(
        timed, lambda record: (record.case, record.case_version, worker(record), *sorted(record.point.items()))
    )
    rows = [row for of_point in groups.values() if (row := _row(of_point))]
    return Table(caption=CAPTION, rows=sorted(rows, key=_share), columns=COLUMNS)


def _row(records: Sequence[Record]) -> Row | None:
    """Return the best record and the newest one, if that is much slower."""
    *before, newest = oldest_first(records)
    row = max(before, key=_rate, default=newest), newest
    return row if _share(row) < 1 - LEAST else None


def _rate(record: Record) -> float:
    metric = first_metric(record)
    assert metric is not None, "what is timed has a rate"
    return metric.value if metric.direction == "higher" else -metric.value


def _share(row: Row) -> float:
    """Return the newest rate as a share of the best."""
    best, newest = map(_rate, row)
    return newest / best if best > 0 else best / newest


CAPTION: Final = (
    f"Points of a GPU whose newest record is more than {LEAST:.0%} slower than the best one before on such a GPU."
)
COLUMNS: Final[Sequence[Column[Row]]] = (
    Column("case", lambda row: row[1].case, is_choice=True),
    Column("point", lambda row: point_label(row[1].point)),
    Column("backend", lambda row: BACKEND.text(row[1]), is_choice=True),
    Column("now / before", lambda row: f"{_share(row):.2f}", _share),
    Column("before", lambda row: number(abs(_rate(row[0]))), lambda row: abs(_rate(row[0]))),
    Column("now", lambda row: number(abs(_rate(row[1]))), lambda row: abs(_rate(row[1]))),
    Column("commit before", lambda row: commit_label(row[0])),
    Column("commit", lambda row: commit_label(row[1])),
)

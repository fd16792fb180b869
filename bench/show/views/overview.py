"""README's table: our rates and the best other software's, a row per task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ...core import machine
from ...core.archive import read_toml
from ...core.point import conditions, matches
from ...core.record import Record
from ...judge.evidence import speed_of
from ..columns import TEXTS, Column, Table, signs, speed_up_text
from ..labels import environment, number, software
from ..records import latest, measured_alone, rate_of
from .peers import fastest_variants, setting_label

_FILE: Final = read_toml(Path(__file__).with_suffix(".toml"))
STEPPING: Final[Mapping[str, Sequence[str]]] = _FILE["columns"]
"""Conditions on the record of each column, for random actions."""
COMMIT: Final = re.compile(r"sources (\w{7})\w*")
"""Version that is a commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Row of the table; None without a record."""

    task: str
    ours: Mapping[str, Record | None]
    """Record of each column."""
    other: Record | None
    """Best other software's record, from rounds interleaved with ours."""
    other_column: str
    """Column with the other's semantics."""
    is_time: bool = False
    """True if the row is a time, s, of the other's record."""

    def cell(self, column: str) -> str:
        """Return a value and, in the other's column, its ratio."""
        record, other = self.ours.get(column), self.other if column == self.other_column else None
        ratio = f" ({speed_up_text(other)})" if other else ""
        if self.is_time:
            return f"{number(rate_of(other, 'ours_total_s'))} s{signs(other, 'ours_total_s')}{ratio}" if other else ""
        return f"{number(rate_of(record, 'env_steps_per_s'))}{signs(record)}{ratio}" if record else ""

    @property
    def software(self) -> str:
        """Value, name, version and setting of the best other."""
        if self.other is None:
            return ""
        version = str(self.other.notes.get("version") or "")
        name = " ".join(filter(None, (software(self.other), COMMIT.sub(r"\1", version))))
        metric, unit = ("total_s", " s") if self.is_time else ("env_steps_per_s", "")
        value = f"{number(rate_of(self.other, metric))}{unit}{signs(self.other, metric)}"
        return f"{value}: {name}, {setting_label(self.other)}"

    @property
    def card(self) -> str:
        """GPU of the records."""
        records = [each for each in (*self.ours.values(), self.other) if each]
        return ", ".join(dict.fromkeys(str(each.machine.get("gpu") or each.machine.get("cpu")) for each in records))


def overview(records: Sequence[Record], backend: str = "pycuda") -> Table[Line]:
    """Return the table of the newest record's kind of machine, without empty rows."""
    newest = max((each.started_at, machine.kind(each.machine)) for each in records)[1]
    records = [each for each in records if machine.kind(each.machine) == newest]
    own = latest(measured_alone(each for each in records if each.is_evidence))

    def first(*wanted: str) -> Record | None:
        met = [f"backend={backend}", *wanted]
        return next((each for each in own if matches({"case": each.case, **each.point}, met)), None)

    def best(*wanted: str) -> Record | None:
        found = [each for each in records if each.is_evidence and each.case.startswith("peer")]
        met = [each for each in found if matches({"case": each.case, **each.point}, wanted)]
        return max(fastest_variants(met), key=speed_of, default=None)

    def line(row: Mapping[str, Any]) -> Line:
        if size := row.get("size"):
            met = conditions(size)
            other = best("case=peer", "work=simulate", *met)
            beside = {"case": other.notes["ours"].get("case", ""), **other.notes["ours"]["point"]} if other else {}
            column = next((name for name, wanted in STEPPING.items() if other and matches(beside, wanted)), "")
            ours = {name: first(*wanted, *met) for name, wanted in STEPPING.items()}
            task = f"{environment(size['env'], size['n_agents'])} x {size['n_envs']:,}"
            return Line(task=task, ours=ours, other=other, other_column=column)
        ours = {row["column"]: first(*row["all"], *row["ours"])} if "ours" in row else {}
        other, is_time = best(*row["all"], *row["other"]), row.get("is_time", False)
        return Line(task=row["task"], ours=ours, other=other, other_column=row["column"], is_time=is_time)

    lines = [each for each in map(line, _FILE["rows"]) if each.card]
    cards = dict.fromkeys(line.card for line in lines)
    others: list[Column[Line]] = [Column("best other software", lambda line: line.software)]
    return Table(
        columns=[
            Column(" on ".join(["env steps/s", *cards]), lambda line: line.task),
            *(Column(name, partial(Line.cell, column=name), is_right=True) for name in STEPPING),
            *(others if any(line.other for line in lines) else []),
        ],
        rows=lines,
        caption=TEXTS["overview"],
    )

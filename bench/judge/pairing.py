"""Pair the records of two sides, and state caveats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..core.archive import exists
from ..core.record import Record, are_on_two_cards
from ..core.stats import median
from ..process.checkouts import WORKING_TREE
from ..process.interleaved import Pair
from ..show.columns import Column, signs
from .evidence import Judgement, Key, check_allowed, disturbances, mismatches, name_of, remarks


def is_file(side: str) -> bool:
    """True if a side is a records file rather than a revision."""
    return side != WORKING_TREE and exists(Path(side))


def pair_records(
    a: Mapping[Key, Record], b: Mapping[Key, Record], allowed: Sequence[str]
) -> tuple[list[Pair], list[str]]:
    """Return the pairs of records, and why others do not pair."""
    check_allowed(allowed)
    pairs, refused = [], []
    for each in (each for each in a if each in b):
        if differ := mismatches(a[each], b[each], allowed):
            refused.append(f"{name_of(a[each])}: {'; '.join(differ)}")
            continue
        mismatched = mismatches(a[each], b[each])  # all of them allowed
        if are_on_two_cards(a[each], b[each]):
            mismatched.append(f"card: {a[each].card!r} against {b[each].card!r}")
        pairs.append(Pair(name=name_of(a[each]), a=a[each], b=b[each], mismatched=tuple(mismatched)))
    return pairs, refused


def caveats(pair: Pair) -> list[str]:
    """Return the caveats of a pair's ratio, as text."""
    of_sides = [f"side {letter}: {each}" for letter, side in (("A", pair.a), ("B", pair.b)) for each in remarks(side)]
    turns_alone = list(pair.comparison.unread.values()) if pair.comparison else []
    return disturbances(pair.a) + of_sides + turns_alone


def caveat_lines(pairs: Iterable[Pair]) -> list[str]:
    """Return a line for each group of pairs with the same caveats.

    Their numbers, such as loads, may differ.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for pair in pairs:
        if said := "; ".join(caveats(pair)):
            groups.setdefault(re.sub(r"[\d.]+", "", said), []).append((pair.name, said))
    lines = []
    for (name, said), *others in groups.values():
        point = f"{len(others) + 1} points, such as {name}" if others else name
        lines.append(f"unreliable times: {point}: {said}")
    return lines


Judged = TypeVar("Judged", bound=Judgement[Any])


def ns_column(name: str, side: int) -> Column[Judged]:
    """Return the column of one side's median time per unit."""

    def record(row: Judged) -> Record:
        assert row.estimate is not None, "a pair has an estimate"
        return row.estimate.records[side]

    def value(row: Judged) -> float:
        return median(record(row).unit_ns)

    return Column(name, lambda row: f"{value(row):.4g}{signs(record(row))}", value)

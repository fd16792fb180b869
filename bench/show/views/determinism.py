"""Table of the case `determinism`: where runs are bit-identical."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from ...core.groups import groups_of
from ...core.record import Record
from ...workloads.determinism import AGAIN, BLOCK, BUSY, CARD, ON_A_CPU, THREADS, VARIATIONS, first_difference
from ..columns import BACKEND, NOTHING, TEXTS, Column, Table, axis_column, column_of
from ..labels import commit_label, ratio_text
from ..records import axes_except, point_order

LEVELS: Final[Mapping[str, Sequence[str]]] = {
    "run to run": (AGAIN, BLOCK, THREADS, BUSY),
    "machine to machine": (CARD,),
    "GPU to GPU": (),
    "GPU to CPU": (ON_A_CPU,),
}
"""Variations of each level; records of several machines add outcomes."""
Runs: TypeAlias = Sequence[Record]
"""Records of a point in all variations, on all machines."""


class Outcome(NamedTuple):
    """Result of one variation."""

    level: str
    what: str
    """Difference between both runs, in words."""
    difference: str
    """First difference of their bits; empty: none."""


def determinism_table(records: Sequence[Record]) -> Table[Runs]:
    """Return the outcomes and the level of each arithmetic, for each commit."""
    ordered = sorted(records, key=point_order(("env", "algorithm")))
    rows = groups_of(ordered, lambda each: (axes_except(each, "variation"), commit_label(each)))
    peer = ["peer"] if any("peer" in each.point for each in records) else []
    axes = [axis_column(name, records) for name in (*peer, "env", "algorithm", "n_envs")]
    axes += [BACKEND, Column("arithmetic", arithmetic, is_choice=True)]
    axes += [Column("commit", commit_label)] if len({commit_label(each) for each in records}) > 1 else []
    processors = sorted({f"{processor(each)} ({architecture(each)})" for each in records})
    return Table(
        caption=TEXTS["determinism"].format(processors=", ".join(processors)),
        rows=list(rows.values()),
        columns=[
            *(column_of(column, lambda runs: runs[0]) for column in axes),
            Column("level reached", level_reached, is_choice=True),
            Column("time over default", _times_default, is_right=True),
            *(Column(level, partial(_cell, level), is_long=True) for level in LEVELS),
        ],
        n_grouping=len(peer) + 4,
    )


def arithmetic(record: Record) -> str:
    """Name the arithmetic of a point."""
    point = record.point
    words = "exact" if point.get("exact") else str(point["precision"])
    words += "" if point.get("fused", True) else ", networks in torch"
    return words + (f", {point['variant']}" if "variant" in point else "")


def outcomes(runs: Runs) -> Iterator[Outcome]:
    """Yield the outcome of each variation, and of each two processors or cards."""
    for level, variations in LEVELS.items():
        for record in runs:
            if (variation := str(record.point["variation"])) in variations:
                yield Outcome(level, VARIATIONS[variation], _difference(record))
    for (a, *_), (b, *_) in combinations(groups_of(runs, lambda each: (processor(each), each.card)).values(), 2):
        names = dict.fromkeys((processor(a), processor(b)))
        level = "GPU to GPU" if a.threads is None and len(names) > 1 else "machine to machine"
        yield Outcome(level, " and ".join(names) if len(names) > 1 else "another card", _between(a, b))


def level_reached(runs: Runs) -> str:
    """Name the last level before the first difference, and levels not measured."""
    reached, skipped, missing = "none", list[str](), list[str]()
    found = list(outcomes(runs))
    for level in LEVELS:
        own = [each.difference for each in found if each.level == level]
        if any(own):
            break
        if own:
            reached, skipped = level, list(missing)
        else:
            missing.append(level)
    return reached + (f" (not measured: {', '.join(skipped)})" if skipped else "")


def processor(record: Record) -> str:
    """Name the processor that trained."""
    return str(record.machine.get("gpu" if record.threads is None else "cpu"))


def architecture(record: Record) -> str:
    """Name the architecture, and of a GPU the driver."""
    name = str(record.notes["reference"]["architecture"])
    return f"{name}, driver {record.machine.get('driver')}" if record.threads is None else name


def _cell(level: str, runs: Runs) -> str:
    own = [each for each in outcomes(runs) if each.level == level]
    equal = list(dict.fromkeys(each.what for each in own if not each.difference))
    texts = [f"{each.what}: {each.difference}" for each in own if each.difference]
    texts += [f"none in {runs[0].point['n_iterations']} iterations ({', '.join(equal)})"] if equal else []
    return "; ".join(dict.fromkeys(texts)) or NOTHING


def _difference(record: Record) -> str:
    """Return the first difference of a record's two runs; empty if none."""
    found = record.notes["difference"]
    return f"iteration {found['iteration']}, `{found['tensor']}`, {found['absolute']:.1e}" if found else ""


def _between(a: Record, b: Record) -> str:
    """Return the first difference of the reference runs of two records; empty if none."""
    one, other = (
        [dict(zip(digests, hashes, strict=True)) for hashes in zip(*digests.values(), strict=False)]
        for digests in (each.notes["digests"] for each in (a, b))
    )
    found = first_difference(one, other)
    return f"iteration {found[0]}, {', '.join(f'`{name}`' for name in found[1])}" if found else ""


def _times_default(runs: Runs) -> str:
    figures = [figure for record in runs if (figure := record.figure("times_default"))]
    return ratio_text(figures[0].value) if figures else NOTHING

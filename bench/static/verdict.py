"""Rules that compare two records of one kernel.

No time is predicted. The figures that cost time are compared one by one. If some grew and others shrank, or addresses
changed, only a timing can decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ..core.archive import read_toml
from ..core.machine import difference_texts, differences
from ..core.record import Record, oldest_first
from ..judge.evidence import Estimate, Judgement, Key, key
from ..judge.outcomes import Report
from ..show.columns import Column
from .records import INSTRUCTIONS, MACHINE_CODE, name_of

Verdict = Literal["worse", "needs timing", "better", "same", "unchanged"]
VERDICTS: Final[tuple[Verdict, ...]] = ("worse", "needs timing", "better", "same", "unchanged")
"""Verdicts, most serious first."""

COSTS: Final[Mapping[str, Sequence[str]]] = read_toml(Path(__file__).with_name("opcodes.toml"))["costs"]
"""Metrics of machine code by cost; the one that changed most counts."""


Row = Judgement[str]
"""Judgement of a kernel; estimates its largest growth of cost.

Growth is over its records before and now."""


def judged(
    before: Record, now: Record, threshold: float, verdict: Verdict, changes: Mapping[str, float], remark: str = ""
) -> Row:
    """Return the judgement of a kernel.

    Args:
        before: Record of the baseline.
        now: Record of the present code.
        threshold: Change of a cost that counts, as a share.
        verdict: Verdict.
        changes: Growth of each cost, as a share; infinite if it was 0.
        remark: Reason that no cost shows.
    """
    growth = 1 + max(changes.values(), default=0.0)
    texts = [
        f"{name} {'new' if math.isinf(change) else f'{change:+.1%}'}"
        for name, change in sorted(changes.items(), key=lambda change: -abs(change[1]))
    ]
    why = ", ".join(filter(None, [*texts, remark])) or "every figure is the same"
    return Judgement(
        subject=name_of(now),
        estimate=Estimate(value=growth, low=growth, high=growth, records=(before, now)),
        region=(1 - threshold, 1 + threshold),
        verdict=verdict,
        reasons=(why,),
    )


def _metric_column(name: str) -> Column[Row]:
    """Return a metric's column before and now; empty if missing."""

    def text(row: Row) -> str:
        assert row.estimate is not None, "a kernel has records"
        before, now = (each.metrics or {} for each in row.estimate.records)
        if name not in now:
            return ""
        first, second = before[name].value, now[name].value
        return f"{first:g}" if first == second else f"{first:g} to {second:g}"

    return Column(name, text, is_right=True)


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("kernel", lambda row: row.subject),
    *map(_metric_column, ("registers", "occupancy", "instructions")),
    Column("changed", lambda row: row.why, is_long=True),
    Column("outcome", lambda row: row.verdict),
)


# ------------------------------------------------------------------ the rules

Judge = Callable[[Record, Record, float], Row]
"""Judges a record before and now, at a threshold."""


def of_machine_code(before: Record, now: Record, threshold: float) -> Row:
    """Judge machine code.

    * unchanged: the same bytes, launched alike. Exact; there is nothing to measure.
    * same: other bytes, but no cost differs by the threshold, and addresses have the same strides.
    * worse, better: costs that differ all grew, or all shrank.
    * needs timing: some grew and others shrank; or addresses, blocks or threads changed and no cost did.
    """
    row = partial(judged, before, now, threshold)
    shapes = [[record.notes[name] for name in ("blocks", "threads", "launches")] for record in (before, now)]
    is_launched_alike = shapes[0] == shapes[1]
    changes = changes_of(before, now, threshold)
    if before.notes["code"] == now.notes["code"] and is_launched_alike and not changes:
        return row("unchanged", {})
    remark = "" if is_launched_alike else "blocks, threads and launches {} to {}".format(*shapes)
    if changes:
        grew = {change > 0 for change in changes.values()}
        return row("needs timing" if len(grew) == 2 else "worse" if True in grew else "better", changes, remark)
    if remark:
        return row("needs timing", {}, remark)
    if before.notes["shape"] == now.notes["shape"]:
        return row("same", {}, "the same instructions in another order or other registers")
    if before.notes["access"] != now.notes["access"]:
        return row("needs timing", {}, "addresses have other strides, or memory instructions differ")
    return row("same", {}, f"no figure differs by {threshold:.1%}")


def of_instructions(before: Record, now: Record, threshold: float) -> Row:
    """Judge a count of instructions by `COUNTED_TO` and the threshold."""
    change = _change(before, now, "instructions")
    verdict: Verdict = "unchanged" if abs(change) <= COUNTED_TO else "same"
    if abs(change) > threshold:
        verdict = "worse" if change > 0 else "better"
    changes = {} if verdict == "unchanged" else {"instructions": change}
    return judged(before, now, threshold, verdict, changes)


COUNTED_TO: Final = 0.001
"""Relative difference between counts of the same code in two folders."""


def changes_of(before: Record, now: Record, threshold: float) -> dict[str, float]:
    """Return the growth of each cost beyond a threshold; higher is worse."""
    changes = {}
    both = {*(before.metrics or {})} & {*(now.metrics or {})}  # older records lack some
    for name, metrics in COSTS.items():
        change = max((_change(before, now, metric) for metric in metrics if metric in both), key=abs, default=0.0)
        if abs(change) > threshold:
            changes[name] = change
    return changes


def _change(before: Record, now: Record, name: str) -> float:
    assert now.metrics is not None, "evidence has metrics"
    first, second = _value(before, name), _value(now, name)
    if now.metrics[name].direction == "higher":
        first, second = second, first
    if first == second:
        return 0.0
    return second / first - 1 if first else math.inf


def _value(record: Record, name: str) -> float:
    assert record.metrics is not None, "evidence has metrics"
    return record.metrics[name].value


JUDGES: Final[Mapping[str, Judge]] = {MACHINE_CODE.name: of_machine_code, INSTRUCTIONS.name: of_instructions}
"""Rule for the records of each case of scope `static`."""


# ------------------------------------------------------------------ two sides


def judge_into(report: Report, before: Sequence[Record], now: Sequence[Record]) -> None:
    """Add judgements of kernels to a report, and why others lack one."""
    first, second = _evidence(before), _evidence(now)
    report.add("broken", *(f"{name_of(each)}: {each.rejection_reason}" for each in now if each.has_failed))
    skipped = [each for each in [*before, *now] if each.status == "skipped"]
    report.notes += dict.fromkeys(f"left out: {each.rejection_reason}" for each in skipped)
    broken_before = {_program(each): each.rejection_reason for each in before if each.status == "failed"}
    gone = {_program(each) for each in [*skipped, *now] if each.status != "ok"}
    for side, records, others in (("the baseline", first, second), ("the present code", second, first)):
        for each, record in records.items():
            if each not in others and _program(record) not in gone:
                why = broken_before.get(_program(record))
                report.add("changed", f"{name_of(record)} is in {side} alone" + (f" ({why})" if why else ""))
    for each in sorted(first.keys() & second.keys(), key=lambda each: name_of(second[each])):
        a, b = first[each], second[each]
        if differ := difference_texts(differences(_tools(a), _tools(b), None)):
            report.add("not comparable", f"{name_of(b)}: {', '.join(differ)}")
        else:
            report.rows.append(JUDGES[b.case](a, b, report.threshold))


def of_both_sides(before: Sequence[Record], now: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records of the programs that both sides have."""
    both = set(map(_program, before)) & set(map(_program, now))
    return [each for each in before if _program(each) in both], [each for each in now if _program(each) in both]


def _evidence(records: Sequence[Record]) -> dict[Key, Record]:
    """Return the newest evidence of each kernel."""
    return {key(record): record for record in oldest_first(records) if record.is_evidence and record.case in JUDGES}


def _program(record: Record) -> tuple[object, ...]:
    """Return the axes shared by the kernels of a program."""
    return tuple(sorted((name, value) for name, value in record.point.items() if name not in ("part", "kernel")))


def _tools(record: Record) -> dict[str, object]:
    """Return the tools of a record, which must match."""
    return {"case_version": record.case_version, "compiler": record.notes.get("compiler")}

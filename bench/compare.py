"""`python -m bench compare`: how much faster or slower one side is than another, or that it cannot be told.

Two values of an axis or two commits are measured in turns, A B B A, in rounds of new processes; two files or folders
of records by what was measured then, by run where both have as many.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from warpdrive_min.backends import availability
from warpdrive_min.files import write_atomically

from . import record, sweep
from .case import Case, Point, Preset, PresetName, passes
from .errors import CompareError, NotComparable, NothingMeasured, PointFailed
from .judge import (
    COMPARABLE_FIELDS,
    Estimate,
    Evidence,
    Interval,
    Judgement,
    Key,
    check_allowed,
    disturbed,
    mismatches,
    name_of,
    position,
)
from .machine import ROOT, git_state
from .measure import Timed
from .pairs import WORKING_TREE, Measured, Pair, measure_all, measure_revisions, sides_of
from .record import RESULTS, Comparison, Record, append, read_all, selected
from .show import render
from .stats import CONFIDENCE, holm, median
from .sweep import say
from .worker import WorkerError

SAME: Final = 0.01
"""Share within which the whole interval of two sides lies that are the same."""
COMPARISONS: Final = RESULTS / "comparisons"
Verdict = Literal["faster", "slower", "same", "inconclusive"]


# ------------------------------------------------------------------ verdicts


Row = Judgement[Pair]


def judge(pairs: Sequence[Pair], same: float = SAME) -> list[Row]:
    """Return the judgement of each pair.

    ``same`` is a statement too: the whole interval lies within that share of 1. Otherwise a difference counts if its
    two-sided p-value, adjusted by Holm for the number of pairs, is below 5 %; the rest is inconclusive.
    """
    adjusted = holm([min(1.0, 2 * min(pair.p_slower(), pair.p_faster)) for pair in pairs])
    region = (1 / (1 + same), 1 + same)
    return [
        Judgement(subject=pair, estimate=estimate, region=region, p=p, verdict=_verdict(estimate, region, p))
        for pair, p in zip(pairs, adjusted, strict=True)
        for estimate in [Estimate.of_ratio(pair.ratio, pair.a, pair.b)]
    ]


def _verdict(estimate: Estimate, region: Interval, p: float) -> Verdict:
    if position(estimate.interval, region) == "inside":
        return "same"
    if p >= 1 - CONFIDENCE:
        return "inconclusive"
    return "slower" if estimate.value > 1 else "faster"


def to_dict(row: Row) -> dict[str, Any]:
    """Return a judgement as JSON takes it."""
    pair = row.subject
    return {
        "case": pair.a.case,
        "a": pair.a.point,
        "b": pair.b.point,
        "ratio": asdict(pair.ratio),
        "p": row.p,
        "verdict": row.verdict,
        "in_turns": pair.in_turns,
        "log_ratios": pair.comparison.log_ratios if pair.comparison else None,
        "ns_a": pair.a.unit_ns,
        "ns_b": pair.b.unit_ns,
        "mismatched": pair.mismatched,
    }


# ------------------------------------------------------------------ choosing


def chosen(
    preset: Preset, cases: Sequence[str], where: Sequence[str], tell: Callable[[str], None]
) -> list[tuple[Case, Point]]:
    """Return the points that can run here, of cases that repeat, which pass ``AXIS=VALUE`` conditions.

    ``tell`` gets a line for each backend that cannot.
    """
    jobs = sweep.jobs(preset, {"case": list(cases)} if cases else {})
    wanted = [(job.case, job.point) for job in jobs if job.case.workload is Timed and passes(job.point, where)]
    states = availability()
    for name in dict.fromkeys(str(point["backend"]) for _, point in wanted):
        if not states[name].available:
            tell(f"left out: backend {name} is {states[name]}")
    return [(case, point) for case, point in wanted if states[str(point["backend"])].available]


def along(axis: str, points: Sequence[tuple[Case, Point]]) -> list[tuple[Case, Point, Point]]:
    """Return the pairs of points that differ in one axis alone, as ``AXIS=A,B`` names it.

    Raises:
        NotComparable: The condition does not name two values.
    """
    name, _, values = axis.partition("=")
    both = values.split(",")
    if not name or len(both) != 2:
        raise NotComparable(f"--axis {axis}: must be AXIS=A,B; for example backend=host,cpu")
    sides: list[dict[tuple[Any, ...], tuple[Case, Point]]] = [{}, {}]
    for case, point in points:
        if str(point.get(name)) in both and name in point:
            rest = (case.name, *sorted((each, value) for each, value in point.items() if each != name))
            sides[both.index(str(point[name]))][rest] = (case, point)
    return [(case, point, sides[1][rest][1]) for rest, (case, point) in sides[0].items() if rest in sides[1]]


# ------------------------------------------------------------------ the command


def compare(
    a: Annotated[str | None, typer.Argument(help="Records (file, folder), or a revision; `.` is this tree.")] = None,
    b: Annotated[str | None, typer.Argument(help="The same; it is what is called faster or slower.")] = None,
    axis: Annotated[str | None, typer.Option(help="AXIS=A,B: two values, in place of two sides.")] = None,
    preset: Annotated[PresetName, typer.Option(help="How much to measure.")] = PresetName.default,
    case: Annotated[list[str] | None, typer.Option(help="Keep only these; may be given several times.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Keep only points with AXIS=VALUE.")] = None,
    same: Annotated[float, typer.Option(help="Largest difference, in %, of what is called the same.")] = 100 * SAME,
    allow_mismatch: Annotated[list[str] | None, typer.Option(help="Field that records need not share.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the result and the records of both sides.")] = COMPARISONS,
) -> None:
    """Measure two sides in turns, or take two files of records; say which is faster.

    Exits with 0 whatever the verdict, 3 if there is nothing to compare, 4 if the sides cannot be compared, 5 if a point
    fails.
    """
    run_id = new_run_id()
    allowed = allow_mismatch or []
    try:
        found, refused = _sides(a, b, axis, preset.value, case or [], where or [], allowed, run_id)
        _say_all("left out", [*found.skipped, *refused])
        _say_all("doubtful", [f"{pair.name}: {each}" for pair in found.pairs for each in doubts(pair)])
        if not found.pairs and not found.failed:
            raise (NotComparable if refused else NothingMeasured)("compare: no point is on both sides")
        rows = judge(found.pairs, same / 100)
        names = (a, b) if axis is None else tuple(axis.partition("=")[2].split(","))
        render.console(160).print(table(rows, f"{names[1]} against {names[0]}"))
        _say_all("allowed mismatch", sorted({each for pair in found.pairs for each in pair.mismatched}))
        for path in write(rows, {"a": names[0], "b": names[1], "allow_mismatch": allowed}, out, run_id):
            say(f"written: {path}")
        if found.failed:
            raise PointFailed("\n".join(found.failed))
    except CompareError as error:
        say(str(error))
        raise typer.Exit(error.code) from error
    except (WorkerError, ValueError, OSError) as error:
        say(f"{type(error).__name__}: {error}")
        raise typer.Exit(5) from error


def _sides(
    a: str | None,
    b: str | None,
    axis: str | None,
    preset: Preset,
    cases: Sequence[str],
    where: Sequence[str],
    allowed: Sequence[str],
    run_id: str,
) -> tuple[Measured, list[str]]:
    """Return what there is of both sides, and which records do not pair."""
    if (axis is None) == (a is None or b is None) or (axis is not None and a is not None):
        raise NotComparable("compare: takes either A and B or --axis AXIS=A,B")
    if axis is not None:
        points = chosen(preset, cases, where, say)
        sides = [sides_of(run_id, case, (one, other)) for case, one, other in along(axis, points)]
        return measure_all(sides, preset, say), []
    assert a is not None
    assert b is not None
    files = [each for each in (a, b) if is_file(each)]
    if len(files) == 1:
        other = b if files == [a] else a
        raise NotComparable(f"compare: both sides must be records, or both revisions (got {files[0]} and {other})")
    if files:
        before, now = (selected(read_all([Path(each)]), cases, where) for each in (a, b))
        first, second = Evidence.of(before), Evidence.of(now)
        pairs, refused = paired_up(first.kept, second.kept, allowed)
        pairs = [by_run(pair, before, now) for pair in pairs]
        return Measured(pairs, [*first.left_out, *second.left_out], []), refused
    return measure_revisions(chosen(preset, cases, where, say), (a, b), preset, run_id, say), []


def is_file(side: str) -> bool:
    """Say whether a side is records, not a revision."""
    return side != WORKING_TREE and Path(side).exists()


def new_run_id() -> str:
    """Name a comparison by its start and the commit of this checkout."""
    return record.new_run_id(git_state(ROOT))


def paired_up(a: Mapping[Key, Record], b: Mapping[Key, Record], allowed: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """Return the pairs of records of the same point, and why others do not pair."""
    check_allowed(allowed)
    others = [field for field in COMPARABLE_FIELDS if field not in allowed]
    pairs, refused = [], []
    for each in (each for each in a if each in b):
        if differ := mismatches(a[each], b[each], allowed):
            refused.append(f"{name_of(a[each])}: {'; '.join(differ)}")
            continue
        mismatched = tuple(mismatches(a[each], b[each], others))
        pairs.append(Pair(name=name_of(a[each]), a=a[each], b=b[each], mismatched=mismatched))
    return pairs, refused


def by_run(pair: Pair, a: Sequence[Record], b: Sequence[Record]) -> Pair:
    """Return a pair over the runs of both sides, where both have as many, two or more: each run is a round."""
    runs_a, runs_b = (_medians(side, of) for side, of in ((a, pair.a), (b, pair.b)))
    if len(runs_a) != len(runs_b) or len(runs_a) < 2:
        return pair
    rounds = [[math.log(after / before)] for before, after in zip(runs_a, runs_b, strict=True)]
    return replace(pair, comparison=Comparison.of(pair.a, pair.b, rounds))


def _medians(records: Sequence[Record], like: Record) -> list[float]:
    """Return the median time of one unit in each run of a record's point, ns, in the order of the runs."""
    runs = {each.run_id: each for each in sorted(records, key=lambda each: each.started_at) if _counts(each, like)}
    return [median(each.unit_ns) for each in runs.values()]


def _counts(record: Record, like: Record) -> bool:
    same = (record.case, record.point) == (like.case, like.point) and not mismatches(record, like)
    return same and record.is_evidence and not disturbed(record)


def doubts(pair: Pair) -> list[str]:
    """Return the limits of a pair's ratio, in words."""
    unsettled = [
        f"side {letter} had not settled before it was timed"
        for letter, side in (("A", pair.a), ("B", pair.b))
        if not (side.warm_up or {}).get("settled", True)
    ]
    turns_alone = list(pair.comparison.unread.values()) if pair.comparison else []
    return disturbed(pair.a) + unsettled + turns_alone


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the verdicts as a table."""
    made = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    made.add_column("point", overflow="fold")
    for column in ("ns, A", "ns, B", "time B / A", "95 % interval", "p (Holm)"):
        made.add_column(column, justify="right", no_wrap=True)
    made.add_column("B is", no_wrap=True)
    for row in rows:
        pair, ratio = row.subject, row.subject.ratio
        made.add_row(
            escape(pair.name),
            f"{median(pair.a.unit_ns):.4g}",
            f"{median(pair.b.unit_ns):.4g}",
            f"{ratio.value:.4f}",
            f"{ratio.low:.4f} to {ratio.high:.4f}",
            f"{row.p:.2g}",
            row.verdict,
        )
    return made


def write(rows: Sequence[Row], about: Mapping[str, Any], out: Path, run_id: str) -> list[Path]:
    """Write the result, and the records of both sides; returns the paths."""
    result = out / f"{run_id}.json"
    write_atomically(result, json.dumps({**about, "rows": [to_dict(row) for row in rows]}, indent=1) + "\n")
    paths = [result]
    for letter in "ab":
        path = out / f"{run_id}-{letter}.jsonl"
        for row in rows:
            append(path, getattr(row.subject, letter))
        paths += [path] if rows else []
    if compared := [row.subject.comparison for row in rows if row.subject.comparison]:
        paths.append(out / f"{run_id}-comparisons.jsonl")
        for comparison in compared:
            append(paths[-1], comparison)
    return paths


def _say_all(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        say(f"{what}: {text}")

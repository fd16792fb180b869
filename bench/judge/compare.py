"""`python -m bench compare`: ratio of two sides, or "inconclusive".

Two values of an axis or two commits are measured interleaved (A B B A), in rounds of new processes. Two files or
folders of records are compared as measured; by run, if both have equally many runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from pydantic import ValidationError

from warpdrive_min.files import require_writable, write_atomically

from .. import options
from ..core.case import Job
from ..core.errors import CompareError, NotComparable, NothingMeasured
from ..core.point import ABSENT, PresetName
from ..core.record import Comparison, Record, merged, oldest_first
from ..core.schema import error_text
from ..core.stats import CONFIDENCE, holm
from ..options import COMPARISONS, AtOnce, Choice, Names, Resume, Where, chosen, say
from ..process.interleaved import Pair, PairFiles, PairResults, measure_all, measure_revisions, sides_of
from ..process.local import start
from ..process.stopping import register_outputs
from ..show import render
from ..show.columns import NOTHING, SPREAD, Column, Table
from ..show.labels import SPREADS
from .evidence import (
    Estimate,
    Evidence,
    Interval,
    Judgement,
    Key,
    check_allowed,
    disturbances,
    mismatches,
    point_key,
    position,
)
from .pairing import caveat_lines, is_file, ns_column, pair_records

SAME: Final = 0.01
"""Largest difference of sides that count as the same, as a fraction."""
Verdict = Literal["faster", "slower", "same", "inconclusive"]


# ------------------------------------------------------------------ verdicts


Row = Judgement[Pair]


def judge(pairs: Sequence[Pair], same: float = SAME) -> list[Row]:
    """Return the judgement of each pair.

    ``same`` requires that the whole interval lies within that fraction of 1. Otherwise a difference counts if its
    two-sided p-value, adjusted by Holm for the number of pairs, is below 5 %. All others are inconclusive, and so are
    ratios of one process a side.
    """
    adjusted = holm([min(1.0, 2 * min(pair.p_slower(), pair.p_faster)) for pair in pairs])
    region = (1 / (1 + same), 1 + same)
    return [
        Judgement(subject=pair, estimate=estimate, region=region, p=p, verdict=_verdict(estimate, region, p))
        for pair, p in zip(pairs, adjusted, strict=True)
        for estimate in [Estimate.of_ratio(pair.ratio, pair.a, pair.b)]
    ]


def _verdict(estimate: Estimate, region: Interval, p: float) -> Verdict:
    if estimate.kind:
        return "inconclusive"
    if position(estimate.interval, region) == "inside":
        return "same"
    if p >= 1 - CONFIDENCE:
        return "inconclusive"
    return "slower" if estimate.value > 1 else "faster"


def to_dict(row: Row) -> dict[str, Any]:
    """Return a judgement for JSON."""
    pair = row.subject
    return {
        "case": pair.a.case,
        "a": pair.a.point,
        "b": pair.b.point,
        "ratio": asdict(pair.ratio),
        "p": row.p,
        "verdict": row.verdict,
        "in_turns": pair.is_interleaved,
        "log_ratios": pair.comparison.log_ratios if pair.comparison else None,
        "ns_a": pair.a.unit_ns,
        "ns_b": pair.b.unit_ns,
        "mismatched": pair.mismatched,
    }


# ------------------------------------------------------------------ choosing


def pairs_along_axis(axis: str, jobs: Sequence[Job]) -> list[tuple[Job, Job]]:
    """Pair points that differ in one axis only, given as ``AXIS=A,B``.

    Raises:
        NotComparable: The condition does not name two values.
        CompareError: The axis or value does not exist.
    """
    name, _, values = axis.partition("=")
    both = values.split(",")
    if not name or len(both) != 2:
        raise NotComparable(f"--axis {axis}: must be AXIS=A,B; for example backend=host,cpu")
    with options.as_compare_error():
        options.require_known([f"{name}={value}" for value in both], "--axis")
    sides: list[dict[Key, Job]] = [{}, {}]
    for job in jobs:
        if (value := str(job.point.get(name, ABSENT))) in both:
            rest = point_key(job.case.name, {each: value for each, value in job.point.items() if each != name})
            sides[both.index(value)][rest] = job
    return [(job, sides[1][rest]) for rest, job in sides[0].items() if rest in sides[1]]


# ------------------------------------------------------------------ the command


def compare(
    context: typer.Context,
    a: Annotated[
        str | None,
        typer.Argument(help="Side A, the base: a file or folder of records, or a git revision; `.` is this checkout."),
    ] = None,
    b: Annotated[str | None, typer.Argument(help="Side B, which the verdict calls faster or slower.")] = None,
    axis: Annotated[
        str | None, typer.Option(help="AXIS=A,B: compare two values of an axis instead of two sides.")
    ] = None,
    preset: Annotated[PresetName, typer.Option(help="Points, and time to measure each.")] = PresetName.default,
    case: Names = None,
    where: Where = None,
    same: Annotated[
        float, typer.Option(callback=options.bounded(0, 100), help="Largest difference that counts as the same, in %.")
    ] = 100 * SAME,
    allow_mismatch: Annotated[
        list[str] | None, typer.Option(help="Field that may differ between the records; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder of the result and of both sides' records.")] = COMPARISONS,
    resume: Resume = None,
    at_once: AtOnce = 1,
) -> None:
    """Compare two sides, measured interleaved or read from files of records.

    Exits with 0 whatever the verdict, 3 if there is nothing to compare, 4 if the sides cannot be compared, 5 if a point
    fails.
    """
    if a is not None and b is not None and is_file(a) and is_file(b):
        options.refuse_unused(context, "between files of records", "preset", "resume", "at_once")
    run_id = options.resumed_or_new_run_id(resume, out, preset.value)
    outputs = PairFiles.of(out, run_id)
    register_outputs(outputs.a, outputs.b, words=("--resume", run_id))
    choice = Choice(
        preset=preset.value, cases=case or [], where=where or [], allowed=allow_mismatch or [], at_once=at_once
    )
    check_allowed(choice.allowed)
    require_writable(out, "--out")
    found, refused = _sides(a, b, axis, choice, run_id, outputs)
    _say_all("left out", [*found.skipped, *refused])
    for line in caveat_lines(found.pairs):
        say(line)
    if not found.pairs and not found.failed:
        raise (NotComparable if refused else NothingMeasured)(
            "compare: no point is on both sides; choose sides that share points"
        )
    rows = judge(found.pairs, same / 100)
    first, second = (a, b) if axis is None else axis.partition("=")[2].split(",")
    title = f"{second} against {first}"
    render.console(160).print(render.terminal(Table(title=title, columns=COLUMNS, rows=rows)))
    _say_all("allowed mismatch", sorted({each for pair in found.pairs for each in pair.mismatched}))
    result = {"a": first, "b": second, "allow_mismatch": choice.allowed, "rows": list(map(to_dict, rows))}
    write_atomically(out / f"{run_id}.json", json.dumps(result, indent=1) + "\n")
    _say_all("written", map(str, [out / f"{run_id}.json", *outputs.files]))
    if found.failed:
        raise CompareError("\n".join(found.failed))


def _sides(
    a: str | None, b: str | None, axis: str | None, choice: Choice, run_id: str, outputs: PairFiles
) -> tuple[PairResults, Sequence[str]]:
    """Measure or read both sides; also return why records do not pair."""
    if (axis is None) == (a is None or b is None) or (axis is not None and a is not None):
        raise NotComparable(
            "compare: needs two sides A and B, or --axis AXIS=A,B (got neither or both); give one of the two"
        )
    if choice.allowed and (a is None or not is_file(a)):
        raise NotComparable(
            "compare: --allow-mismatch needs records on both sides (got sides to measure); leave it out"
        )
    if axis is not None:
        points = chosen(choice)
        both = pairs_along_axis(axis, points)
        if not both:
            name, values = (
                axis.partition("=")[0],
                options.values_of(axis.partition("=")[0], [job.point for job in points]),
            )
            why = f"pairs differ in {name} alone; values of {name} in the points here: {values}"
            why = why if points else options.why_none(choice) or "no point passes the options and can run here"
            raise NothingMeasured(f"compare: no point is on both sides of --axis {axis}; {why}")
        sides = [sides_of(run_id, one.case, (one.point, other.point), (start, start)) for one, other in both]
        return measure_all(sides, choice.preset, say, outputs, choice.at_once), []
    assert a is not None
    assert b is not None
    files = [each for each in (a, b) if is_file(each)]
    if len(files) == 1:
        other = b if files == [a] else a
        raise NotComparable(f"compare: both sides must be records, or both revisions (got {files[0]} and {other})")
    if files:
        before, now = (merged(choice.of(Path(each))) for each in (a, b))
        first, second = Evidence.of(before), Evidence.of(now)
        pairs, refused = pair_records(first.comparable, second.comparable, choice.allowed)
        pairs = [processes_as_rounds(pair, before, now) for pair in pairs]
        for pair in pairs:
            outputs.add(pair)
        return PairResults(pairs, [*first.left_out, *second.left_out], []), refused
    return measure_revisions(chosen(choice), (a, b), choice.preset, run_id, say, outputs, choice.at_once), []


def processes_as_rounds(pair: Pair, a: Sequence[Record], b: Sequence[Record]) -> Pair:
    """Return a pair with processes as rounds, if both sides have equally many."""
    runs_a, runs_b = (_medians(side, of) for side, of in ((a, pair.a), (b, pair.b)))
    if len(runs_a) != len(runs_b) or len(runs_a) < 2:
        return pair
    rounds = [[math.log(after / before)] for before, after in zip(runs_a, runs_b, strict=True)]
    try:
        return replace(pair, comparison=Comparison.of(pair.a, pair.b, rounds))
    except ValidationError as error:
        raise CompareError(f"{pair.name}: {error_text(error)}") from error


def _medians(records: Sequence[Record], like: Record) -> list[float]:
    """Return the median time per unit in each process of each run of a point, ns."""
    runs = {each.run_id: each for each in oldest_first(records) if _counts(each, like)}
    return [ns for each in runs.values() for ns in each.process_medians]


def _counts(record: Record, like: Record) -> bool:
    same = (record.case, record.point) == (like.case, like.point) and not mismatches(record, like)
    return same and record.is_evidence and not disturbances(record)


COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("point", lambda row: row.subject.name, is_long=True),
    ns_column("A, ns per unit", 0),
    ns_column("B, ns per unit", 1),
    Column("time B / A", lambda row: f"{row.subject.ratio.value:.4f}", is_right=True),
    Column(
        SPREAD,
        lambda row: (
            f"{SPREADS[row.estimate.kind][0]}{row.estimate.low:.4f} to {row.estimate.high:.4f}"
            if row.estimate
            else NOTHING
        ),
        is_right=True,
    ),
    Column("p (Holm)", lambda row: f"{row.p:.2g}", is_right=True),
    Column("B is", lambda row: row.verdict),
)


def _say_all(what: str, texts: Iterable[str]) -> None:
    for text in texts:
        say(f"{what}: {text}")

"""Judge WarpDrive's claims, our goals and our published figures by records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ...core.archive import with_archived
from ...core.case import Job
from ...core.groups import groups_of
from ...core.point import Point, Preset
from ...core.record import SWEEPS, Comparison, Record, merged, read_reporting
from ...show.columns import Column, Table
from ...show.labels import SPREADS, UNSETTLED, number
from ...show.sets import newest_sets
from ...workloads.cases import CASES, is_present, jobs
from ...workloads.points import SEEDS
from ..evidence import Estimate, Filter, Judgement, hardware_of, point_key, position
from .ledger import CLAIMS, LINKS, PEER, UNNAMED, Claim, Query

OURS: Final = "this project"
EARLIEST: Final = datetime.min.replace(tzinfo=UTC)

Decision = Literal["holds", "exceeds", "does not hold", "inconclusive"]
"""Verdict on an interval."""
ELSEWHERE: Final = " on other hardware"
"""Suffix of a decision on hardware other than the claim's."""
FEW: Final = ", few processes"
"""Suffix of a decision without a 95 % interval over processes."""
VERDICTS: Final = (
    *(f"{decision}{where}{of}" for of in ("", FEW) for decision in get_args(Decision) for where in ("", ELSEWHERE)),
    *("other hardware", "not measurable here", "not measured yet", "not repeated yet"),
)
"""All verdicts, decided ones first."""
Judged = Judgement[Claim]
"""Judgement of a claim."""


def ratio_to_claim(judged: Judged) -> Estimate | None:
    """Measured value divided by claimed value (a range's lower end)."""
    return judged.estimate and judged.estimate.over(judged.subject.low)


# ------------------------------------------------------------------ judging


def judge(claim: Claim, records: Sequence[Record], comparisons: Sequence[Comparison] = ()) -> Judged:
    """Return the judgement of a claim; see `judge_all`."""
    return judge_all([claim], records, comparisons)[0]


def judge_all(
    claims: Iterable[Claim], records: Iterable[Record], comparisons: Sequence[Comparison] = ()
) -> list[Judged]:
    """Judge claims by the newest evidence that fits.

    Only records from the claim's hardware decide a rate, a time or the number of seeds that reach a threshold. Newer
    evidence from other hardware does not replace them. A ratio on one machine is decided on any hardware; its verdict
    says if that is not the claim's.
    """
    shown = [(record, hardware_of(record)) for record in evidence(records)]
    began: dict[str, datetime] = {}
    for record, _ in shown:
        began[record.run_id] = min(record.start, began.get(record.run_id, record.start))

    @cache
    def of_cases(cases: frozenset[str]) -> list[tuple[Record, str]]:
        return [each for each in shown if each[0].case in cases]

    def candidates(claim: Claim) -> Sequence[tuple[Record, str]]:
        """Return the records that can decide a claim; a peer's pair with any case."""
        if claim.query is None or claim.query.peer:
            return shown
        return of_cases(frozenset(each.case for each in claim.query.filters))

    return [_judge(claim, candidates(claim), began, comparisons) for claim in claims]


def _judge(
    claim: Claim,
    shown_on: Sequence[tuple[Record, str]],
    began: Mapping[str, datetime],
    comparisons: Sequence[Comparison],
) -> Judged:
    """Judge a claim by its hardware's evidence; ``began`` has each run's start.

    A claim made by a run needs another run that started no earlier, because earlier runs are of older code.
    """
    if claim.made_by and claim.query:
        since, filters = began.get(claim.made_by, EARLIEST), claim.query.filters
        fitting = [each for each in shown_on if any(points.matches_record(each[0]) for points in filters)]
        shown_on = [each for each in fitting if each[0].run_id != claim.made_by and each[0].start >= since]
    shown = [record for record, _ in shown_on]
    estimate = claim.query.estimate(shown, comparisons, claim.hardware) if claim.query else None
    if claim.query and estimate and claim.hardware not in estimate.hardware:
        there = [record for record, hardware in shown_on if claim.hardware in hardware]
        if claim.query.quantity == "Reached" or not claim.query.is_portable(estimate):
            estimate = claim.query.estimate(there, comparisons, claim.hardware) or estimate

    def judged(verdict: str, *reasons: str) -> Judged:
        return Judgement(subject=claim, estimate=estimate, region=claim.region, verdict=verdict, reasons=reasons)

    if claim.cannot:
        return judged("not measurable here", claim.cannot)
    assert claim.query is not None, "a claim has what measures it, or why nothing can"
    if estimate is None:
        missing = claim.query.rejection_reason(shown) or _missing(claim, claim.query)
        return judged("not repeated yet" if claim.made_by else "not measured yet", missing)
    is_there = claim.hardware in estimate.hardware
    where = "" if is_there else f"claimed on {claim.hardware if claim.hardware != UNNAMED else UNNAMED_MACHINE}"
    limits = estimate.note, claim.reading, claim.differs
    if not is_there and not claim.query.is_portable(estimate):
        return judged("other hardware", f"{where}, measured on {estimate.hardware}", *limits)
    verdict, why = _verdict(claim, estimate)
    of = FEW if verdict != "inconclusive" and estimate.kind in ("samples", "range") else ""
    return judged(f"{verdict}{'' if is_there else ELSEWHERE}{of}", f"{why}, on {estimate.hardware}", where, *limits)


UNNAMED_MACHINE: Final = "an unnamed machine"


def _verdict(claim: Claim, estimate: Estimate) -> tuple[Decision, str]:
    """Return the verdict on an estimate, and the reason."""
    where, (least, most), words = position(estimate.interval, claim.region), claim.region, _bounds(claim)
    _, spread = SPREADS[estimate.kind]
    if where == "inside":
        return "holds", f"all of {spread} is {words}"
    if where == "across":
        return "inconclusive", f"only part of {spread} is {words}"
    is_better = estimate.low > most if claim.direction == "higher" else estimate.high < least
    if is_better and math.isfinite(least) and math.isfinite(most):
        return "exceeds", f"all of {spread} is better than {words}"
    return "does not hold", f"no part of {spread} is {words}"


def _bounds(claim: Claim) -> str:
    """Describe the ends of a claim's region in words."""
    least, most = claim.region
    if math.isinf(most):
        return f"at least {number(least)}"
    return f"at most {number(most)}" if math.isinf(least) else f"{number(least)} to {number(most)}"


def evidence(records: Iterable[Record]) -> list[Record]:
    """Return the records that may decide a claim.

    They are correct, had the GPU to themselves, are not of preset smoke, and are of the present case version or of
    other software. Processes of one run and point are one record.
    """
    return merged(
        record
        for record in records
        if record.is_evidence
        and record.preset != "smoke"
        and not record.is_contended
        and (record.case == PEER or is_present(record))
    )


def _missing(claim: Claim, query: Query) -> str:
    if claim.made_by:
        return f"of the newest records only run {claim.made_by} measured it; a later run must confirm it"
    if not all(map(points, query.filters)):
        return "no preset has this point"
    if (n_gpus := max(int(each.axes.get("n_ranks", 1)) for each in query.filters)) > 1:
        return f"not measured here; needs {n_gpus} GPUs"
    backends = dict.fromkeys(job.point["backend"] for job in points(*query.filters))
    return f"no record has it; `python -m bench claims --run` measures it where {' and '.join(backends)} can run"


# ------------------------------------------------------------------ our own claims


def own_claims(records: Iterable[Record]) -> list[Claim]:
    """Return claims of our best figure of each environment or implementation.

    Each comes from the second newest run with its point on one kind of hardware, and the newest run must confirm it. If
    no figure has been repeated, the claim comes from the single run.
    """
    ours = (
        record
        for record in evidence(records)
        if record.case != PEER and record.metrics and record.point.get("implementation", "ours") == "ours"
    )
    best: dict[tuple[Any, ...], tuple[bool, float, Claim]] = {}
    groups = groups_of(ours, lambda record: (point_key(record.case, _without_seed(record.point)), hardware_of(record)))
    for of_point in groups.values():
        if (found := _own_claim(of_point)) is None:
            continue
        claim, is_repeated = found
        case, point = of_point[0].case, of_point[0].point
        key = (case, *(point.get(axis) for axis in ("env", "implementation", "algorithm", "learner")))
        score = -claim.low if claim.direction == "lower" else claim.low
        if key not in best or (is_repeated, score) > best[key][:2]:
            best[key] = is_repeated, score, claim
    return [claim for *_, claim in best.values()]


def _without_seed(point: Point) -> dict[str, Any]:
    return {axis: value for axis, value in point.items() if axis != "seed"}


def _own_claim(records: Sequence[Record]) -> tuple[Claim, bool] | None:
    """Return a point's claim on one GPU or CPU, and if repeated.

    All seeds of `learn` together are one point; none may be missing.
    """
    case, point = records[0].case, _without_seed(records[0].point)
    absent = {axis: None for axis in _axes(case) if axis not in records[0].point}
    points = Filter(case=case, axes=point | absent)
    name, metric = next(iter((records[0].metrics or {}).items()))
    query, unit, direction = Query(quantity="Rate", of=points, metric=name), metric.unit, metric.direction
    if CASES[case].scope == "learn":
        seconds = "seconds_to_threshold"
        query = Query(quantity="Learned", of=points, metric=seconds, n_seeds=len(SEEDS))
        unit, direction = "s", "lower"
    newest = query.estimate(records)
    if newest is None:
        return None
    before = query.estimate([each for each in records if each.run_id != newest.run_id])
    claimed = before or newest
    claim = Claim(
        name=_named(case, point),
        source=OURS,
        says=f"made by run {claimed.run_id}",
        low=claimed.value,
        unit=unit,
        direction=direction,
        hardware=claimed.hardware,
        query=query,
        made_by=claimed.run_id,
    )
    return claim, before is not None


@cache
def _axes(case: str) -> tuple[str, ...]:
    return tuple(CASES[case].axes("full"))


def _named(case: str, point: Point) -> str:
    """Name a point in words that a narrow column can wrap."""
    words = []
    for axis, value in point.items():
        if isinstance(value, bool):
            words += [axis] if value else []
        else:
            words.append(value if isinstance(value, str) else f"{axis} {value:,}".removesuffix(".0"))
    return f"{case}: {', '.join(words)}"


# ------------------------------------------------------------------ points


def points(*filters: Filter) -> list[Job]:
    """Return the matching points of presets default and full, without duplicates."""
    found = {
        point_key(job.case.name, job.point): job
        for each in filters
        for job in _jobs(each.case)
        if each.matches_point(job.point)
    }
    return list(found.values())


@cache
def _jobs(case: str) -> list[Job]:
    presets: tuple[Preset, ...] = ("default", "full")
    of_name = {case: CASES[case]} if case in CASES else {}
    return [job for preset in presets for job in jobs(preset, cases=of_name)]


# ------------------------------------------------------------------ showing


def counts(judged: Sequence[Judged]) -> dict[str, int]:
    """Count the verdicts, decided ones first."""
    found = Counter(each.verdict for each in judged)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "hold": ("holds", "exceeds"),
    "do not hold": ("does not hold",),
    "are undecided": ("inconclusive",),
    "cannot be judged": ("not measurable here", "other hardware"),
    "are not measured": ("not measured yet", "not repeated yet"),
}
"""First words of the verdicts of each line of a summary."""


def summary(judged: Sequence[Judged]) -> list[str]:
    """Return a line for each group of verdicts.

    Of others' claims, and of this project's.
    """
    lines = []
    others = [each for each in judged if each.subject.source.startswith("WarpDrive")]
    for who, found in (
        ("WarpDrive's claims", others),
        ("This project's claims", [each for each in judged if each not in others]),
    ):
        for group, verdicts in GROUPS.items():
            names = [each.subject.name for each in found if each.verdict.startswith(tuple(verdicts))]
            listed = f": {'; '.join(names)}" if who == "WarpDrive's claims" and names else ""
            lines.append(f"{who} that {group}: {len(names)} of {len(found)}{listed}.")
    return lines


def for_report(records: Sequence[Record], comparisons: Sequence[Comparison] = ()) -> dict[str, Any] | None:
    """Return ``counts`` of verdicts and a ``table``; None without estimates.

    Our own claims are those of the published records.

    Raises:
        RecordError: A published record breaks the schema.
    """
    judged = judge_all((*CLAIMS, *own_claims(published())), records, comparisons)
    if not any(each.estimate for each in judged):
        return None
    return {"counts": counts(judged), "table": Table(columns=ON_A_PAGE, rows=judged)}


def _claimed(judged: Judged) -> str:
    return f"{judged.subject.figure} {judged.subject.unit}"


def quoted(claim: Claim) -> str:
    """Return the quotation of the source, and its section."""
    words = f"\N{LEFT DOUBLE QUOTATION MARK}{claim.quote}\N{RIGHT DOUBLE QUOTATION MARK}" if claim.quote else ""
    return ", ".join(filter(None, [words, claim.section]))


def _with_interval(found: Estimate | None) -> str:
    if found is None:
        return ""
    figures = (found.value, *found.interval)
    middle, below, above = (number(each) if math.isfinite(each) else "no bound" for each in figures)
    sign = UNSETTLED * any(record.has_unsettled_warm_up for record in found.records)
    return middle + sign + ("" if below == above else f" ({SPREADS[found.kind][0]}{below} to {above})")


def _figure(name: str, estimate: Callable[[Judged], Estimate | None]) -> Column[Judged]:
    return Column(
        name, lambda row: _with_interval(estimate(row)), lambda row: found.value if (found := estimate(row)) else None
    )


NAME: Final[Column[Judged]] = Column("claim", lambda each: each.subject.name, is_long=True)
CLAIMED: Final[Column[Judged]] = Column("claimed", _claimed, lambda each: each.subject.low)
MEASURED: Final = _figure("measured", lambda each: each.estimate)
RATIO: Final = _figure("measured / claimed", ratio_to_claim)
VERDICT: Final[Column[Judged]] = Column("verdict", lambda each: each.verdict, is_choice=True)
WHY: Final[Column[Judged]] = Column("reason for the verdict", lambda each: each.why, is_long=True)
QUOTE: Final[Column[Judged]] = Column("quotation from the source", lambda each: quoted(each.subject), is_long=True)
ON: Final[Column[Judged]] = Column("hardware of the claim", lambda each: each.subject.hardware, is_choice=True)
SOURCE: Final[Column[Judged]] = Column(
    "source", lambda each: each.subject.source, is_choice=True, link=lambda each: LINKS.get(each.subject.source, "")
)
ON_A_PAGE: Final[Sequence[Column[Judged]]] = (
    *(NAME, VERDICT, CLAIMED, MEASURED, RATIO, WHY),
    Column("what is measured", lambda each: each.subject.says, is_long=True),
    *(QUOTE, ON, SOURCE),
    Column("run", lambda each: each.estimate.run_id if each.estimate else "", is_choice=True),
)


IN_A_DOCUMENT: Final[Sequence[Column[Judged]]] = (
    SOURCE,
    Column("claim", lambda each: f"{each.subject.name}: {each.subject.says}"),
    QUOTE,
    CLAIMED,
    ON,
    replace(MEASURED, name="measured here"),
    replace(RATIO, name="measured / claimed"),
    *(VERDICT, WHY),
)
ON_A_TERMINAL: Final = (
    replace(NAME, width=44),
    replace(CLAIMED, value=None, width=24),
    replace(MEASURED, value=None, name="measured here", width=26),
    replace(RATIO, value=None, name="measured / claimed", width=26),
    replace(VERDICT, width=19),
    WHY,
)


def to_dict(judged: Judged) -> dict[str, Any]:
    """Return a judgement for JSON."""
    claim, estimate, ratio = judged.subject, judged.estimate, ratio_to_claim(judged)
    return {
        "name": claim.name,
        "source": claim.source,
        **claim.model_dump(include={"section", "quote", "reading", "says"}),
        "url": LINKS.get(claim.source),
        "claimed": claim.model_dump(include={"low", "high", "unit", "bound", "direction", "hardware"}),
        "verified_by": claim.query
        and {
            "quantity": claim.query.quantity,
            "records": [{"case": each.case, "axes": dict(each.axes)} for each in claim.query.filters],
        },
        "measured": estimate
        and {
            **_finite(estimate),
            "hardware": estimate.hardware,
            "run_id": estimate.run_id,
            "commands": list(dict.fromkeys(record.command for record in estimate.records)),
        },
        "ratio": ratio and _finite(ratio),
        "verdict": judged.verdict,
        "why": judged.why,
    }


def _finite(estimate: Estimate) -> dict[str, Any]:
    """Return value and spread for JSON; infinity becomes None."""
    figures = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
    return finite | {"interval_kind": estimate.kind}


def published() -> list[Record]:
    """Return the published records, the source of our own claims.

    Raises:
        RecordError: A record breaks the schema, or a set is not as its manifest says.
    """
    return read_reporting(published_files())


def published_files() -> list[Path]:
    """Return the folders of sets and archived sweeps."""
    return [*with_archived(SWEEPS), *newest_sets()]

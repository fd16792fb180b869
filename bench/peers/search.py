"""Search of a peer's fastest variant, done once per versions and kind of card.

Later sets search only the fastest variant and its neighbours. Either search takes one round of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..core.groups import groups_of
from ..core.machine import kind
from ..core.record import RESULTS, Comparison, Record
from ..judge.evidence import key, point_key, speed_of
from ..process.interleaved import Limit
from ..process.sweep import read_existing
from ..process.worker import WorkerError
from ..show.records import axes_except
from .catalogue import Peer, PeerJob
from .sides import FAILED_CHECK, Run, measure_each, versions

SEARCHES: Final = RESULTS / "searches"
"""Folder of searches, a file for each kind of machine; older ones are in the archive."""
LEAST_VARIANTS: Final = 6
"""Variants from which on a point's fastest one is searched."""
ONE_ROUND: Final = Limit(rounds=1, is_decided=lambda pair: True)
"""A search measures each variant in one round."""
SLOWED: Final = 1.25
"""Factor above which a peer that is slower than in its search, and more so than ours, is measured again."""


def search(
    jobs: Sequence[PeerJob], run: Run, files: Sequence[Path], at_once: int = 1
) -> Iterator[tuple[PeerJob, list[Record], Comparison | None]]:
    """Measure all variants, or the fastest known one and its neighbours.

    The earlier search is of the same versions and kind of machine.
    """
    todo = [job for group in groups(jobs) if is_searched(group) for job in _due(group, run, files)]
    return measure_each(todo, run, at_once, ONE_ROUND)


def _due(group: Sequence[PeerJob], run: Run, files: Sequence[Path]) -> list[PeerJob]:
    """Return the variants of a point that this commit's search lacks."""
    if (of := _versions(group[0], run)) is None:
        return []
    found = _found(group, of, run, files)
    if lacking := _lacking(group, found):
        return lacking
    near = {each for best in _fastest(found) for each in (best, *neighbours(group[0].peer, best))}
    here = [each for each in found if each.git.get("sha") == run.context.git.get("sha")]
    return _lacking([job for job in group if job.axes["variant"] in near], here)


def after_search(
    jobs: Sequence[PeerJob], run: Run, files: Sequence[Path], records: Sequence[Record] = ()
) -> list[PeerJob]:
    """Return the points to measure in full: of searched ones the fastest variants.

    A point whose variants cannot be measured keeps one, whose record has the reason.

    Args:
        jobs: The points.
        run: Settings.
        files: Files of the searches.
        records: Records of the set. Variants that failed their check there do not count.
    """
    chosen: list[PeerJob] = []
    failed = {key(each) for each in records if FAILED_CHECK in each.notes}
    for group in groups(jobs):
        if not is_searched(group):
            chosen += group
            continue
        of = _versions(group[0], run)
        measured = _searched(group, of, run, files) if of else []
        best = _fastest([each for each in measured if key(each) not in failed])
        chosen += [job for job in group if job.axes["variant"] in best] if measured else [group[0]]
    return chosen


def unsearched(jobs: Sequence[PeerJob], run: Run, files: Sequence[Path]) -> list[list[PeerJob]]:
    """Return the variants of each point whose search on this machine is incomplete.

    A ratio to one of them may flatter ours.
    """
    by_versions = ((group, _versions(group[0], run)) for group in groups(jobs) if is_searched(group))
    return [group for group, of in by_versions if of and _lacking(group, _found(group, of, run, files))]


def failure_reason(record: Record, records: Sequence[Record]) -> str:
    """Return why a point failed, and the variant that tables show instead.

    Args:
        record: Record of the point.
        records: Records of the set.
    """
    point = axes_except(record, "variant")
    passed = [each for each in records if each.is_evidence and axes_except(each, "variant") == point]
    if FAILED_CHECK not in record.notes or not passed:
        return str(record.reason)
    return f"{record.reason}; fastest variant that passed: {max(passed, key=speed_of).point['variant']}"


def is_untested(job: PeerJob, record: Record, jobs: Sequence[PeerJob], run: Run, files: Sequence[Path]) -> bool:
    """True if a point has a ratio to a variant that may not be the fastest.

    A peer that could not start when it should be searched may start later.

    Args:
        job: The point.
        record: Its record.
        jobs: All points, and so all its variants.
        run: Settings.
        files: Files of the searches.
    """
    group = next(each for each in groups(jobs) if job in each)
    of = record.notes.get("versions", {})
    return record.is_evidence and is_searched(group) and not _searched(group, of, run, files)


def if_not_slowed(job: PeerJob, record: Record, run: Run, files: Sequence[Path]) -> Record:
    """Return a point's record, as failed if its newest search was much faster.

    Something has then slowed the peer but not ours, such as a busy host that launches its kernels late.
    """
    of = record.notes.get("versions")
    alike = [
        each
        for each in (_found([job], of, run, files) if of else [])
        if each.is_evidence and (each.preset, each.case_version) == (record.preset, record.case_version)
    ]
    if not record.is_evidence or not alike:
        return record
    now, before = _costs(record), _costs(max(alike, key=lambda each: each.started_at))
    if not now or not before:
        return record
    theirs, ours = (later / earlier for later, earlier in zip(now, before, strict=True))
    if theirs <= SLOWED * max(1.0, ours):
        return record
    rule = f"must be at most {SLOWED:g} times slower than in its search (got {theirs:.3g} times)"
    reason = f"{job.peer.name}: {rule}; the host may be busy: measure it again, or search at this commit"
    return record.model_copy(update={"status": "failed", "reason": reason})


def _costs(record: Record) -> tuple[float, float] | None:
    """Return the peer's and our time per step or solution, s; None if it lacks one."""
    for name, power in (("env_steps_per_s", -1), ("total_s", 1)):
        theirs, ours = record.figure(name), record.figure(f"ours_{name}")
        if theirs and ours:
            return theirs.value**power, ours.value**power
    return None


def is_searched(group: Sequence[PeerJob]) -> bool:
    """True if a point has at least `LEAST_VARIANTS` variants."""
    return len(group) >= LEAST_VARIANTS


def neighbours(peer: Peer, variant: str) -> list[str]:
    """Return the variants that differ in one option.

    A number differs by one place among its values.
    """
    own = dict(peer.variants[variant])
    options = {name: dict(each) for name, each in peer.variants.items() if each.keys() == own.keys()}

    def steps(option: str, value: Any, other: Any) -> int:
        if isinstance(value, str):  # strings have no order
            return int(value != other)
        places = sorted({each[option] for each in options.values()})
        return abs(places.index(value) - places.index(other))

    def is_next(other: dict[str, Any]) -> bool:
        return sum(steps(option, value, other[option]) for option, value in own.items()) == 1

    return [name for name, each in options.items() if is_next(each)]


def groups(jobs: Sequence[PeerJob]) -> list[list[PeerJob]]:
    """Return jobs in groups that differ in the variant only."""

    def point(job: PeerJob) -> tuple[Any, ...]:
        return (job.peer.name, *((axis, value) for axis, value in job.axes.items() if axis != "variant"))

    return list(groups_of(jobs, point).values())


def _versions(job: PeerJob, run: Run) -> dict[str, Any] | None:
    """Return the versions of a peer; None if it cannot start."""
    try:
        return versions(job, run)
    except WorkerError:
        return None


def _found(group: Sequence[PeerJob], of: dict[str, Any], run: Run, files: Sequence[Path]) -> list[Record]:
    """Return a point's searched records of given versions on this kind of machine."""
    keys = {point_key(job.case, job.point) for job in group}
    return [
        record
        for record in read_existing(*files)[0]
        if key(record) in keys
        and (record.status == "failed" or record.notes.get("versions") == of)
        and kind(record.machine) == kind(run.context.machine)
    ]


def _searched(group: Sequence[PeerJob], of: dict[str, Any], run: Run, files: Sequence[Path]) -> list[Record]:
    """Return the evidence of a point's search; none if the search is incomplete."""
    found = _found(group, of, run, files)
    return [] if _lacking(group, found) else [each for each in found if each.is_evidence]


def _lacking(group: Sequence[PeerJob], found: Sequence[Record]) -> list[PeerJob]:
    there = {key(record) for record in found}
    return [job for job in group if point_key(job.case, job.point) not in there]


def _fastest(found: Sequence[Record]) -> set[str]:
    """Return the fastest variants by newest and by best records.

    A single round can be a slow one, so both are measured in full.
    """
    measured = sorted((each for each in found if each.is_evidence), key=lambda each: each.started_at)
    newest: dict[str, float] = {}
    best: dict[str, float] = {}
    for each in measured:
        variant, speed = str(each.point["variant"]), speed_of(each)
        newest[variant], best[variant] = speed, max(speed, best.get(variant, speed))
    return {max(speeds, key=lambda variant: speeds[variant]) for speeds in (newest, best) if speeds}

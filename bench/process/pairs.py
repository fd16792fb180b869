"""Pairs of sides, timed in interleaved rounds of new processes.

The place of a process in memory and on the cores makes it faster or slower throughout, which its own turns cannot show.
So each side of each round has its own process, and the interval of a ratio is over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..core.case import Job
from ..core.errors import NotComparable
from ..core.machine import ROOT, git_state
from ..core.point import Point, Preset, point_name
from ..core.record import (
    CaseVersion,
    Comparison,
    Record,
    append,
    leaving_out,
    read_all,
    read_comparisons,
    there,
)
from ..core.stats import Ratio, log_ratios, unpaired_p, unpaired_ratio
from .checkouts import revisions
from .rounds import TURNS, Round, Side, record_of
from .worker import Copy, Start, WorkerError

ROUNDS: Final[dict[Preset, int]] = {"smoke": 1, "default": 4, "full": 6, "paper": 6}
"""Rounds of each pair, if its sides name no other number. Fixed beforehand: to stop where it looks good would make the
interval too narrow."""
OUT_OF_MEMORY: Final = "Memory"
"""Part of the name of each error of torch, PyCUDA, Numba or Python that says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two records of the same work; see `ratio`."""

    name: str
    a: Record
    b: Record
    comparison: Comparison | None = None
    """None: the two were measured at different times."""
    mismatched: tuple[str, ...] = ()
    """Fields that should be the same and were allowed not to be."""

    @classmethod
    def of(cls, a: Record, b: Record, comparison: Comparison) -> Pair:
        """Return two records that were compared, by the name of the first point and where the second one differs."""
        return cls(name=_name(a.case, a.point, b.point), a=a, b=b, comparison=comparison)

    @property
    def in_turns(self) -> bool:
        """The two were measured in turns, or in rounds."""
        return self.comparison is not None

    @property
    def ratio(self) -> Ratio:
        """Time on side B over that on side A."""
        return self.comparison.ratio() if self.comparison else unpaired_ratio(self.a.unit_ns, self.b.unit_ns)

    def p_slower(self, by: float = 0.0) -> float:
        """Return the one-sided p-value for B being slower by more than a share."""
        return self.ratio.p_over(1 + by) if self.comparison else unpaired_p(self.a.unit_ns, self.b.unit_ns, 1 + by)

    @property
    def p_faster(self) -> float:
        """The one-sided p-value for A being slower."""
        return self.ratio.p_below() if self.comparison else unpaired_p(self.b.unit_ns, self.a.unit_ns)


@dataclass(frozen=True, slots=True)
class Kept:
    """Files that pairs are kept in as they are measured; what is stopped goes on with those that are there."""

    a: Path
    b: Path
    comparisons: Path

    @classmethod
    def of(cls, folder: Path, run_id: str) -> Kept:
        """Return the files of a run: the records of either side, and the comparisons."""
        return cls(*(folder / f"{run_id}-{name}.jsonl" for name in ("a", "b", "comparisons")))

    @property
    def files(self) -> list[Path]:
        """The files that there are."""
        return there(self.a, self.b, self.comparisons)

    def add(self, pair: Pair) -> None:
        """Keep both records, and then their comparison, so that there is none without them."""
        append(self.a, pair.a)
        append(self.b, pair.b)
        if pair.comparison:
            append(self.comparisons, pair.comparison)

    def pairs(self) -> list[Pair]:
        """Return the pairs that were compared."""
        with leaving_out() as cut:
            records = {record.id: record for record in read_all(self.files, cut)}
            comparisons = read_comparisons(self.files, cut)
        there = [each for each in comparisons if {each.a, each.b} <= records.keys()]
        return [Pair.of(records[each.a], records[each.b], each) for each in there]


@dataclass(frozen=True, slots=True)
class Measured:
    """Pairs, and the points that make none."""

    pairs: list[Pair] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Points that cannot run on a side, with the reason."""
    failed: list[str] = field(default_factory=list)
    """Points that are wrong or break."""


def measure_all(
    todo: Sequence[tuple[Side, Side]],
    preset: Preset,
    say: Callable[[str], None] = lambda text: None,
    kept: Kept | None = None,
    at_once: int = 1,
) -> Measured:
    """Measure pairs of sides; one that fails does not end the others.

    Args:
        todo: The sides.
        preset: How much is measured.
        say: Gets a line for each pair.
        kept: Files that get each pair; those that are there are not measured again.
        at_once: Most rounds that are set up at the same time, see `in_rounds`.

    Raises:
        NotComparable: The sides of a pair have different versions of the case, or other cards; or those that are kept
            are of other code.
    """
    found = Measured()
    there = {(pair.a.run_id, pair.b.run_id, pair.name): pair for pair in (kept.pairs() if kept else ())}
    pairs = dict[int, Pair]()
    missing = []
    for index, (a, b) in enumerate(todo):
        key = a.run_id, b.run_id, _name(a.case.name, a.point, b.point)
        if key in there:
            pairs[index] = there[key]
        else:
            missing.append(index)
    if pairs:
        say(f"{len(pairs)} of {len(todo)} pairs are kept")
    of_this_checkout = {side.run_id for index in missing for side in todo[index] if isinstance(side.start, Copy)}
    if of_this_checkout:  # before anything is measured that could not be kept
        state = git_state(ROOT)
        for record in (each for pair in there.values() for each in (pair.a, pair.b)):
            if record.run_id in of_this_checkout:
                _require_one_code(record, state)
    for n_done, (place, got) in enumerate(in_rounds([todo[index] for index in missing], preset, at_once, say), start=1):
        index = missing[place]
        name = point_name(todo[index][0].case.name, todo[index][0].point)
        if isinstance(got, WorkerError):
            (found.skipped if got.kind == "Skip" else found.failed).append(f"{name}: {got}")
            say(f"{n_done}/{len(missing)} {name}: {got}")
            continue
        for before in there.values():
            for old, new in ((before.a, got.a), (before.b, got.b)):
                if old.run_id == new.run_id:
                    _require_one_code(old, new.git)
        if kept:
            kept.add(got)
        pairs[index] = got
        say(f"{n_done}/{len(missing)} {name}: {got.ratio.value:.4f}")
    found.pairs.extend(pairs[index] for index in sorted(pairs))
    return found


def _require_one_code(before: Record, now: Mapping[str, Any]) -> None:
    """Make sure that a run goes on with the state of the code that it began with; raises NotComparable."""
    differ = [(before.git.get(name), now.get(name)) for name in ("sha", "diff_hash")]
    if any(was != is_ for was, is_ in differ):
        (sha, changes), (sha_now, changes_now) = zip(*differ, strict=True)
        got = f"then {sha} with changes {changes}, now {sha_now} with {changes_now}"
        raise NotComparable(f"compare: {before.run_id} must go on with the code it began with (got {got}); begin anew")


def measure_revisions(
    todo: Sequence[Job],
    names: tuple[str, str],
    preset: Preset,
    run_id: str,
    say: Callable[[str], None] = lambda text: None,
    kept: Kept | None = None,
    at_once: int = 1,
    rounds: Callable[[Job], int | None] = lambda job: None,
) -> Measured:
    """Measure points on the code of two revisions; see `measure_all`. ``rounds`` returns how many a point has.

    Raises:
        NotComparable: git does not know a revision, or the sides have different versions of a case.
        WorkerError: The code of a revision cannot be imported.
    """
    with revisions(*names) as starts:
        sides = [sides_of(run_id, job.case, (job.point, job.point), starts, rounds=rounds(job)) for job in todo]
        return measure_all(sides, preset, say, kept, at_once)


def sides_of(
    run_id: str,
    case: CaseVersion,
    points: tuple[Point, Point],
    starts: Sequence[Start],
    *,
    rounds: int | None = None,
) -> tuple[Side, Side]:
    """Return two sides of a case, whose runs are named after their letters."""
    a, b = (
        Side(case=case, point=point, start=start, run_id=f"{run_id}-{letter}", rounds=rounds)
        for letter, point, start in zip("ab", points, starts, strict=True)
    )
    return a, b


def in_rounds(
    todo: Sequence[tuple[Side, Side]],
    preset: Preset,
    at_once: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[int, Pair | WorkerError]]:
    """Yield the place of each pair and its two records with their comparison, or why there are none. Waits.

    Args:
        todo: The sides of each pair.
        preset: How much is measured.
        at_once: Most rounds whose processes are started and set up at the same time. Then they are timed one after
            the other, while all others wait, and checked and ended at the same time (ADR 0026). A pair that fails
            beside others, which may have had the memory, is measured again beside half as many, and at last by itself.
            If all rounds fail, or one for want of memory, half as many go on.
        say: Gets a line for each pair that is put off so.

    Raises:
        NotComparable: The sides of a pair have different versions of the case, or other cards.
    """
    for start in {side.start for sides in todo for side in sides if isinstance(side.start, Copy)}:
        start.prepare()
    rounds = [
        Round(sides, preset, number, place)
        for place, sides in enumerate(todo)
        for number in range(sides[0].rounds or ROUNDS[preset])
    ]
    done = dict[int, list[Round]]()
    again = []
    while rounds:
        batch, rounds = rounds[:at_once], rounds[at_once:]
        _do(batch)
        for each in batch:
            done.setdefault(each.place, []).append(each)
        failed = {each.place for each in batch if each.error}
        errors = [each.error for each in batch if each.error and each.error.kind != "Skip"]
        if len(errors) == len(batch) or any(OUT_OF_MEMORY in error.kind for error in errors):
            at_once = max(1, at_once // 2)
        rounds = [each for each in rounds if each.place not in failed]
        for place in sorted({each.place for each in batch} - {each.place for each in rounds}):
            of_pair = done.pop(place)
            error = next((each.error for each in of_pair if each.error), None)
            if error is None:
                yield place, _pair(todo[place], of_pair, preset, at_once)
            elif len(batch) > 1 and error.kind != "Skip":
                again.append(place)
                side = todo[place][0]
                say(f"put off, to be measured beside fewer: {point_name(side.case.name, side.point)}: {error}")
            else:
                yield place, error
    if again:
        for index, got in in_rounds([todo[place] for place in again], preset, max(1, at_once // 2), say):
            yield again[index], got


def _do(batch: Sequence[Round]) -> None:
    """Set rounds up at the same time, time one after the other, and end them at the same time."""
    with ThreadPoolExecutor(len(batch)) as pool:
        try:
            list(pool.map(Round.set_up, batch))
            for each in batch:
                each.time()
            list(pool.map(Round.finish, batch))
        except BaseException as error:  # a thread waits for a process that is set up, so that must end first
            for each in batch:
                each.close(error)
            raise


def _pair(sides: tuple[Side, Side], rounds: Sequence[Round], preset: Preset, at_once: int) -> Pair:
    a, b = (
        record_of(side, halves, preset, rounds[0].started, at_once)
        for side, halves in zip(sides, zip(*(each.halves for each in rounds), strict=True), strict=True)
    )
    return compared_in_rounds(a, b)


def compared_in_rounds(a: Record, b: Record) -> Pair:
    """Return the pair of two records, whose samples are those of rounds of `TURNS` turns, or one of each round."""
    one_each = a.process is not None and len(set(a.process)) == len(a.process)
    logs, n = (log_ratios(a.unit_ns, b.unit_ns), 1) if one_each else (log_ratios(a.turn_ns, b.turn_ns), TURNS)
    by_round = [logs[first : first + n] for first in range(0, len(logs), n)]
    return Pair.of(a, b, Comparison.of(a, b, by_round))


def _name(case: str, a: Point, b: Point) -> str:
    name = point_name(case, a)
    if a != b:
        name += " : " + ", ".join(f"{axis}={value}" for axis, value in b.items() if a.get(axis) != value)
    return name

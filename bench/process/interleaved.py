"""Pairs of sides, timed in interleaved rounds of new processes.

A process's place in memory and on the cores makes it faster or slower throughout. Its own turns cannot show this. So
each side of each round has its own process, and the interval of a ratio is over the rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from warpdrive_min.stopping import Stopped

from ..core.case import Job
from ..core.errors import NotComparable
from ..core.machine import ROOT, git_state
from ..core.measure import PLANS
from ..core.point import Point, Preset, point_name
from ..core.record import CaseVersion, Comparison, Record, append, existing_files
from ..core.stats import Ratio, log_ratios, ratio_of_processes, unpaired_ratio
from ..show.labels import plural
from .checkouts import revisions
from .pace import duration
from .rounds import TURNS, Round, Side, record_of
from .sweep import read_existing
from .worker import Copy, Start, WorkerError

ROUNDS: Final[dict[Preset, int]] = {"smoke": 1, "default": 4, "full": 6, "paper": 5}
"""Number of rounds per pair; a `Limit` replaces it."""
ROUNDS_OF_STARTS: Final[dict[Preset, int]] = {"smoke": 2, "default": 4, "full": 6, "paper": 3}
"""The same if a round is a process of each side, of many seconds; a ratio needs two."""
START_S: Final = 6.0
"""Typical time to start, set up and check both sides of a round, s."""
OUT_OF_MEMORY: Final = "Memory"
"""Part of the name of each out-of-memory error of all libraries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two records of the same work."""

    name: str
    a: Record
    b: Record
    comparison: Comparison | None = None
    """Interleaved comparison; None: the two were measured at different times, or once each."""
    mismatched: tuple[str, ...] = ()
    """Differing fields that were allowed."""
    quantity: Literal["time", "energy"] = "time"
    """Quantity that is compared."""

    @classmethod
    def of(cls, a: Record, b: Record, comparison: Comparison | None) -> Pair:
        """Return a pair, named by the first point and differing axes."""
        return cls(name=_name(a.case, a.point, b.point), a=a, b=b, comparison=comparison)

    @property
    def is_interleaved(self) -> bool:
        """True if both sides were timed interleaved."""
        return self.comparison is not None

    @property
    def n_rounds(self) -> int:
        """Number of interleaved rounds."""
        return len(self.comparison.log_ratios) if self.comparison else 0

    @property
    def ratio(self) -> Ratio:
        """Time of side B divided by time of side A."""
        if self.comparison:
            return self.comparison.ratio()
        sides = [side.by_process(side.unit_ns) for side in (self.a, self.b)]
        return ratio_of_processes(*sides) if self.n_processes > 1 else unpaired_ratio(self.a.unit_ns, self.b.unit_ns)

    @property
    def n_processes(self) -> int:
        """Number of processes that measured each side alone, at least."""
        return min(len(side.by_process(side.unit_ns)) for side in (self.a, self.b))

    @property
    def energy(self) -> Pair | None:
        """Comparison of both sides' joules; None unless two rounds have them."""
        a, b = (record.notes.get("joules_per_unit", []) for record in (self.a, self.b))
        if len(a) < 2 or not b:
            return None
        comparison = Comparison.of(self.a, self.b, [[each] for each in log_ratios(a, b)])
        return replace(self, name=f"{self.name}: energy", comparison=comparison, quantity="energy")

    def p_slower(self, by: float = 0.0) -> float:
        """One-sided p-value that B is slower by more than a fraction."""
        return self.ratio.p_over(1 + by)

    @property
    def p_faster(self) -> float:
        """One-sided p-value that A is slower."""
        return self.ratio.p_below()


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Output files of a paired run, which `--resume` reads."""

    a: Path
    b: Path
    comparisons: Path

    @classmethod
    def of(cls, folder: Path, run_id: str) -> PairFiles:
        """Return the files of a run: records of both sides and comparisons."""
        return cls(*(folder / f"{run_id}-{name}.jsonl" for name in ("a", "b", "comparisons")))

    @property
    def files(self) -> list[Path]:
        """Existing files."""
        return existing_files(self.a, self.b, self.comparisons)

    def add(self, pair: Pair) -> None:
        """Append both records, then their comparison."""
        append(self.a, pair.a)
        append(self.b, pair.b)
        if pair.comparison:
            append(self.comparisons, pair.comparison)

    def pairs(self) -> list[Pair]:
        """Return the finished pairs."""
        records, comparisons = read_existing(*self.files)
        by_id = {record.id: record for record in records}
        return [Pair.of(by_id[each.a], by_id[each.b], each) for each in comparisons if {each.a, each.b} <= by_id.keys()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """End of a pair's rounds, for a test that is valid at any number of rounds."""

    rounds: int | None
    """Maximum number of rounds of a pair; None: the preset's number, all of them."""
    is_decided: Callable[[Pair], bool]
    """True if a pair needs no further round."""
    fewest: int | None = None
    """Number of rounds that may decide a pair; None: the maximum."""
    end: float = math.inf
    """Time of `time.monotonic` after which no round starts."""

    @property
    def has_passed(self) -> bool:
        """True if the time is over."""
        return time.monotonic() > self.end

    def is_reached(self, pair: Pair) -> bool:
        """True if the pair is decided or has all its rounds."""
        return self.rounds is None or pair.n_rounds >= self.rounds or self.is_decided(pair)


@dataclass(slots=True)
class PairResults:
    """Measured pairs, and points without a pair."""

    pairs: list[Pair] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Points that a side cannot run, with the reason."""
    failed: list[str] = field(default_factory=list)
    """Points that are wrong or fail, with the reason."""
    missing: list[str] = field(default_factory=list)
    """Points without a pair when the time was over."""
    stopped: Stopped | None = None
    """Signal that ended the measurement."""


def measure_all(
    todo: Sequence[tuple[Side, Side]],
    preset: Preset,
    say: Callable[[str], None] = lambda text: None,
    outputs: PairFiles | None = None,
    at_once: int = 1,
    limit: Limit | None = None,
) -> PairResults:
    """Measure pairs of sides; a failed pair does not end the others.

    Args:
        todo: The sides.
        preset: Lengths of blocks and number of rounds.
        say: Gets a line with the number of rounds, and one for each pair, with the remaining minutes.
        outputs: Output files; pairs in them are not measured again.
        at_once: Maximum number of rounds that are set up at once, see `measure_rounds`.
        limit: End of a pair's rounds; None: the preset's number. A pair that it, or a signal, cuts short is returned,
            but not stored.

    Raises:
        Stopped: A signal, without a limit.
        NotComparable: Two sides have different case versions or GPUs, or finished pairs are of other code.
    """
    found = PairResults()
    finished = {(pair.a.run_id, pair.b.run_id, pair.name): pair for pair in (outputs.pairs() if outputs else ())}
    keys = [(a.run_id, b.run_id, _name(a.case.name, a.point, b.point)) for a, b in todo]
    pairs = {index: finished[key] for index, key in enumerate(keys) if key in finished}
    missing = [index for index, key in enumerate(keys) if key not in finished]
    if pairs:
        say(f"{len(pairs)} of {len(todo)} pairs were measured before")
    of_this_checkout = {side.run_id for index in missing for side in todo[index] if isinstance(side.start, Copy)}
    if of_this_checkout:  # before measuring anything that could not be stored
        state = git_state(ROOT)
        for record in (each for pair in finished.values() for each in (pair.a, pair.b)):
            if record.run_id in of_this_checkout:
                require_one_code(record, state)
    left = [todo[index] for index in missing]
    if left:
        say(_size(left, preset, limit))
    done, start = set[int](), time.monotonic()
    measured = measure_rounds(left, preset, at_once, say, limit)
    try:
        for n_done, (place, got) in enumerate(measured, start=1):
            index = missing[place]
            name = point_name(todo[index][0].case.name, todo[index][0].point)
            done.add(index)
            if isinstance(got, WorkerError):
                (found.skipped if got.kind == "Skip" else found.failed).append(f"{name}: {got}")
                say(f"{n_done}/{len(missing)} {name}: {got}")
                continue
            for before in finished.values():
                for old, new in ((before.a, got.a), (before.b, got.b)):
                    if old.run_id == new.run_id:
                        require_one_code(old, new.git)
            if outputs and (limit is None or limit.is_reached(got)):
                outputs.add(got)
            pairs[index] = got
            ratio = f"{got.ratio.value:.4f} x the time of A in {got.n_rounds} round{'s' * (got.n_rounds > 1)}"
            now, end = time.monotonic(), limit.end if limit else math.inf
            left_s = min((now - start) / n_done * (len(missing) - n_done), end - now)
            more = f"; about {left_s / 60:.0f} minutes left" if left_s >= 60 else ""
            say(f"{n_done}/{len(missing)} {name}: B takes {ratio}{more}")
    except Stopped as signalled:
        if limit is None:
            raise
        found.stopped = signalled
    found.pairs.extend(pairs[index] for index in sorted(pairs))
    found.missing.extend(keys[index][2] for index in missing if index not in done)
    return found


def _size(todo: Sequence[tuple[Side, Side]], preset: Preset, limit: Limit | None) -> str:
    """Return the number of pairs and rounds, and a rough duration.

    Rounds that are starts of processes have none.
    """
    rounds = [_n_rounds(a, preset, limit) for a, _ in todo]
    most = sum(rounds)
    fewest = sum(min(n, (limit and limit.fewest) or n) for n in rounds)
    size = f"{plural(len(todo), 'pair')} in {plural(most, 'round')}" + f", {fewest} if all are quiet" * (fewest < most)
    left_s = limit.end - time.monotonic() if limit else math.inf
    if left_s <= 0 or any(a.case.scope == "startup" for a, _ in todo):
        return size
    each_s = START_S + 2 * PLANS[preset].warm_up_cap_s
    least_s, most_s = (min(n * each_s, left_s) for n in (fewest, most))
    times = f"{duration(least_s)} to {duration(most_s)}" if least_s < most_s else duration(most_s)
    return f"{size}: {times}{', by the time limit' * (most_s == left_s)}"


def require_one_code(before: Record, now: Mapping[str, Any]) -> None:
    """Raise NotComparable unless a run continues on the code it began with."""
    differ = [(before.git.get(name), now.get(name)) for name in ("sha", "diff_hash")]
    if any(was != is_ for was, is_ in differ):
        (sha, changes), (sha_now, changes_now) = zip(*differ, strict=True)
        got = f"then {sha} with changes {changes}, now {sha_now} with {changes_now}"
        raise NotComparable(
            f"compare: {before.run_id} must continue on the code it started with (got {got}); start a new run"
        )


def measure_revisions(
    todo: Sequence[Job],
    names: tuple[str, str],
    preset: Preset,
    run_id: str,
    say: Callable[[str], None] = lambda text: None,
    outputs: PairFiles | None = None,
    at_once: int = 1,
    limit: Limit | None = None,
    energy: Callable[[Job], bool] = lambda job: False,
) -> PairResults:
    """Measure points on the code of two revisions; see `measure_all`.

    On a GPU the rounds of points for which ``energy`` is true also measure it.

    Raises:
        NotComparable: git does not know a revision, or the sides have different versions of a case.
        WorkerError: The code of a revision cannot be imported.
    """
    with revisions(*names) as starts:
        sides = [
            sides_of(run_id, job.case, (job.point, job.point), starts, has_energy=energy(job) and preset != "smoke")
            for job in todo
        ]
        return measure_all(sides, preset, say, outputs, at_once, limit)


def sides_of(
    run_id: str,
    case: CaseVersion,
    points: tuple[Point, Point],
    starts: Sequence[Start],
    *,
    has_energy: bool = False,
) -> tuple[Side, Side]:
    """Return two sides of a case, with runs named after their letters."""
    a, b = (
        Side(case=case, point=point, start=start, run_id=f"{run_id}-{letter}", has_energy=has_energy)
        for letter, point, start in zip("ab", points, starts, strict=True)
    )
    return a, b


def measure_rounds(
    todo: Sequence[tuple[Side, Side]],
    preset: Preset,
    at_once: int = 1,
    say: Callable[[str], None] = lambda text: None,
    limit: Limit | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Pair | WorkerError]]:
    """Yield each pair's index and its records and comparison, or error. Waits.

    With several rounds at once, their processes start and set up together, are timed one by one, and are checked and
    ended together (ADR 0026). A pair that fails this way may have run out of memory: it is repeated with half the
    number of rounds at once, and finally alone. If all rounds fail, or one runs out of memory, half the number
    continues.

    Args:
        todo: The sides of each pair.
        preset: Lengths of blocks and number of rounds.
        at_once: Maximum number of rounds that are set up at once.
        say: Gets a line for each postponed pair.
        limit: End of a pair's rounds; None: the preset's number. When its time is over, pairs with fewer than two
            rounds are left out.
        after_batch: Called when the pairs that ended with a batch have been yielded; may raise to end the run.

    Raises:
        Stopped: A signal; pairs of two rounds and more have been yielded.
        NotComparable: Two sides have different case versions or GPUs.
    """
    for start in {side.start for sides in todo for side in sides if isinstance(side.start, Copy)}:
        start.prepare()
    rounds = [
        Round(sides, preset, number, place)
        for place, sides in enumerate(todo)
        for number in range(_n_rounds(sides[0], preset, limit))
    ]
    done = dict[int, list[Round]]()
    again, stopped = list[int](), None
    while rounds and not stopped and not (limit and limit.has_passed):
        batch, rounds = rounds[:at_once], rounds[at_once:]
        try:
            _run_batch(batch, limit)
        except Stopped as signalled:  # rounds that the signal ended have not failed
            stopped, rounds = signalled, [*(each for each in batch if not each.is_finished), *rounds]
        batch = [each for each in batch if each.is_finished or (each.error and not stopped)]
        for each in batch:
            done.setdefault(each.place, []).append(each)
        failed = {each.place for each in batch if each.error}
        errors = [each.error for each in batch if each.error and each.error.kind != "Skip"]
        if len(errors) == len(batch) or any(OUT_OF_MEMORY in error.kind for error in errors):
            at_once = max(1, at_once // 2)
        over = failed | (_decided(done, limit, preset, at_once) if limit and limit.rounds else set())
        rounds = [each for each in rounds if each.place not in over]
        ended = sorted({each.place for each in batch} - {each.place for each in rounds})
        for place in ended:
            of_pair = done.pop(place)
            error = next((each.error for each in of_pair if each.error), None)
            if error is None:
                yield place, _pair(of_pair, preset, at_once)
            elif len(batch) > 1 and error.kind != "Skip":
                again.append(place)
                side = todo[place][0]
                say(f"postponed, to be set up with fewer others: {point_name(side.case.name, side.point)}: {error}")
            else:
                yield place, error
        if ended and not stopped:
            after_batch()
    if again and not stopped:
        left, n = [todo[place] for place in again], max(1, at_once // 2)
        for index, got in measure_rounds(left, preset, n, say, limit, after_batch):
            yield again[index], got
    for place, of_pair in done.items():  # the time is over
        if len(of_pair) > 1 and not any(each.error for each in of_pair):
            yield place, _pair(of_pair, preset, at_once)
    if stopped:
        raise stopped


def _decided(done: Mapping[int, list[Round]], limit: Limit, preset: Preset, at_once: int) -> set[int]:
    """Return the pairs that are decided by their rounds so far."""
    tested = {place: rounds for place, rounds in done.items() if len(rounds) > 1 and not any(r.error for r in rounds)}
    return {place for place, rounds in tested.items() if limit.is_reached(_pair(rounds, preset, at_once))}


def _n_rounds(side: Side, preset: Preset, limit: Limit | None) -> int:
    return (limit and limit.rounds) or (ROUNDS_OF_STARTS if side.case.scope == "startup" else ROUNDS)[preset]


def _run_batch(batch: Sequence[Round], limit: Limit | None) -> None:
    """Set up rounds together, time them one by one, end them together.

    When the time is over, or on a signal, rounds that are not timed yet end at once.
    """
    timed = list[Round]()
    ending: list[Future[None]] | None = None
    with ThreadPoolExecutor(len(batch)) as pool:

        def finish(error: BaseException) -> None:
            nonlocal ending
            for each in batch:
                if each not in timed:
                    each.close(error)
            if ending is None:  # else a signal came while they ended
                ending = []
                ending.extend(pool.submit(each.finish) for each in timed)
            for part in ending:
                part.result()

        try:
            list(pool.map(Round.set_up, batch))
            for each in batch:
                each.time()
                timed.append(each)
                if limit and limit.has_passed:
                    break
            finish(TimeoutError("the time is over"))
        except BaseException as error:  # threads wait for processes in set-up: these must end first
            if isinstance(error, Stopped) and timed:
                with suppress(Exception):
                    finish(error)
            for each in batch:
                each.close(error)
            raise


def _pair(rounds: Sequence[Round], preset: Preset, at_once: int) -> Pair:
    return pair_of_rounds(*(record_of(rounds, index, preset, at_once) for index in (0, 1)))


def pair_of_rounds(a: Record, b: Record) -> Pair:
    """Return the pair of two records with `TURNS` turns or one sample per round.

    A single sample of each has no spread, so there is no comparison.
    """
    one_each = a.process is not None and len(set(a.process)) == len(a.process)
    logs, n = (log_ratios(a.unit_ns, b.unit_ns), 1) if one_each else (log_ratios(a.turn_ns, b.turn_ns), TURNS)
    by_round = [logs[first : first + n] for first in range(0, len(logs), n)]
    return Pair.of(a, b, Comparison.of(a, b, by_round) if len(logs) > 1 else None)


def _name(case: str, a: Point, b: Point) -> str:
    name = point_name(case, a)
    if a != b:
        name += " : " + ", ".join(f"{axis}={value}" for axis, value in b.items() if a.get(axis) != value)
    return name

"""Pairs of sides that are measured in turns, A B B A, in rounds of new processes.

Where a process happens to lie in memory and on the cores makes it faster or slower throughout, which its own turns
cannot show. So each side of each round is a process of its own, and what a ratio's interval is over are the rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from warpdrive_min.checkout import GitError, commit_of, git

from ..core.case import Job
from ..core.errors import NotComparable
from ..core.machine import ROOT, Bystanders, git_state, loop_ns
from ..core.measure import PLANS, rates
from ..core.point import Check, Facts, Measurement, Point, Preset, point_name
from ..core.record import (
    CaseVersion,
    Comparison,
    Context,
    Host,
    Record,
    StartTime,
    append,
    leaving_out,
    read_all,
    read_comparisons,
    there,
)
from ..core.stats import Ratio, log_ratios, unpaired_p, unpaired_ratio
from . import server
from .worker import Answering, Message, Worker, WorkerError, prepare_copies

ROUNDS: Final[dict[Preset, int]] = {"smoke": 1, "default": 4, "full": 6, "paper": 6}
"""Rounds of each pair, if its sides name no other number. Fixed beforehand: to stop where it looks good would make the
interval too narrow."""
TURNS: Final = 3
"""Turns A B B A of a round."""
MORE: Final = 7
"""Times that a round may take as many turns again, if the fastest block of a side is to count and none confirms it."""
UNDISTURBED: Final = 0.02
"""Share by which a second block may be slower than the fastest one, which it confirms."""
OUT_OF_MEMORY: Final = "Memory"
"""Part of the name of each error of torch, PyCUDA, Numba or Python that says so."""
WORKING_TREE: Final = "."
"""Stands for the present checkout, as it is, in place of a revision."""


Start = Callable[[], AbstractContextManager[Answering]]
"""Starts a process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a pair."""

    case: CaseVersion
    point: Point
    start: Start = server.start
    """Starts the process of a round."""
    run_id: str
    """Run of its record."""
    taken: str = "in turns with another side"
    command: str | None = None
    """Repeats the point; None: the sweep does."""
    rounds: int | None = None
    """Rounds of its pair; None: as many as the preset has."""
    block_s: float = 0.0
    """Time for which samples of a block of its pair are taken, s; there are two at least. Unless it is 0, the fastest
    block of either side counts for a whole round, which goes on until a second one is nearly as fast."""


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
    of_this_checkout = {side.run_id for index in missing for side in todo[index] if side.start == server.start}
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
    starts: Sequence[Start] = (server.start, server.start),
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
    if any(side.start == server.start for sides in todo for side in sides):
        prepare_copies()
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
        _record(side, halves, preset, rounds[0].started, at_once)
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


# ------------------------------------------------------------------ one round


@dataclass(frozen=True, slots=True)
class Half:
    """One side of a round."""

    reply: Message
    """Facts of the process and of the point in it."""
    samples: list[Message]
    end: Message
    """Its last check, and the host."""
    others_busy: float | None
    """Share of the host's cores that others kept busy while both sides were timed."""
    loop_ns: tuple[int, int]
    """Times of one loop of Python before and after, see `machine.loop_ns`."""


class Round:
    """A process for each side, which are set up, timed in turns, and checked again.

    Of two processes the one that starts second can be slower throughout. Sides start first in turn, so that this
    cancels over the rounds as a drift does.

    Where both sides can go back, the four blocks of a turn start from the same state, and each turn starts where the
    one before has ended, the first of a round where the round before has: a load that follows the episode, or what was
    learned, is then the same on both sides. Sides of one point do as many runs in a block: the same steps.

    Args:
        sides: Both sides.
        preset: How much is measured.
        number: Number among the rounds of its pair, from 0.
        place: Place of its pair among all.
    """

    def __init__(self, sides: tuple[Side, Side], preset: Preset, number: int, place: int = 0) -> None:
        self.number, self.place = number, place
        self.error: WorkerError | None = None
        """Why a side could not be measured; what is left of the round is not done then."""
        self.halves: tuple[Half, ...] = ()
        """Both sides in their order, once the round is finished."""
        self._plan = PLANS[preset]
        self._order = sides[::-1] if number % 2 else sides
        self._processes = ExitStack()

    def set_up(self) -> None:
        """Start the processes, one after the other, and set both sides up at the same time."""
        self.started = StartTime()
        with self._noting():
            self._there = [self._processes.enter_context(side.start()) for side in self._order]

            def reply(each: Answering, side: Side) -> Message:
                return {**each.ask("describe"), **each.ask("set_up", case=side.case.name, point=dict(side.point))}

            self._replies = on_both(reply, self._there, self._order)
            first, second = self._order
            if first.case.name == second.case.name:  # a peer has another one, with versions of its own
                _require_one_version(*self._replies)
            _require_one_card(*self._replies)

    def time(self) -> None:
        """Warm both sides up, and time them in turns, unless one could not be set up."""
        if self.error:
            return
        with self._noting():
            goes_back = all(reply["has_snapshot"] for reply in self._replies)
            lengths = {"sample_s": self._plan.sample_s, "warm_up_cap_s": self._plan.warm_up_cap_s}
            for each, reply in zip(self._there, self._replies, strict=True):
                reply.update(each.ask("warm_up", **lengths, goes_back=goes_back), goes_back=goes_back)
            if goes_back and self._order[0].point == self._order[1].point:
                most = max(reply["runs_per_sample"] for reply in self._replies)
                self._replies = [{**reply, "runs_per_sample": most} for reply in self._replies]
            done = self.number * TURNS if goes_back else 0
            for each, reply in zip(self._there, self._replies, strict=True):
                each.ask("begin", runs=reply["runs_per_sample"], n_blocks=done)
            others, loop = Bystanders(), loop_ns()
            self._samples = self._turns()
            self._host = others.busy(), (loop, loop_ns())

    def _turns(self) -> tuple[list[Message], list[Message]]:
        block_s, sides = max(side.block_s for side in self._order), (list[Message](), list[Message]())
        for _ in range(1 + MORE):
            for samples, more in zip(sides, abba_turns(self._there[0], self._there[1], TURNS, block_s), strict=True):
                samples.extend(more)
            if not block_s:
                return sides
            if all(map(_is_undisturbed, sides)):
                break
        first, second = ({**_fastest(samples), "is_undisturbed": _is_undisturbed(samples)} for samples in sides)
        return [first], [second]

    def finish(self) -> None:
        """Check both sides again and end their processes, unless one has failed.

        Twins depend on the code alone, so those of the first round stand for all.
        """
        if self.error:
            return
        with self._noting():
            ends = on_both(lambda each: each.ask("finish", with_twin=self.number == 0), self._there)
            halves = [Half(*each, *self._host) for each in zip(self._replies, self._samples, ends, strict=True)]
            self.halves = tuple(halves[::-1] if self.number % 2 else halves)
            self._processes.close()

    def close(self, error: BaseException) -> None:
        """End the processes, at once if they are stopped."""
        self._processes.__exit__(type(error), error, None)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Do a part of the round; keeps the error of a side, and ends both."""
        try:
            yield
        except WorkerError as error:
            self.error = error
            self.close(error)


def on_both(do: Callable[..., Message], *sides: Sequence[Any]) -> list[Message]:
    """Do something on both sides at the same time; returns both results, or raises what the first one raised."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(do, *sides))


def _require_one_version(a: Message, b: Message) -> None:
    versions = sorted([a["case_version"], b["case_version"]])
    if versions[0] != versions[1]:
        raise NotComparable(f"compare: the sides must time the same (got case versions {versions})")


def _require_one_card(a: Message, b: Message) -> None:
    cards = [each["machine"].get("gpu_uuid_hash") for each in (a, b) if each["facts"]["device"] == "cuda"]
    if len(cards) == 2 and cards[0] != cards[1]:
        raise NotComparable(f"compare: the sides must share a card (got {cards[0]} and {cards[1]}); show both one")


def abba_turns(a: Answering, b: Answering, n: int, block_s: float = 0.0) -> tuple[list[Message], list[Message]]:
    """Time blocks A B B A, ``n`` times over; returns the samples of each side in their order.

    A block is the fastest of two samples, or of as many as ``block_s`` has time for: the first after a change of sides
    finds the caches full of the other one's, and what now and then interrupts a machine only ever adds to a time.
    """
    samples: tuple[list[Message], list[Message]] = ([], [])
    for turn in range(n):
        if turn:
            for each in (b, a):  # A goes on last, as it is first again
                each.ask("go_on")
        for side in (0, 1, 1, 0):
            end = time.monotonic() + block_s
            taken = [(a, b)[side].ask("sample") for _ in range(2)]
            while time.monotonic() < end:
                taken.append((a, b)[side].ask("sample"))
            samples[side].append(_fastest(taken))
    return samples


def _is_undisturbed(samples: Sequence[Message]) -> bool:
    """Say whether a second sample was nearly as fast as the fastest one: it was no accident."""
    first, second = sorted(sample["wall_ns"] for sample in samples)[:2]
    return bool(second <= (1 + UNDISTURBED) * first)


def _fastest(samples: Sequence[Message]) -> Message:
    return min(samples, key=lambda sample: sample["wall_ns"])


def _record(side: Side, halves: Sequence[Half], preset: Preset, started: StartTime, at_once: int) -> Record:
    reply, samples = halves[0].reply, [sample for half in halves for sample in half.samples]
    facts = Facts(**{**reply["facts"], "device": torch.device(reply["facts"]["device"])})
    before = [Check(**half.reply["check"]) for half in halves]
    after = [Check(**half.end["check"]) for half in halves]
    devices = tuple(sample["device_ns"] for sample in samples if sample["device_ns"] is not None)
    undisturbed = [sample["is_undisturbed"] for sample in samples if "is_undisturbed" in sample]
    seen = Measurement(
        samples_ns=tuple(sample["wall_ns"] for sample in samples),
        device_ns=devices or None,
        runs_per_sample=reply["runs_per_sample"],
        stop_reason=f"{len(halves)} round{'s' * (len(halves) > 1)} of {TURNS} turns A B B A"
        + (" or more, of each the fastest block" if undisturbed else ""),
        warm_up=min((half.reply["warm_up"] for half in halves), key=lambda each: bool(each["settled"])),
        before=max(before, key=lambda check: check.max_error),
        after=max(after, key=lambda check: check.max_error),  # of equals the first, which has the twin
        process=tuple(number for number, half in enumerate(halves) for _ in half.samples),
        notes={
            "turns_from_one_state": bool(reply["goes_back"]),
            **({"at_once": at_once} if at_once > 1 else {}),
            **({"undisturbed_rounds": sum(undisturbed)} if undisturbed else {}),
        },
        unread={
            "roofline": "a comparison is of times alone",
            "telemetry": "two processes take turns on the device: each would find the other foreign",
        },
    )
    context = Context(
        run_id=side.run_id,
        preset=preset,
        **{name: reply[name] for name in ("machine", "git", "dependencies_hash")},
    )
    case = replace(side.case, version=reply["case_version"], scope=reply["scope"])
    return Record.of(
        case,
        side.point,
        context,
        started=started,
        facts=facts,
        seen=replace(seen, metrics=rates(seen, facts.work)),
        host=_host(halves),
        taken=side.taken,
        command=side.command,
    )


def _host(halves: Sequence[Half]) -> Host:
    """Return the host of the round in which others kept it busiest, with the times of the loop in all rounds."""
    busiest = max(halves, key=lambda half: (half.others_busy or 0.0, half.end["host"]["load_before"] or 0.0))
    loops = [time for half in halves for time in half.loop_ns]
    return Host(**busiest.end["host"] | {"others_busy": busiest.others_busy, "loop_ns": [min(loops), max(loops)]})


# ------------------------------------------------------------------ revisions


@contextmanager
def revisions(*names: str, root: Path = ROOT) -> Iterator[list[Start]]:
    """Yield what starts a process on the code of each git revision; see `checkouts`."""
    with checkouts(*names, root=root) as trees:
        yield [partial(Worker.on, tree) for tree in trees]


@contextmanager
def checkouts(*names: str, root: Path = ROOT) -> Iterator[list[Path]]:
    """Yield a folder with the code of each git revision, `WORKING_TREE` being the checkout itself.

    Raises:
        NotComparable: git does not know a revision.
    """
    with tempfile.TemporaryDirectory(prefix="revisions-") as folder:
        trees = [root if name == WORKING_TREE else Path(folder, str(index)) for index, name in enumerate(names)]
        for name, tree in zip(names, trees, strict=True):
            if name != WORKING_TREE:
                _check_out(root, name, tree)
        yield trees


def _check_out(root: Path, name: str, tree: Path) -> None:
    """Check a revision out into a repository of its own, which only borrows the objects of the one that has it.

    Unlike a worktree it leaves nothing in that one, whatever becomes of this process.
    """
    try:
        commit = commit_of(name, root)
        objects = root / git("rev-parse", "--git-path", "objects", root=root)
        git("init", "--quiet", "--template=", str(tree), root=root)
        alternates = tree / ".git" / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text(f"{objects.resolve()}\n")
        git("checkout", "--quiet", "--detach", commit, root=tree)
    except GitError as error:
        rule = "must be a file or folder that is there, or a revision of git"
        raise NotComparable(f"{name} {rule} (got: {error})") from error

"""One round of a pair: two new processes, timed in interleaved A B B A turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from ..core.errors import NotComparable
from ..core.machine import Bystanders, loop_ns
from ..core.measure import PLANS, Measurement, rates
from ..core.point import Check, Facts, Point, Preset
from ..core.record import CaseVersion, Context, Host, Record, StartTime
from .worker import Answering, Message, Start, WorkerError

TURNS: Final = 3
"""Turns A B B A of a round."""
MORE: Final = 7
"""Times that a round may take as many turns again, if the fastest block of a side is to count and none confirms it."""
UNDISTURBED: Final = 0.02
"""Share by which a second block may be slower than the fastest one, which it confirms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a pair."""

    case: CaseVersion
    point: Point
    start: Start
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


def record_of(side: Side, halves: Sequence[Half], preset: Preset, started: StartTime, at_once: int) -> Record:
    """Return the record of one side of all rounds."""
    import torch  # noqa: PLC0415  (slow to import)

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

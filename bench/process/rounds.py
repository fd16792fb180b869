"""Round of a pair: two new processes, timed in A B B A turns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Final

from ..core.errors import NotComparable
from ..core.machine import OtherProcesses, loop_ns
from ..core.measure import PLANS, WATCH_S, measurement_of_starts, rates
from ..core.point import Check, Facts, Measurement, Point, Preset
from ..core.record import CaseVersion, Context, Host, Record, StartTime
from .worker import Message, RequestHandler, Start, WorkerError

TURNS: Final = 3
"""Number of A B B A turns in a round."""
MORE: Final = 7
"""Maximum repetitions until a second block confirms the fastest one."""
UNDISTURBED: Final = 0.02
"""Relative slow-down of a second block that still confirms the fastest one."""


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
    """Command that repeats the point; None: the sweep's."""
    block_s: float = 0.0
    """Time for sampling a block, s; at least two samples.

    Above 0 only the fastest block of a round counts, and the round continues until a second block confirms it."""
    has_energy: bool = False
    """True if rounds on a GPU also measure energy, one side after the other."""


@dataclass(eq=False, slots=True)
class RoundSide:
    """One side of a round: its process and the answers."""

    side: Side
    process: RequestHandler
    reply: Message = field(default_factory=dict)
    """Properties of the process and of its point."""
    samples: list[Message] = field(default_factory=list)
    joules: float | None = None
    """Energy per unit of work; None: not measured."""
    end: Message = field(default_factory=dict)
    """Last check, and the host."""

    def set_up(self) -> None:
        """Set up the point in its process."""
        point = {"case": self.side.case.name, "point": dict(self.side.point)}
        self.reply = {**self.process.ask("describe"), **self.process.ask("set_up", **point)}


def _phase(do: Callable[[Round], None]) -> Callable[[Round], None]:
    """Make a method do nothing after an error, and store its own."""

    def part(self: Round) -> None:
        if self.error:
            return
        try:
            do(self)
        except WorkerError as error:
            self.error = error
            self.close(error)

    return wraps(do)(part)


class Round:
    """Two processes, set up, timed in interleaved turns, and checked again.

    The process that starts second can be slower throughout. Sides start first in alternate rounds, so this cancels, as
    drift does. If both sides have snapshots, the four blocks of a turn start from one state. Each turn starts where the
    last one ended, across rounds. Then load that follows the episode or the training is equal on both sides. Sides of
    one point run equally often in a block, so they do the same steps. If the work is to start a process, a round starts
    one for each side.

    Args:
        sides: Both sides.
        preset: Lengths of blocks and warm-ups.
        number: Index among the rounds of its pair, from 0.
        place: Index of its pair.
    """

    def __init__(self, sides: tuple[Side, Side], preset: Preset, number: int, place: int = 0) -> None:
        self.number, self.place = number, place
        self.error: WorkerError | None = None
        """Error of a side; it ends the round."""
        self.is_finished = False
        """True after `finish`, without an error."""
        self.others_busy: float | None = None
        """Share of the host's cores that others used during the timing."""
        self.loop_ns: tuple[int, int] = (0, 0)
        """Times of one Python loop before and after, see `machine.loop_ns`."""
        self._plan, self._sides, self._processes = PLANS[preset], sides, ExitStack()

    @property
    def halves(self) -> list[RoundSide]:
        """Both halves, in the order of the sides."""
        return self._order[::-1] if self.number % 2 else self._order

    @_phase
    def set_up(self) -> None:
        """Start processes one by one, and set up both sides at once."""
        self.started = StartTime()
        sides = self._sides[::-1] if self.number % 2 else self._sides
        self._order = [RoundSide(side, self._processes.enter_context(side.start())) for side in sides]
        on_both(RoundSide.set_up, self._order)
        first, second = (each.reply for each in self._order)
        if sides[0].case.name == sides[1].case.name:  # a peer's case has its own versions
            _require_one_version(first, second)
        _require_one_card(first, second)

    @_phase
    def time(self) -> None:
        """Warm up both sides and time them in interleaved turns."""
        if all(each.reply.get("is_cold_start") for each in self._order):
            self._start_processes()
            return
        goes_back = all(each.reply["has_snapshot"] for each in self._order)
        lengths = {"sample_s": self._plan.sample_s, "warm_up_cap_s": self._plan.warm_up_cap_s}
        for each in self._order:
            each.reply |= each.process.ask("warm_up", **lengths, goes_back=goes_back)
            each.reply["goes_back"] = goes_back
        if goes_back and self._sides[0].point == self._sides[1].point:
            most = max(each.reply["runs_per_sample"] for each in self._order)
            for each in self._order:
                each.reply["runs_per_sample"] = most
        done = self.number * TURNS if goes_back else 0
        for each in self._order:
            each.process.ask("begin", runs=each.reply["runs_per_sample"], n_blocks=done)
        others, loop = OtherProcesses(), loop_ns()
        self._take_turns(max(side.block_s for side in self._sides))
        self.others_busy, self.loop_ns = others.busy(), (loop, loop_ns())
        if self._sides[0].has_energy and all(each.reply["facts"]["device"] == "cuda" for each in self._order):
            self._measure_energy()

    def _measure_energy(self) -> None:
        """Measure the energy of both sides; commits before this request have none."""
        try:
            joules = [each.process.ask("energy", window_s=WATCH_S)["joules_per_unit"] for each in self._order]
        except WorkerError as error:
            if error.kind != "AttributeError":
                raise
            return
        for each, value in zip(self._order, joules, strict=True):
            each.joules = value

    def _start_processes(self) -> None:
        others, loop = OtherProcesses(), loop_ns()
        for each in self._order:
            each.samples.append(each.process.ask("start_process", index=self.number))
        self.others_busy, self.loop_ns = others.busy(), (loop, loop_ns())

    def _take_turns(self, block_s: float) -> None:
        first, second = self._order
        for _ in range(1 + MORE):
            turns = abba_turns(first.process, second.process, TURNS, block_s)
            for half, samples in zip(self._order, turns, strict=True):
                half.samples += samples
            if not block_s:
                return
            if all(_is_undisturbed(half.samples) for half in self._order):
                break
        for half in self._order:
            half.samples = [{**_fastest(half.samples), "is_undisturbed": _is_undisturbed(half.samples)}]

    @_phase
    def finish(self) -> None:
        """Check both sides again and end their processes.

        Reference runs depend on the code only, so the first round checks them for all.
        """

        def finish(half: RoundSide) -> None:
            half.end = half.process.ask("finish", with_twin=self.number == 0)

        on_both(finish, self._order)
        self._processes.close()
        self.is_finished = True

    def close(self, error: BaseException) -> None:
        """End the processes, immediately on a signal."""
        self._processes.__exit__(type(error), error, None)


def on_both(do: Callable[[RoundSide], None], halves: Sequence[RoundSide]) -> None:
    """Call a function for both sides at once; raises the first error."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(do, halves))


def _require_one_version(a: Message, b: Message) -> None:
    versions = sorted([a["case_version"], b["case_version"]])
    if versions[0] != versions[1]:
        raise NotComparable(
            f"compare: the sides must have one version of the case (got {versions}); choose closer commits"
        )


def _require_one_card(a: Message, b: Message) -> None:
    cards = [each["machine"].get("gpu_uuid_hash") for each in (a, b) if each["facts"]["device"] == "cuda"]
    if len(cards) == 2 and cards[0] != cards[1]:
        raise NotComparable(
            f"compare: the sides must share a card (got {cards[0]} and {cards[1]}); set CUDA_VISIBLE_DEVICES"
        )


def abba_turns(
    a: RequestHandler, b: RequestHandler, n: int, block_s: float = 0.0
) -> tuple[list[Message], list[Message]]:
    """Time ``n`` turns of blocks A B B A; return each side's samples.

    A block is the fastest sample of two, or of all within ``block_s``. After a change of sides the caches hold the
    other side's data, and interruptions only add time.
    """
    samples: tuple[list[Message], list[Message]] = ([], [])
    for turn in range(n):
        if turn:
            for each in (b, a):  # A last, as the next turn times it first
                each.ask("go_on")
        for side in (0, 1, 1, 0):
            end = time.monotonic() + block_s
            taken = [(a, b)[side].ask("sample") for _ in range(2)]
            while time.monotonic() < end:
                taken.append((a, b)[side].ask("sample"))
            samples[side].append(_fastest(taken))
    return samples


def _is_undisturbed(samples: Sequence[Message]) -> bool:
    """True if the second-fastest sample confirms the fastest."""
    first, second = sorted(sample["wall_ns"] for sample in samples)[:2]
    return bool(second <= (1 + UNDISTURBED) * first)


def _fastest(samples: Sequence[Message]) -> Message:
    return min(samples, key=lambda sample: sample["wall_ns"])


def record_of(rounds: Sequence[Round], index: int, preset: Preset, at_once: int) -> Record:
    """Return the record of side 0 or 1 over all rounds."""
    import torch  # noqa: PLC0415  (slow to import)

    halves = [each.halves[index] for each in rounds]
    side, reply, samples = halves[0].side, halves[0].reply, [sample for half in halves for sample in half.samples]
    facts = Facts(**{**reply["facts"], "device": torch.device(reply["facts"]["device"])})
    before = [Check(**half.reply["check"]) for half in halves]
    after = [Check(**half.end["check"]) for half in halves]
    if reply.get("is_cold_start"):
        seen = measurement_of_starts([sample["parts_s"] for sample in samples])
    else:
        seen = _of_turns(halves, samples)
        seen = replace(seen, metrics=rates(seen, facts.work))
    seen = replace(
        seen,
        before=max(before, key=lambda check: check.max_error),
        after=max(after, key=lambda check: check.max_error),  # the first of equals includes the reference run
        notes=seen.notes | ({"at_once": at_once} if at_once > 1 else {}),
    )
    context = Context(
        run_id=side.run_id, preset=preset, **{name: reply[name] for name in ("machine", "git", "dependencies_hash")}
    )
    case = replace(side.case, version=reply["case_version"], scope=reply["scope"])
    return Record.of(
        case,
        side.point,
        context,
        started=rounds[0].started,
        facts=facts,
        seen=seen,
        host=_host(rounds, index),
        taken=side.taken,
        command=side.command,
    )


def _of_turns(halves: Sequence[RoundSide], samples: Sequence[Message]) -> Measurement:
    """Return the times of one side's turns."""
    reply, devices = halves[0].reply, tuple(each["device_ns"] for each in samples if each["device_ns"] is not None)
    joules = [half.joules for half in halves]
    throttled = Counter[str]()
    for half in halves:
        throttled.update(half.end.get("throttled", {}))
    undisturbed = [sample["is_undisturbed"] for sample in samples if "is_undisturbed" in sample]
    return Measurement(
        samples_ns=tuple(sample["wall_ns"] for sample in samples),
        device_ns=devices or None,
        runs_per_sample=reply["runs_per_sample"],
        stop_reason=f"{len(halves)} round{'s' * (len(halves) > 1)} of {TURNS} turns A B B A"
        + (" or more, of each the fastest block" if undisturbed else ""),
        warm_up=min((half.reply["warm_up"] for half in halves), key=lambda each: bool(each["settled"])),
        process=tuple(number for number, half in enumerate(halves) for _ in half.samples),
        notes={
            "turns_from_one_state": bool(reply["goes_back"]),
            **({"undisturbed_rounds": sum(undisturbed)} if undisturbed else {}),
            **({"joules_per_unit": joules} if all(joules) else {}),
            **({"throttled_samples": dict(throttled)} if throttled else {}),
        },
        unread={
            "roofline": "a comparison is of times alone",
            "telemetry": "two processes share the device: each would count the other as a foreign one",
        },
    )


def _host(rounds: Sequence[Round], index: int) -> Host:
    """Return the most disturbed round's host, with all rounds' loop times."""

    def load(each: Round) -> tuple[float, float]:
        return each.others_busy or 0.0, each.halves[index].end["host"]["load_before"] or 0.0

    busiest, loops = max(rounds, key=load), [time for each in rounds for time in each.loop_ns]
    changes = {"others_busy": busiest.others_busy, "loop_ns": [min(loops), max(loops)]}
    return Host(**busiest.halves[index].end["host"] | changes)

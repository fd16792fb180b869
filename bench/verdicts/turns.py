"""Measuring two sides in turns, A B B A: in this process, or on the code of two commits in processes of their own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from bench import sweep
from bench.case import Case, Check, Point, Preset, point_name
from bench.errors import NotComparable
from bench.machine import ROOT
from bench.measure import PLANS, rates
from bench.nvml import Sampler
from bench.record import Checks, Measurement, Record, sweep_command
from bench.verdicts.pairing import Pair, unit
from bench.verdicts.worker import AnySide, RemoteSide, Reply, Side, SideError

QUADS: Final[dict[Preset, int]] = {"smoke": 3, "default": 12, "full": 24, "paper": 24}
"""Turns A B B A for each point. Fixed beforehand: to stop where it looks good would make the interval too narrow."""
LEAST_QUADS: Final = 3
"""Of two revisions in each order."""
WORKING_TREE: Final = "."
"""Stands for the present checkout, as it is, in place of a revision."""


def quads(a: AnySide, b: AnySide, n: int) -> tuple[list[Reply], list[Reply]]:
    """Time blocks A B B A, ``n`` times over; returns the samples of each side in their order.

    The first block after a change of sides finds the caches full of the other one's: it is run, and not counted.
    """
    samples: dict[int, list[Reply]] = {0: [], 1: []}
    last = None
    for side in (0, 1, 1, 0) * n:
        if side != last:
            (a, b)[side].sample()
        samples[side].append((a, b)[side].sample())
        last = side
    return samples[0], samples[1]


def by_quad(samples: Sequence[Reply], work: int) -> tuple[float, ...]:
    """Return the mean time of one unit in each turn, ns.

    Both blocks of a side in A B B A have the same mean position in time, so that a drift of the machine that is linear
    over a turn cancels in the ratio.
    """
    walls = [sample["wall_ns"] for sample in samples]
    return tuple((first + second) / 2 / work for first, second in zip(walls[::2], walls[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class Take:
    """One point, measured in turns in two processes, or in one."""

    replies: tuple[Reply, Reply]
    """Of each side to being set up, with what it says of itself."""
    samples: tuple[list[Reply], list[Reply]]
    afters: tuple[Reply, Reply]
    telemetry: tuple[dict[str, Any] | None, str]
    """Or why there is none."""

    def times(self, work: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean time of one unit in each turn, ns, of both sides."""
        one, other = (by_quad(samples, work) for samples in self.samples)
        return one, other

    def swapped(self) -> Take:
        """Return it with A for B."""
        return Take(self.replies[::-1], self.samples[::-1], self.afters[::-1], self.telemetry)


def in_turns(
    case: Case, points: tuple[Point, Point], sides: tuple[AnySide, AnySide], preset: Preset, run_id: str
) -> Pair:
    """Set a point up on both sides, measure in turns, check both, and return the pair with a record of each.

    Raises:
        SideError: A side cannot run its point, or is wrong.
        NotComparable: The sides have different versions of the case.
    """
    started = datetime.now(UTC)
    return _pair(case, points, [_take(case, points, sides, preset, QUADS[preset])], (preset, run_id, started))


def _take(case: Case, points: tuple[Point, Point], sides: tuple[AnySide, AnySide], preset: Preset, n: int) -> Take:
    """Set both sides up, side A first, and measure ``n`` turns."""
    plan = PLANS[preset]
    first, second = (
        side.set_up(case.name, point, plan.sample_s, plan.warm_up_cap_s)
        for side, point in zip(sides, points, strict=True)
    )
    versions = [first["case_version"], second["case_version"]]
    if versions[0] != versions[1]:
        raise NotComparable(f"compare: {case.name}: the sides must time the same (got case versions {versions})")
    telemetry, reason, samples = _watched(sides, (first, second), n)
    afters = sides[0].finish(), sides[1].finish()
    replies = {**sides[0].describe(), **first}, {**sides[1].describe(), **second}
    return Take(replies, samples, afters, (telemetry, reason))


def _pair(case: Case, points: tuple[Point, Point], takes: Sequence[Take], run: tuple[Preset, str, datetime]) -> Pair:
    """Make a pair of what was taken; the first turns of all takes make one, and so do the second ones, and so on."""
    preset, run_id, started = run
    records = [
        _record(
            sweep.Job(replace(case, version=takes[0].replies[side]["case_version"]), point),
            {**takes[0].replies[side], "after": takes[-1].afters[side]["check"]},
            {"run_id": f"{run_id}-{letter}", "preset": preset, "started": started},
            [sample for take in takes for sample in take.samples[side]],
            takes[0].telemetry,
        )
        for side, (letter, point) in enumerate(zip("ab", points, strict=True))
    ]
    times = [take.times(unit(records[0])) for take in takes]
    times_a, times_b = (
        tuple(sum(each) / len(takes) for each in zip(*of_takes, strict=True)) for of_takes in zip(*times, strict=True)
    )
    name = (
        point_name(case.name, points[0])
        if points[0] == points[1]
        else f"{point_name(case.name, points[0])} : {_changes(*points)}"
    )
    return Pair(name=name, a=records[0], b=records[1], times_a=times_a, times_b=times_b, in_turns=True)


def _watched(
    sides: tuple[AnySide, AnySide], replies: Sequence[Reply], n: int
) -> tuple[dict[str, Any] | None, str, tuple[list[Reply], list[Reply]]]:
    """Return telemetry, or why there is none, and the samples."""
    if not all(isinstance(side, Side) for side in sides):
        return None, "two processes take turns on the device: each would find the other foreign", quads(*sides, n)
    device = torch.device("cuda" if "cuda" in [reply["device"] for reply in replies] else "cpu")
    with Sampler(device) as sampler:
        samples = quads(*sides, n)
    return sampler.telemetry.to_dict() if sampler.telemetry else None, sampler.reason, samples


def _changes(a: Point, b: Point) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in b.items() if a.get(axis) != value)


def _record(
    job: sweep.Job,
    side: Reply,
    run: Mapping[str, Any],
    samples: Sequence[Reply],
    telemetry: tuple[dict[str, Any] | None, str],
) -> Record:
    walls = tuple(sample["wall_ns"] for sample in samples)
    devices = tuple(sample["device_ns"] for sample in samples if sample["device_ns"] is not None)
    reason = f"{len(samples) // 2} turns A B B A"
    measurement = Measurement(samples_ns=walls, device_ns=devices or None)
    before, after = side["check"], side["after"]
    started = run["started"]
    unread = {"roofline": "a comparison is of times alone"}
    if telemetry[0] is None:
        unread["telemetry"] = telemetry[1]
    return Record(
        run_id=run["run_id"],
        preset=run["preset"],
        case=job.case.name,
        case_version=job.case.version,
        scope=side["scope"],
        mode=side["mode"],
        point=dict(job.point),
        threads=side["threads"],
        status="ok",
        reason=None,
        samples_ns=list(walls),
        device_ns=list(devices) or None,
        runs_per_sample=side["runs_per_sample"],
        work_per_run=side["work"],
        n=len(walls),
        stop_reason=reason,
        warm_up=side["warm_up"],
        metrics=rates(measurement, side["work"]),
        roofline=None,
        correctness=Checks.of(Check(**before), Check(**after)),
        telemetry=telemetry[0],
        machine=side["machine"],
        git=side["git"],
        dependencies_hash=side["dependencies_hash"],
        command=sweep_command(job.case, job.point, run["preset"]),
        started_at=started.isoformat(timespec="seconds"),
        duration_s=round((datetime.now(UTC) - started).total_seconds(), 3),
        notes={**side["notes"], "taken": "in turns with another side"},
        unread=unread,
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of measuring in turns."""

    pairs: list[Pair]
    skipped: list[str]
    """Points that cannot run on a side, with the reason."""
    failed: list[str]
    """Points that are wrong or break."""

    def leave_out(self, name: str, error: SideError) -> None:
        """Note why a point is not among the pairs."""
        (self.skipped if error.kind == "Skip" else self.failed).append(f"{name}: {error}")


def measure_all(
    todo: Sequence[tuple[Case, Point, Point]],
    sides: tuple[AnySide, AnySide],
    preset: Preset,
    run_id: str,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Measure every pair of points in turns; one that fails does not end the others."""
    found = Measured([], [], [])
    for index, (case, point_a, point_b) in enumerate(todo, start=1):
        name = point_name(case.name, point_a)
        say(f"{index}/{len(todo)} {name}")
        try:
            found.pairs.append(in_turns(case, (point_a, point_b), sides, preset, run_id))
        except SideError as error:
            found.leave_out(name, error)
    return found


def measure_revisions(
    todo: Sequence[tuple[Case, Point]],
    names: tuple[str, str],
    preset: Preset,
    run_id: str,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Measure every point in turns on the code of two revisions, half of the turns in processes started the other way.

    Of two processes the one that starts second, and sets a point up second, can be slower throughout.
    Either side is second in as many turns, so that this cancels as a drift does.

    Raises:
        NotComparable: git does not know a revision, or the sides have different versions of a case.
        SideError: The code of a revision cannot be imported.
    """
    found, started = Measured([], [], []), datetime.now(UTC)
    takes: list[list[Take]] = [[] for _ in todo]
    for is_swapped in (False, True):
        with revisions(*names[:: -1 if is_swapped else 1]) as processes:
            for index, (case, point) in enumerate(todo):
                if len(takes[index]) < is_swapped:
                    continue  # it has failed
                name = point_name(case.name, point)
                say(f"{index + 1}/{len(todo)} {name}" + (", the other way round" if is_swapped else ""))
                try:
                    n = max(LEAST_QUADS, QUADS[preset] // 2)
                    taken = _take(case, (point, point), (processes[0], processes[1]), preset, n)
                except SideError as error:
                    found.leave_out(name, error)
                else:
                    takes[index].append(taken.swapped() if is_swapped else taken)
    for (case, point), both in zip(todo, takes, strict=True):
        if len(both) == 2:
            found.pairs.append(_pair(case, (point, point), both, (preset, run_id, started)))
    return found


@contextmanager
def revisions(*names: str, root: Path = ROOT) -> Iterator[list[RemoteSide]]:
    """Yield a process on the code of each git revision, `WORKING_TREE` being the checkout itself.

    Raises:
        NotComparable: git does not know a revision.
        SideError: The code of a revision cannot be imported.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        sides = []
        for index, name in enumerate(names):
            tree = root
            if name != WORKING_TREE:
                tree = folder / f"{index}"
                _git(root, "worktree", "add", "--quiet", "--detach", str(tree), name)
                stack.callback(_git, root, "worktree", "remove", "--force", str(tree))
            sides.append(stack.enter_context(RemoteSide(tree)))
        yield sides


def _git(root: Path, *arguments: str) -> None:
    # --end-of-options is not known to `worktree`: a revision that looks like an option is refused here.
    if arguments[-1].startswith("-"):
        raise NotComparable(f"compare: a revision cannot start with a dash (got {arguments[-1]!r}); name a commit")
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        got = done.stderr.strip()
        raise NotComparable(f"compare: git must have {arguments[-1]!r} (got: {got}); name a commit, or a file there is")

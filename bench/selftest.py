"""`python -m bench selftest`: how often the gate catches a slow-down that was planted, and passes what is the same.

Gates of stored records are simulated, at the noise of their machine; the others are measured: the present code on both
sides, and on one of them a delay after each run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from warpdrive_min.files import require_writable

from .core.case import Job
from .core.errors import CompareError, NothingMeasured, exiting
from .core.groups import groups_of
from .core.point import Preset, PresetName
from .core.record import Record
from .core.stats import autoregressive, median, scatter
from .judge import compare
from .judge import planted as changes
from .judge.calibrate import CALIBRATIONS, Calibration, NoiseFloor, rounds_here
from .judge.evidence import Evidence
from .judge.gate import THRESHOLD, VERDICTS, Code, calibration_of, judge, parse_threshold
from .process.pairs import ROUNDS, TURNS, Kept, Pair, compared_in_rounds, measure_all, sides_of
from .process.stopping import keeps
from .process.worker import WorkerError
from .show import render
from .show.columns import Column, Table
from .static.selftest import REBUILDS, gate_changes
from .sweep import AtOnce, Gated, Resume, Where, run_of, say

TIMES: Final = 20
PLANTED: Final = 2 * THRESHOLD
CAUGHT: Final = 0.95
"""Share of the gates of a planted slow-down that must be regressions."""

Trial = tuple[float, Sequence[Pair]]
"""Slow-down that was planted, and what a gate sees of it."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Verdicts of many gates on one point, and the slow-downs that they saw, by the one that was planted."""

    point: str
    verdicts: dict[float, Counter[str]] = field(default_factory=dict)
    seen: dict[float, list[float]] = field(default_factory=dict)

    def share(self, slower: float, verdict: str) -> float:
        """Return the share of the gates of a slow-down that come to a verdict."""
        return self.verdicts[slower][verdict] / self.verdicts[slower].total()

    def holds(self, planted: float) -> bool:
        """Say whether nearly every gate catches a slow-down, and each passes what is the same."""
        return self.share(planted, "regression") >= CAUGHT and self.share(0.0, "ok") == 1


# ------------------------------------------------------------------ the command


def selftest(
    records: Annotated[Path | None, typer.Option(help="Simulate gates of these; without it they are measured.")] = None,
    times: Annotated[
        int, typer.Option(min=1, max=10_000, help="Gates with the slow-down, and as many without.")
    ] = TIMES,
    planted: Annotated[str, typer.Option(help="Slow-down, as 3% or 0.03.")] = f"{PLANTED:.0%}",
    threshold: Annotated[str, typer.Option(help="Threshold of the gates.")] = f"{THRESHOLD:.1%}",
    preset: Annotated[PresetName, typer.Option(help="How much to measure.")] = PresetName.default,
    case: Gated = None,
    where: Where = None,
    out: Annotated[Path, typer.Option(help="Folder of what is measured.")] = compare.COMPARISONS,
    calibrations: Annotated[Path, typer.Option(help="Folder of the calibrations.")] = CALIBRATIONS,
    resume: Resume = None,
    at_once: AtOnce = 1,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the cost of test changes to the code.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Test the static gate with changes to the code.")] = False,
    change: Annotated[list[str] | None, typer.Option(help="With either: only changes with this in their name.")] = None,
    rebuilds: Annotated[
        int, typer.Option(min=0, max=10_000, help="With --static: programs to build twice.")
    ] = REBUILDS,
) -> None:
    """Test the gate: compare the present code with itself, unchanged and with a slow-down, many times.

    Exits with 0 if of every point each gate passes what is the same and 19 in 20 catch the slow-down, with 1 if not,
    with 3 if there is nothing to gate, with 5 if a point fails. With --measure: with 0, or with 5 if a change fails.
    With --static: with 0 if 19 in 20 of the slower changes are flagged and nothing else is, with 1 if not.
    """
    if measure or records is None:
        require_writable(out, "--out")
    if measure or static:
        with exiting(5, CompareError, WorkerError, ValueError, OSError):
            costly, free = (
                [each for each in changes.read(file) if any(text in each.name for text in change or [""])]
                for file in (changes.SLOWER, changes.SAME)
            )
            failed = measure_costs(costly, preset.value, resume, out, at_once) if measure else []
            if failed:
                raise typer.Exit(int(Code.BROKEN))
            if static:
                found = gate_changes(costly, free, rebuilds, changes.costs(out / changes.COSTS), THRESHOLD)
                say(found.text)
                raise typer.Exit(int(Code.OK if found.holds(CAUGHT) else Code.REGRESSION))
        return
    choice = compare.Choice(preset=preset.value, cases=case or [], where=where or [], at_once=at_once)
    with exiting(5, CompareError, WorkerError, ValueError, OSError):
        slower = parse_threshold(planted, "--planted")
        limit = parse_threshold(threshold)
        random, failed = np.random.default_rng(0), list[str]()
        if records:
            kept = list(Evidence.of(choice.of(records)).kept.values())
            calibration, notes = calibration_of(kept, calibrations)
            for note in notes:
                say(note)
            trials: Iterable[Trial] = simulated(kept, calibration, slower, times, random)
        else:
            rounds = rounds_here(choice.preset, limit, calibrations)
            trials = measured(choice, slower, times, rounds, resume, out, failed)
        tallies = tallied(trials, limit, calibrations)
        for text in failed:
            say(f"failed: {text}")
        if not tallies:
            raise NothingMeasured("selftest: no point can be gated; `python -m bench list` shows cases, axes, backends")
        render.console(160).print(render.terminal(table(tallies, slower, limit)))
        holding = sum(tally.holds(slower) for tally in tallies)
        say(f"{holding} of {len(tallies)} points: always passed if the same, caught in {CAUGHT:.0%} at {slower:+.1%}")
    if failed or holding < len(tallies):
        raise typer.Exit(int(Code.BROKEN if failed else Code.REGRESSION))


def tallied(trials: Iterable[Trial], threshold: float, calibrations: Path) -> list[Tally]:
    """Judge each gate, and count its verdicts by point."""
    tallies: dict[str, Tally] = {}
    for slower, pairs in trials:
        calibration, _ = calibration_of([pair.b for pair in pairs], calibrations)
        for row in judge(pairs, threshold, calibration):
            tally = tallies.setdefault(row.subject, Tally(row.subject))
            tally.verdicts.setdefault(slower, Counter())[row.verdict] += 1
            tally.seen.setdefault(slower, []).append(row.estimate.value - 1)
    return list(tallies.values())


def table(tallies: Sequence[Tally], planted: float, threshold: float) -> Table[Tally]:
    """Return what the gates of each point come to, and the slow-down that the middle one saw."""

    def shares(tally: Tally, slower: float) -> str:
        return " / ".join(f"{tally.share(slower, verdict):.0%}" for verdict in VERDICTS)

    def seen(tally: Tally, slower: float) -> str:
        return f"{median(tally.seen[slower]):+.2%}"

    both = {"the same": 0.0, f"planted {planted:+.1%}": planted}
    return Table(
        title=f"gate at {threshold:.2%}: caught / inconclusive / ok",
        rows=tallies,
        columns=[
            Column("point", lambda tally: tally.point, is_long=True),
            Column("gates of each", lambda tally: str(tally.verdicts[0.0].total()), is_right=True),
            *(Column(name, partial(shares, slower=slower), is_right=True) for name, slower in both.items()),
            *(Column(f"seen, {name}", partial(seen, slower=slower), is_right=True) for name, slower in both.items()),
        ],
    )


# ------------------------------------------------------------------ gates that are simulated


def simulated(
    records: Sequence[Record],
    calibration: Calibration | None,
    slower: float,
    times: int,
    random: np.random.Generator,
) -> Iterator[Trial]:
    """Yield gates of the points of records, as so many measured ones would be at the calibrated noise."""
    for by in (0.0, slower) * times if records else ():
        yield by, [simulated_pair(each, calibration.of(each) if calibration else None, by, random) for each in records]


def simulated_pair(record: Record, noise: NoiseFloor | None, slower: float, random: np.random.Generator) -> Pair:
    """Return a comparison of the point of a record with itself, as rounds of new processes would give it.

    Blocks of a process scatter as the samples of the record do, and like them hang together: an AR(1) process. All
    blocks of a process share a factor, which scatters as far as the blocks leave over of the calibrated noise.
    """
    n_rounds = max(2, ROUNDS[record.preset])
    logs = np.log(record.samples_ns or [1.0])
    within, correlation = scatter(list(logs))
    apart = np.abs(np.subtract.outer(np.arange(2 * TURNS), np.arange(2 * TURNS)))
    of_blocks = within**2 * float((correlation**apart).mean())
    of_process = noise.pair**2 * n_rounds / 2 if noise else 0.0
    between = math.sqrt(max(0.0, of_process - of_blocks))

    def side(run_id: str, by: float) -> Record:
        rounds = [
            logs.mean()
            + math.log1p(by)
            + random.normal(0, between)
            + autoregressive(2 * TURNS, within, correlation, random)
            for _ in range(n_rounds)
        ]
        process = [number for number in range(n_rounds) for _ in range(2 * TURNS)]
        changes = {"samples_ns": np.exp(np.concatenate(rounds)).tolist(), "process": process, "run_id": run_id}
        return record.model_copy(update=changes)

    return compared_in_rounds(side("simulated-a", 0.0), side("simulated-b", slower))


# ------------------------------------------------------------------ gates that are measured


def measured(
    choice: compare.Choice,
    slower: float,
    times: int,
    rounds: Callable[[Job], int | None],
    resume: str | None,
    out: Path,
    failed: list[str],
) -> list[Trial]:
    """Measure gates, each of the same, and then of the same processes with a slow-down; returns what they see.

    Args:
        choice: Points of each gate.
        slower: Slow-down that is planted, as a share.
        times: Gates of either kind.
        rounds: Returns how many a gate of a point has; None: the preset says.
        resume: Run to go on with; None: a new one.
        out: Folder of the records and comparisons.
        failed: Gets a line for each point that fails.
    """
    run_id, points = run_of(resume, out), compare.gated(choice)
    kept = Kept.of(out, run_id)
    keeps(kept.a, kept.b, words=("--resume", run_id))
    todo = []
    for index in range(times):
        for job in points:
            a, b = sides_of(f"{run_id}-{index:02}", job.case, (job.point, job.point), rounds=rounds(job))
            todo.append((a, replace(b, slower=slower)))
    seen = measure_all(todo, choice.preset, say, kept, choice.at_once)
    failed += [*seen.skipped, *seen.failed]
    say(f"records: {', '.join(map(str, kept.files))}")
    gates = groups_of(seen.pairs, lambda pair: pair.b.run_id).values()
    return [(gate[0].b.notes.get("planted", 0.0), gate) for gate in gates]


# ------------------------------------------------------------------ changes of the code


def measure_costs(
    todo: Sequence[changes.Change], preset: Preset, resume: str | None, out: Path, at_once: int
) -> list[str]:
    """Measure what planted changes cost, and keep it; returns those that failed.

    Args:
        todo: The slower ones.
        preset: How much is measured.
        resume: Run to go on with; None: a new one.
        out: Folder of the records and comparisons.
        at_once: Most changes whose rounds are set up together.
    """
    run_id = run_of(resume, out)
    kept = Kept.of(out, f"{run_id}-planted")
    keeps(kept.a, kept.b, words=("--measure", "--resume", run_id))
    found, failed = dict[str, changes.Cost](), list[str]()
    for index, (change, seen) in enumerate(changes.measured(todo, preset, run_id, kept, at_once), start=1):
        wrong = [f"{change.name}: {text}" for text in (*seen.skipped, *seen.failed)]
        for text in wrong:
            say(f"failed: {text}")
        failed += wrong
        for pair in seen.pairs:
            found[change.name] = cost = changes.Cost.of(change, pair, run_id)
            say(f"{index}/{len(todo)} {change.name}: {cost.slower:+.2%} ({cost.low:+.2%} to {cost.high:+.2%})")
            changes.keep({change.name: cost}, out / changes.COSTS)
    say(f"{len(found)} of {len(todo)} changes measured: {out / changes.COSTS}")
    return failed

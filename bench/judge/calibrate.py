"""`python -m bench calibrate`: how far a machine's times scatter when nothing changed.

Both sides of a comparison are the present code, each in a process of its own, again and again: what differs is noise,
with all that a new process brings along. The gate calls no slow-down a regression that this noise could have made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, Literal

import numpy as np
import typer

from warpdrive_min.files import locked, require_writable, write_atomically

from ..core.archive import load
from ..core.case import Job
from ..core.errors import CompareError, FileError, NotComparable, NothingMeasured, exiting
from ..core.groups import groups_of
from ..core.machine import kind
from ..core.point import Preset, PresetName, command_line, point_name
from ..core.record import RESULTS, Context, Record
from ..core.schema import Amount, Count, Git, Machine, Model, Plain
from ..core.stats import median, smallest_detectable
from ..process.checkouts import WORKING_TREE
from ..process.interleaved import ROUNDS, Kept, Pair, measure_revisions
from ..process.stopping import keeps
from ..process.worker import WorkerError
from ..show import render
from ..show.columns import Column, Table
from ..sweep import AtOnce, Gated, Resume, Where, run_of, say
from . import compare
from .evidence import key, machine_mismatches, point_key

CALIBRATIONS: Final = RESULTS / "calibration"
COMPARISONS: Final = 3
MARGIN: Final = 5.0
"""Standard errors of a gate's ratio that fit into its threshold: then 20 gates of what is the same all pass, mostly."""
MOST_ROUNDS: Final = 24
"""Most rounds of a gate's point, however noisy it is: some minutes of a GPU."""
SCHEMA: Final[Literal[1]] = 1


class NoiseFloor(Model):
    """Scatter of one point, all of logarithms of times, where nothing changed."""

    case: str
    case_version: Count
    point: Annotated[dict[str, str | int | float | bool], Plain]
    preset: Preset
    rounds: Count
    """Rounds of new processes that it is taken from, of all A/A comparisons."""
    run: Amount
    """Standard deviation of a process's median, from one process to the next."""
    pair: Amount
    """Standard deviation of a comparison's ratio, over as many rounds as the preset has."""
    smallest: Amount
    """Smallest slow-down that two runs show which were measured one after the other, as a share."""
    smallest_in_turns: Amount
    """The same of two that were measured in turns."""

    def of_ratio(self, in_turns: bool) -> tuple[float, int]:
        """Return the standard deviation of a ratio's logarithm, and with how many degrees of freedom it is known."""
        if in_turns:
            return self.pair, self.rounds
        return math.sqrt(2) * self.run, 2 * self.rounds - 1

    def over(self, n_rounds: int) -> NoiseFloor:
        """Return the noise of comparisons over another number of rounds than the preset has."""
        if n_rounds == ROUNDS[self.preset]:
            return self
        share = math.sqrt(ROUNDS[self.preset] / n_rounds)
        smallest = math.expm1(share * math.log1p(self.smallest_in_turns))
        return self.model_copy(update={"pair": share * self.pair, "smallest_in_turns": smallest})

    def rounds_for(self, threshold: float) -> int:
        """Return how many rounds a gate needs to pass what is the same, see `MARGIN`; no fewer than the preset has."""
        fewest = ROUNDS[self.preset]
        return min(max(fewest, math.ceil(fewest * (MARGIN * self.pair / math.log1p(threshold)) ** 2)), MOST_ROUNDS)


class Calibration(Model):
    """Noise of one machine, as it was calibrated."""

    schema_version: Literal[1] = SCHEMA
    machine: Machine
    git: Git
    made_at: str
    command: str
    noise: list[NoiseFloor]

    def of(self, record: Record) -> NoiseFloor | None:
        """Return the noise of a record's point, else what stands in: the noisiest of its case, backend and preset."""
        known = self._of(record.case, record.case_version, record.preset)
        known = [each for each in known if each.point.get("backend") == record.point.get("backend")]
        exact = [each for each in known if each.point == record.point]
        return max(exact or known, key=lambda each: each.run, default=None)

    def rounds_of(self, job: Job, preset: Preset, threshold: float) -> int | None:
        """Return how many rounds a gate of a point needs; None: it is not calibrated, the preset says."""
        known = self._of(job.case.name, job.case.version, preset)
        return next((each.rounds_for(threshold) for each in known if each.point == job.point), None)

    def _of(self, case: str, version: int, preset: Preset) -> list[NoiseFloor]:
        return [each for each in self.noise if (each.case, each.case_version, each.preset) == (case, version, preset)]

    def fits(self, machine: Mapping[str, Any]) -> bool:
        """Return whether it was made on a machine like this one, with the same versions."""
        return not machine_mismatches(self.machine, machine)


def rounds_here(preset: Preset, threshold: float, folder: Path = CALIBRATIONS) -> Callable[[Job], int | None]:
    """Return what tells how many rounds a gate of a point needs on this machine; None: the preset says."""
    here = Context.here(preset).machine
    calibration = read(here, folder)
    if calibration is None or not calibration.fits(here):
        return lambda job: None
    return lambda job: calibration.rounds_of(job, preset, threshold)


def read(machine: Mapping[str, Any], folder: Path = CALIBRATIONS) -> Calibration | None:
    """Return the calibration of a machine, if there is one.

    Raises:
        NotComparable: The file breaks the schema.
    """
    path = folder / f"{kind(machine)}.json"
    if not path.exists():
        return None
    try:
        return load(path, Calibration)
    except FileError as error:
        raise NotComparable(f"{error}; run `python -m bench calibrate` again") from error


def noise(comparisons: Sequence[Pair]) -> list[NoiseFloor]:
    """Return the scatter of each point over the rounds of its A/A comparisons.

    The ratios of what was measured in turns should be 1, so their mean is not taken off: what it is instead is noise.
    """
    return [_noise(pairs) for pairs in groups_of(comparisons, lambda pair: key(pair.a)).values()]


def _noise(pairs: Sequence[Pair]) -> NoiseFloor:
    runs = np.log([ns for pair in pairs for record in (pair.a, pair.b) for ns in _medians(record)])
    ratios = np.array([fmean(turns) for pair in pairs if pair.comparison for turns in pair.comparison.log_ratios])
    record, n = pairs[0].a, len(ratios)
    run, pair = float(runs.std(ddof=1)), float(np.sqrt((ratios**2).mean() * len(pairs) / n))
    return NoiseFloor(
        **record.model_dump(include={"case", "case_version", "point", "preset"}),
        rounds=n,
        run=run,
        pair=pair,
        smallest=smallest_detectable(math.sqrt(2) * run, 1, 2 * n - 1),
        smallest_in_turns=smallest_detectable(pair, 1, n),
    )


def _medians(record: Record) -> list[float]:
    """Return the median time of one unit in each process of a record, ns."""
    times = record.unit_ns
    processes = record.process or [0] * len(times)
    return [median([ns for of, ns in zip(processes, times, strict=True) if of == each]) for each in set(processes)]


def store(found: Sequence[NoiseFloor], record: Record, command: str, folder: Path = CALIBRATIONS) -> Path:
    """Write what was found of the machine of a record, whole or not at all; returns the path.

    Points that were calibrated before, on the same machine with the same versions, stay.
    """
    with locked(folder):
        before = read(record.machine, folder)
        kept: Iterable[NoiseFloor] = before.noise if before and before.fits(record.machine) else ()
        merged = {(each.preset, *point_key(each.case, each.point)): each for each in [*kept, *found]}
        made = Calibration(
            machine=record.machine,
            git=record.git,
            made_at=record.started_at,
            command=command,
            noise=list(merged.values()),
        )
        path = folder / f"{kind(record.machine)}.json"
        write_atomically(path, made.model_dump_json(indent=1) + "\n")
    return path


def table(found: Sequence[NoiseFloor]) -> Table[NoiseFloor]:
    """Return the noise of each point as a table."""

    def share(name: str, value: Callable[[NoiseFloor], float]) -> Column[NoiseFloor]:
        return Column(name, lambda each: f"{value(each):.2%}", value)

    return Table(
        title="A/A: noise, and the smallest slow-down that can be told from it",
        rows=found,
        columns=[
            Column("point", lambda each: point_name(each.case, each.point), is_long=True),
            share("process to process", lambda each: each.run),
            share("in rounds", lambda each: each.pair),
            share("smallest", lambda each: each.smallest),
            share("smallest in rounds", lambda each: each.smallest_in_turns),
        ],
    )


def calibrate(
    preset: Annotated[PresetName, typer.Option(help="How much to measure; a gate needs its own.")] = PresetName.default,
    case: Gated = None,
    where: Where = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="A/A comparisons, each in rounds of new processes.")
    ] = COMPARISONS,
    out: Annotated[Path, typer.Option(help="Folder of the calibrations.")] = CALIBRATIONS,
    records: Annotated[Path, typer.Option(help="Folder of the records of both sides.")] = compare.COMPARISONS,
    resume: Resume = None,
    at_once: AtOnce = 1,
) -> None:
    """Compare the present code with itself and store the noise.

    Exits with 3 if nothing was measured, with 5 if a point fails.
    """
    choice = compare.Choice(preset=preset.value, cases=case or [], where=where or [])
    require_writable(out, "--out")
    require_writable(records, "--records")
    with exiting(5, CompareError):
        points, run_id = compare.gated(choice), run_of(resume, records, "--records")
    kept = Kept(*[records / f"{run_id}.jsonl"] * 3)
    keeps(kept.a, words=("--resume", run_id), folders=[out])
    pairs, skipped, failed = list[Pair](), dict[str, None](), dict[str, None]()
    with exiting(5, CompareError, WorkerError):
        if not points:
            raise NothingMeasured("calibrate: no point passes the filters; `python -m bench list` shows the axes")
        for index in range(rounds):
            say(f"comparison {index + 1} of {rounds}")
            both = WORKING_TREE, WORKING_TREE
            seen = measure_revisions(points, both, preset.value, f"{run_id}-{index}", say, kept, at_once)
            pairs += seen.pairs
            skipped |= dict.fromkeys(f"left out: {each}" for each in seen.skipped)
            failed |= dict.fromkeys(f"failed: {each}" for each in seen.failed)
        found = noise(pairs)
        for each in skipped | failed:
            say(each)
        if not found:
            raise NothingMeasured("calibrate: no point was measured")
        render.console(160).print(render.terminal(table(found)))
        options = {"preset": preset.value, "rounds": str(rounds), "case": choice.cases, "where": choice.where}
        say(f"written: {store(found, pairs[0].a, command_line('calibrate', **options), out)}")
    if failed:
        raise typer.Exit(5)

"""`python -m bench calibrate`: measure a machine's noise on unchanged code.

Both sides of each comparison are the present code, each in a new process. The differences are noise, including the
noise of process starts. The gate reports no regression that this noise could explain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from warpdrive_min.files import require_writable

from ..core.errors import Code, NothingMeasured
from ..core.point import PresetName, command_line, point_name
from ..options import COMPARISONS, AtOnce, Choice, Gated, Resume, Where, gated, resumed_or_new_run_id, say, why_none
from ..process.checkouts import WORKING_TREE
from ..process.interleaved import Pair, PairFiles, measure_revisions
from ..process.stopping import register_outputs
from ..show import render
from ..show.columns import Column, Table
from .calibration import CALIBRATIONS, NoiseFloor, noise, store

N_COMPARISONS: Final = 3


def table(found: Sequence[NoiseFloor]) -> Table[NoiseFloor]:
    """Return the noise of each point as a table."""

    def share(name: str, value: Callable[[NoiseFloor], float]) -> Column[NoiseFloor]:
        return Column(name, lambda each: f"{value(each):.2%}", value)

    return Table(
        title="A/A: noise of unchanged code, and the smallest slow-down that a gate detects",
        rows=found,
        columns=[
            Column("point", lambda each: point_name(each.case, each.point), is_long=True),
            share("noise between processes", lambda each: each.run),
            share("noise in interleaved rounds", lambda each: each.pair),
            share("detects, separate runs", lambda each: each.smallest),
            share("detects, interleaved", lambda each: each.smallest_in_turns),
        ],
    )


def calibrate(
    preset: Annotated[
        PresetName,
        typer.Option(help="Points, and time to measure each; a gate reads the calibration of its own preset."),
    ] = PresetName.default,
    case: Gated = None,
    where: Where = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of A/A comparisons, each in rounds of new processes.")
    ] = N_COMPARISONS,
    out: Annotated[Path, typer.Option(help="Output folder of the calibrations.")] = CALIBRATIONS,
    records: Annotated[Path, typer.Option(help="Output folder of both sides' records.")] = COMPARISONS,
    resume: Resume = None,
    at_once: AtOnce = 1,
) -> None:
    """Compare the present code with itself and store the noise.

    Exits with 3 if nothing was measured, with 5 if a point fails.
    """
    choice = Choice(preset=preset.value, cases=case or [], where=where or [])
    require_writable(out, "--out")
    require_writable(records, "--records")
    points, run_id = gated(choice), resumed_or_new_run_id(resume, records, preset.value, "--records")
    outputs = PairFiles(*[records / f"{run_id}.jsonl"] * 3)
    register_outputs(outputs.a, words=("--resume", run_id), folders=[out])
    pairs, skipped, failed = list[Pair](), dict[str, None](), dict[str, None]()
    if not points:
        why = why_none(choice) or "`python -m bench list` shows the axes"
        raise NothingMeasured(f"calibrate: no point passes the filters; {why}")
    for index in range(rounds):
        say(f"A/A comparison {index + 1} of {rounds}")
        both = WORKING_TREE, WORKING_TREE
        seen = measure_revisions(points, both, preset.value, f"{run_id}-{index}", say, outputs, at_once)
        pairs += seen.pairs
        skipped |= dict.fromkeys(f"left out: {each}" for each in seen.skipped)
        failed |= dict.fromkeys(f"failed: {each}" for each in seen.failed)
    found = noise(pairs)
    for each in skipped | failed:
        say(each)
    if not found:
        raise NothingMeasured("calibrate: no point was measured; see the reasons above")
    render.console(160).print(render.terminal(table(found)))
    options = {"preset": preset.value, "rounds": str(rounds), "case": choice.cases, "where": choice.where}
    say(f"written: {store(found, pairs[0].a, command_line('calibrate', **options), out)}")
    if failed:
        raise typer.Exit(Code.BROKEN)

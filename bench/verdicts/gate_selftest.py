"""`python -m bench gate --selftest`: how much of what is put into stored samples the gate would catch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich import box
from rich.table import Table

from bench.errors import NothingMeasured
from bench.judge import Evidence, name_of
from bench.record import Record
from bench.verdicts import compare
from bench.verdicts.calibrate import Calibration
from bench.verdicts.compare import say
from bench.verdicts.gate_judge import calibration_of, judge
from bench.verdicts.gate_report import Code, Outcome
from bench.verdicts.pairing import Pair, samples

INJECTED: Final = (0.0, 0.03, 0.05, 0.10)
"""Slow-downs of the self-test."""
SELFTEST_REPEATS: Final = 10


@dataclass(frozen=True, slots=True)
class Caught:
    """Outcomes of points that were slowed down on paper."""

    outcomes: dict[float, Counter[Outcome]]
    """By the slow-down that was put in."""


def run_selftest(records: Sequence[Record], threshold: float, calibrations: Path) -> int:
    """Print what the gate catches in the samples of some records; returns the exit code.

    Raises:
        NothingMeasured: None of the records can be compared.
    """
    notes: list[str] = []
    kept = list(Evidence.of(records).kept.values())
    calibration = calibration_of(kept, calibrations, notes)
    found = slowed_down(kept, threshold, calibration)
    for note in notes:
        say(note)
    if not found:
        raise NothingMeasured("gate --selftest: no record can be compared")
    compare.console().print(selftest_table(found, threshold))
    if alarms := sum(caught.outcomes[0.0]["regression"] for caught in found.values()):
        say(f"{alarms} false alarms where nothing was slowed down")
        return int(Code.BROKEN)
    return int(Code.OK)


def slowed_down(
    records: Sequence[Record], threshold: float, calibration: Calibration | None, repeats: int = SELFTEST_REPEATS
) -> dict[str, Caught]:
    """Slow stored samples down on paper and judge them as the gate would.

    Both sides draw their samples with replacement from those of the record; where the machine is calibrated each side
    is shifted as runs are. So what is caught is what would be at that machine's noise. By case and backend.
    """
    kept = list(Evidence.of(records).kept.values())
    random = np.random.default_rng(0)
    found: dict[str, Caught] = {}
    for record in kept:
        found.setdefault(_group(record), Caught({by: Counter() for by in INJECTED}))
    for by in INJECTED:
        for _ in range(repeats):
            for row in judge([_injected(record, by, calibration, random) for record in kept], threshold, calibration):
                found[_group(row.pair.a)].outcomes[by][row.outcome] += 1
    return found


def _group(record: Record) -> str:
    return f"{record.case}, {record.point.get('backend')}"


def _injected(record: Record, by: float, calibration: Calibration | None, random: np.random.Generator) -> Pair:
    times = np.asarray(samples(record))
    noise = calibration.of(record) if calibration else None
    run = noise.run if noise else 0.0

    def drawn(slower: float) -> tuple[float, ...]:
        return tuple((random.choice(times, len(times)) * math.exp(random.normal(0, run)) * (1 + slower)).tolist())

    return Pair(name=name_of(record), a=record, b=record, times_a=drawn(0.0), times_b=drawn(by), in_turns=False)


def selftest_table(found: Mapping[str, Caught], threshold: float) -> Table:
    """Return what is caught at each slow-down, and what is inconclusive or passes, as a table."""
    made = Table(
        title=f"gate at {threshold:.2%}: caught / inconclusive / ok, of slow-downs that were put into stored samples",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
    )
    made.add_column("case, backend")
    made.add_column("points", justify="right")
    for by in INJECTED:
        made.add_column(f"{by:+.0%}", justify="right", no_wrap=True)
    for group, caught in found.items():
        cells = [
            " / ".join(f"{each[name] / each.total():.0%}" for name in ("regression", "inconclusive", "ok"))
            for each in caught.outcomes.values()
        ]
        made.add_row(group, str(caught.outcomes[0.0].total() // SELFTEST_REPEATS), *cells)
    return made

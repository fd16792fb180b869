"""Noise calibration of a machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from warpdrive_min.files import locked, write_atomically

from ..core.archive import load_or_none
from ..core.errors import FileError, NotComparable
from ..core.groups import groups_of
from ..core.machine import differences, kind
from ..core.point import Preset
from ..core.record import RESULTS, Record
from ..core.schema import Amount, Count, Git, Machine, Model, Plain
from ..core.stats import smallest_detectable
from ..process.interleaved import ROUNDS, Pair
from .evidence import key, point_key

CALIBRATIONS: Final = RESULTS / "calibration"


class NoiseFloor(Model):
    """Spread of the logarithm of one point's times in unchanged code."""

    case: str
    case_version: Count
    point: Annotated[dict[str, str | int | float | bool], Plain]
    preset: Preset
    rounds: Count
    """Number of rounds of all A/A comparisons."""
    run: Amount
    """Standard deviation of a process's median between processes."""
    pair: Amount
    """Standard deviation of a comparison's ratio over the preset's rounds."""
    smallest: Amount
    """Smallest detectable slow-down of two consecutive runs, as a share."""
    smallest_in_turns: Amount
    """Smallest detectable slow-down of two interleaved runs, as a share."""

    def of_ratio(self, is_interleaved: bool) -> tuple[float, int]:
        """Return the standard deviation of a log ratio and its degrees of freedom."""
        if is_interleaved:
            return self.pair, self.rounds
        return math.sqrt(2) * self.run, 2 * self.rounds - 1

    @property
    def of_round(self) -> float:
        """Standard deviation of one round's log ratio."""
        return self.pair * math.sqrt(ROUNDS[self.preset])


class Calibration(Model):
    """Noise of one machine."""

    schema_version: Literal[1] = 1
    machine: Machine
    git: Git
    made_at: str
    command: str
    noise: list[NoiseFloor]

    def of(self, record: Record) -> NoiseFloor | None:
        """Return the noise of a record's point, else the noisiest similar point.

        Similar points share the case, backend and preset.
        """
        like = record.case, record.case_version, record.preset
        known = [each for each in self.noise if (each.case, each.case_version, each.preset) == like]
        known = [each for each in known if each.point.get("backend") == record.point.get("backend")]
        exact = [each for each in known if each.point == record.point]
        return max(exact or known, key=lambda each: each.run, default=None)

    def fits(self, machine: Mapping[str, Any]) -> bool:
        """True if made on such a machine with the same versions."""
        return not differences(self.machine, machine)


def read(machine: Mapping[str, Any], folder: Path = CALIBRATIONS) -> Calibration | None:
    """Return the calibration of a machine, if it exists.

    Raises:
        NotComparable: The file breaks the schema.
    """
    try:
        return load_or_none(folder / f"{kind(machine)}.json", Calibration)
    except FileError as error:
        raise NotComparable(f"{error}; run `python -m bench calibrate` again") from error


# ------------------------------------------------------------------ making one


def noise(comparisons: Sequence[Pair]) -> list[NoiseFloor]:
    """Return the noise of each point from its A/A comparisons.

    Interleaved A/A ratios should be 1. Their mean is not subtracted, because its deviation from 1 is noise too.
    """
    return [_noise(pairs) for pairs in groups_of(comparisons, lambda pair: key(pair.a)).values()]


def _noise(pairs: Sequence[Pair]) -> NoiseFloor:
    import numpy as np  # noqa: PLC0415  (slow to import)

    runs = np.log([ns for pair in pairs for record in (pair.a, pair.b) for ns in record.process_medians])
    ratios = np.array([ratio for pair in pairs if pair.comparison for ratio in pair.comparison.rounds])
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


def store(found: Sequence[NoiseFloor], record: Record, command: str, folder: Path = CALIBRATIONS) -> Path:
    """Merge the noise of points into their machine's file, atomically.

    Points of the same machine and versions that were calibrated before stay.
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

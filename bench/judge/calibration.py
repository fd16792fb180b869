"""Noise calibration of a machine, and rounds per point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from ..core.archive import load_or_none
from ..core.case import Job
from ..core.errors import FileError, NotComparable
from ..core.machine import differences, kind
from ..core.point import Preset
from ..core.record import RESULTS, Context, Record
from ..core.schema import Amount, Count, Git, Machine, Model, Plain
from ..options import threshold_of
from ..process.interleaved import ROUNDS

CALIBRATIONS: Final = RESULTS / "calibration"
MARGIN: Final = 5.0
"""Standard errors of a ratio within a gate's threshold.

With this many, 20 gates of unchanged code nearly always pass."""
MOST_ROUNDS: Final = 24
"""Maximum rounds of a gated point; they take minutes of GPU time."""


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

    def over(self, n_rounds: int) -> NoiseFloor:
        """Return the noise of comparisons over another number of rounds."""
        if n_rounds == ROUNDS[self.preset]:
            return self
        share = math.sqrt(ROUNDS[self.preset] / n_rounds)
        smallest = math.expm1(share * math.log1p(self.smallest_in_turns))
        return self.model_copy(update={"pair": share * self.pair, "smallest_in_turns": smallest})

    def rounds_for(self, threshold: float) -> int:
        """Return the rounds of a gate, see `MARGIN`; at least the preset's."""
        fewest = ROUNDS[self.preset]
        return min(max(fewest, math.ceil(fewest * (MARGIN * self.pair / math.log1p(threshold)) ** 2)), MOST_ROUNDS)


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
        known = self._of(record.case, record.case_version, record.preset)
        known = [each for each in known if each.point.get("backend") == record.point.get("backend")]
        exact = [each for each in known if each.point == record.point]
        return max(exact or known, key=lambda each: each.run, default=None)

    def rounds_of(self, job: Job, preset: Preset, threshold: float) -> int | None:
        """Return a gated point's number of rounds; None if not calibrated."""
        known = self._of(job.case.name, job.case.version, preset)
        return next((each.rounds_for(threshold) for each in known if each.point == job.point), None)

    def _of(self, case: str, version: int, preset: Preset) -> list[NoiseFloor]:
        return [each for each in self.noise if (each.case, each.case_version, each.preset) == (case, version, preset)]

    def fits(self, machine: Mapping[str, Any]) -> bool:
        """True if made on such a machine with the same versions."""
        return not differences(self.machine, machine)


def rounds_here(preset: Preset, threshold: float, folder: Path = CALIBRATIONS) -> Callable[[Job], int | None]:
    """Return a function from point to its rounds here; None uses the preset's."""
    here = Context.here(preset).machine
    calibration = read(here, folder)
    if calibration is None or not calibration.fits(here):
        return lambda job: None
    return lambda job: calibration.rounds_of(job, preset, threshold_of(job.case.name, threshold))


def read(machine: Mapping[str, Any], folder: Path = CALIBRATIONS) -> Calibration | None:
    """Return the calibration of a machine, if it exists.

    Raises:
        NotComparable: The file breaks the schema.
    """
    try:
        return load_or_none(folder / f"{kind(machine)}.json", Calibration)
    except FileError as error:
        raise NotComparable(f"{error}; run `python -m bench calibrate` again") from error

"""What a benchmark is: a case, its points, and one point made ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from bench.measure import Measurement, Plan
    from bench.record import Course

Point = Mapping[str, Any]
"""Value of each axis."""
Scope = Literal["kernel", "env", "rollout", "train", "startup", "memory", "learn"]
"""What is timed; figures of different scopes never mix."""
Preset = Literal["smoke", "default", "full", "paper"]


class PresetName(StrEnum):
    """How much to measure; `Preset` as a command line takes it."""

    smoke = "smoke"
    default = "default"
    full = "full"
    paper = "paper"


class Skip(Exception):  # noqa: N818  (not a failure)
    """A point cannot run on this machine; the message says why and what to install."""


@dataclass(frozen=True, slots=True)
class Correctness:
    """Outcome of a check against an oracle."""

    passed: bool
    max_error: float
    oracle: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One point, set up and warmed up, so that ``run`` only does the work."""

    run: Callable[[], None]
    """Enqueues one block of work; does not synchronise."""
    synchronize: Callable[[], None]
    """Waits until everything enqueued is done."""
    work: Mapping[str, int]
    """Amount of work of one run; the first entry is the one that is gated on."""
    check: Callable[[], Correctness]
    """Holds the point against its oracle; called before and after the timing."""
    mode: Literal["eager", "graph"]
    device: torch.device
    threads: int | None
    """CPU threads that do the work; None on a GPU."""
    bytes_per_run: int
    """Least bytes that a run must move, for the roofline."""
    ops_per_run: int
    """Least arithmetic operations of a run, for the roofline."""
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One point that is run a single time, and of which not the speed but the course counts."""

    run: Callable[[], Course]
    """Does all of it and waits for it."""
    check: Callable[[], Correctness]
    """Holds the point against its oracle; called before and after the run."""
    mode: Literal["eager", "graph"]
    device: torch.device
    threads: int | None
    """CPU threads that do the work; None on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Starts:
    """One point that is timed from cold: each sample is a process of its own, and there is no warm-up."""

    run: Callable[[], Mapping[str, float]]
    """Starts one process, waits for it, and returns how long each part of what it did took, s, in their order."""
    check: Callable[[], Correctness]
    """Holds what all processes since the last check came to against its oracle."""
    mode: Literal["eager", "graph"]
    device: torch.device
    threads: int | None
    """CPU threads that do the work; None on a GPU."""
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksReport:
    """What ranks have come to."""

    before: Correctness
    measurement: Measurement
    """Of the slowest rank in each sample."""
    after: Correctness
    notes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """One point whose work several processes do together, which also check and time it: see `cases/rank.py`."""

    run: Callable[[Plan], RanksReport]
    """Starts the processes and waits for them."""
    work: Mapping[str, int]
    """Amount of work of one run of all of them; the first entry is the one that is gated on."""
    mode: Literal["eager", "graph"]
    device: torch.device
    threads: int | None
    """CPU threads of all of them; None on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A benchmark, stated once."""

    name: str
    summary: str
    scope: Scope
    version: int
    """Raised when what is timed changes; records of different versions are not compared."""
    points: Callable[[Preset], Sequence[Point]]
    """Returns the points of a preset."""
    setup: Callable[[Point], Prepared | Trial | Starts | Ranks]
    """Makes a point ready; raises `Skip`."""
    in_ranks: bool = False
    """Its points are `Ranks`."""

    @property
    def repeats(self) -> bool:
        """Its points are timed again and again, as other tools than our sweep do it too."""
        return self.scope not in ("startup", "memory", "learn") and not self.in_ranks

    def axes(self, preset: Preset = "default") -> dict[str, list[Any]]:
        """Return the values that each axis takes in a preset."""
        values: dict[str, dict[Any, None]] = {}
        for point in self.points(preset):
            for name, value in point.items():
                values.setdefault(name, {})[value] = None
        return {name: list(each) for name, each in values.items()}


def label(case: Case, point: Point) -> str:
    """Name a point, for progress lines and test ids."""
    return f"{case.name}[{','.join(f'{name}={value}' for name, value in point.items())}]"


def passes(point: Point, where: Sequence[str]) -> bool:
    """Say whether a point has, of each axis that ``AXIS=VALUE`` conditions name, one of the values that they name."""
    wanted: dict[str, set[str]] = {}
    for condition in where:
        axis, _, value = condition.partition("=")
        wanted.setdefault(axis, set()).add(value)
    return all(axis in point and str(point[axis]) in values for axis, values in wanted.items())

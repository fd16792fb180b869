"""A benchmark definition, and one of its points from set-up to record."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .errors import Skip as Skip
from .measure import PLANS, ColdStart, Timed, Workload
from .point import ABSENT, Point, Preset, matches, shared_axes
from .record import CaseVersion, Context, Host, Record, StartTime


@dataclass(frozen=True, kw_only=True, slots=True)
class Case(CaseVersion):
    """A benchmark, stated once."""

    title: str
    workload: type[Workload]
    """Type of `setup`'s workload."""
    points: Callable[[Preset], Sequence[Point]]
    """Returns the points of a preset."""
    setup: Callable[[Point], Workload]
    """Prepares a point; raises `Skip`."""
    pairs: Callable[[Preset], Sequence[tuple[Point, Point]]] = lambda preset: ()
    """Returns base and other of each ratio to show or claim."""
    over: tuple[str, ...] = ()
    """Axis, and values of the bases on it, the first of the case's table; see `pairs_differing_in`."""

    @property
    def is_paired(self) -> bool:
        """True if two sides of a point can be interleaved."""
        return self.workload in (Timed, ColdStart)

    def axes(self, preset: Preset = "default") -> dict[str, list[Any]]:
        """Return the values of each axis in a preset, whole numbers in order."""
        values: dict[str, dict[Any, None]] = {}
        for point in self.points(preset):
            for name, value in point.items():
                values.setdefault(name, {})[value] = None
        return {name: sorted(each) if {*map(type, each)} == {int} else list(each) for name, each in values.items()}


Pairs = list[tuple[Point, Point]]
"""Base and other of each ratio."""


def pairs_differing_in(
    points: Sequence[Point], axis: str, bases: Sequence[Any], ignored: Sequence[str] = (), where: Sequence[str] = ()
) -> Pairs:
    """Return pairs of points that differ in one axis.

    Args:
        points: All points.
        axis: The axis; see `shared_axes`.
        bases: Values of the base on that axis, or `ABSENT`; a base is compared with later ones only.
        ignored: Axes in which they may differ too.
        where: Conditions on both points, see `matches`.
    """

    def place(point: Point) -> tuple[Any, ...]:
        return shared_axes(point, axis, *ignored)

    pairs, points = [], [point for point in points if matches(point, where)]
    for n, base in enumerate(bases, start=1):
        of_base = {place(point): point for point in points if point.get(axis, ABSENT) == base}
        others = [p for p in points if p.get(axis, ABSENT) not in bases[:n] and place(p) in of_base]
        pairs += [(of_base[place(point)], point) for point in others]
    return pairs


@dataclass(frozen=True, slots=True)
class Job:
    """One point of one case."""

    case: Case
    point: Point
    is_brief: bool = False
    """True if another process of the point has its reference run and telemetry."""

    def run(self, context: Context) -> Record:
        """Set up, check, measure, check and record the point, in this process."""
        import torch  # noqa: PLC0415  (takes seconds, which do not belong to the set-up)

        started, host = StartTime(), Host.before()
        build = partial(Record.of, self.case, self.point, context, started=started)
        workload: Workload | None = None
        try:
            workload = self.case.setup(self.point)
            setup_s = round(started.elapsed_s, 3)  # includes compilation
            plan = PLANS[context.preset]
            seen = workload.measure(plan.brief if self.is_brief else plan)
            seen = replace(seen, notes={"setup_s": setup_s, **seen.notes})
            host = host.after(workload.facts.device).model_copy(update={"others_busy": seen.others_busy})
            return build(facts=workload.facts, seen=seen, host=host)
        except Skip as skip:
            return build(status="skipped", reason=str(skip), host=host)
        except Exception as error:  # noqa: BLE001  (an error in one point must not lose the others)
            facts, reason = workload.facts if workload else None, f"{type(error).__name__}: {error}"
            return build(facts=facts, status="failed", reason=reason, host=host)
        finally:
            workload = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

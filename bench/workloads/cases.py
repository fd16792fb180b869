"""All benchmarks; each is a file in `workloads` and a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final, get_args

from warpdrive_min.backends import BACKENDS

from ..core.archive import read_toml
from ..core.case import Case, Job, Pairs
from ..core.point import PLAIN, Point, Preset, matches
from ..core.record import AXES_OF, Axis, Record
from . import env_step, kernels, learn, memory, scaling, startup, time_to_solution, train

IN_PAPER: Final[Sequence[Sequence[str]]] = read_toml(Path(__file__).with_name("paper.toml"))["points"]
"""Rows of conditions; a point of preset paper meets all of one row."""


def _with_paper(case: Case) -> Case:
    """Return a case with the points of preset paper, a selection of full."""

    def points(preset: Preset) -> Sequence[Point]:
        if preset != "paper":
            return case.points(preset)
        found = case.points("full")
        return [each for each in found if any(matches({"case": case.name, **each}, row) for row in IN_PAPER)]

    def pairs(preset: Preset) -> Pairs:
        return [] if preset == "paper" else list(case.pairs(preset))

    return replace(case, points=points, pairs=pairs)


CASES: Final[dict[str, Case]] = {
    case.name: _with_paper(case)
    for case in (
        env_step.ENV_STEP,
        env_step.GRAPH,
        env_step.MANY_STEPS,
        env_step.NEIGHBOR_SEARCH,
        env_step.PUBLISHED,
        kernels.SAMPLER,
        env_step.STEP,
        kernels.RESET,
        kernels.RETURN_SCAN,
        kernels.SHUFFLE,
        kernels.RECORD,
        kernels.LAUNCH,
        train.ROLLOUT,
        train.TRAIN,
        scaling.SCALING,
        learn.LEARN,
        startup.STARTUP,
        time_to_solution.TIME_TO_SOLUTION,
        memory.MEMORY,
    )
}
"""Benchmarks by name; whatever measures, judges or shows reads them here."""


def _axes(case: Case) -> dict[str, Axis]:
    """Return the axes of a case, from all presets' points."""
    points = [point for preset in get_args(Preset) for point in case.points(preset)]
    kinds = {name: type(value) for point in points for name, value in point.items()}
    return {
        name: Axis(
            kind,
            all(name in point for point in points),
            known=WORKERS if name == "backend" else None,
            least=1 if name in ("n_envs", "n_agents") else 0,
        )
        for name, kind in kinds.items()
    }


WORKERS: Final = frozenset({*BACKENDS, PLAIN})
OF_PEERS: Final = {
    name: Axis(kind, always=True)
    for name, kind in {"peer": str, "env": str, "n_envs": int, "n_agents": int, "work": str}.items()
}
"""Axes of every point of other software."""
AXES_OF.update({name: cache(partial(_axes, case)) for name, case in CASES.items()})
AXES_OF.update({name: lambda: OF_PEERS for name in ("peer", "peer_learn", "peer_solution")})


def is_present(record: Record) -> bool:
    """True if a record is of the present version of its case."""
    return record.case in CASES and record.case_version == CASES[record.case].version


def jobs(preset: Preset, where: Sequence[str] = (), cases: Mapping[str, Case] = CASES) -> list[Job]:
    """Return the points of a preset that meet AXIS=VALUE conditions.

    ``case`` is an axis too.
    """
    return [
        Job(case, point)
        for case in cases.values()
        for point in case.points(preset)
        if matches({"case": case.name, **point}, where)
    ]

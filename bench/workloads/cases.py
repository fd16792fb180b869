"""All benchmarks of `cases.toml`, from functions of this folder's files."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, get_args

from warpdrive_min.backends import BACKENDS

from ..core.archive import read_toml
from ..core.case import Case, Job, Pairs, pairs_differing_in
from ..core.measure import ColdStart, Once, Ranks, Timed
from ..core.point import PLAIN, Point, Preset, matches
from ..core.record import AXES_OF, Axis, Record
from . import determinism, env_step, learn, memory, scaling, startup, time_to_solution, train
from .points import POINTS, points_of

IN_PAPER: Final[Sequence[Sequence[str]]] = read_toml(Path(__file__).with_name("paper.toml"))["points"]
"""Rows of conditions; a point of preset paper meets all of one row."""
FUNCTIONS: Final = ChainMap(
    *map(vars, (determinism, env_step, learn, memory, scaling, startup, time_to_solution, train))
)
"""Functions of the families of cases, by name."""
WORKLOADS: Final = {kind.__name__: kind for kind in (Timed, Once, ColdStart, Ranks)}


def _points(name: str, preset: Preset) -> list[Point]:
    """Return the points of a case; preset paper selects points of full."""
    if preset != "paper":
        return points_of(name, preset) if name in POINTS else list(FUNCTIONS[f"{name}_points"](preset))
    found = _points(name, "full")
    rows = [row for row in IN_PAPER if matches({"case": name}, [each for each in row if each.startswith("case=")])]
    return [each for each in found if any(matches({"case": name, **each}, row) for row in rows)]


def _pairs(name: str, declared: Sequence[Mapping[str, Any]], preset: Preset) -> Pairs:
    if preset == "paper":
        return []
    points = _points(name, preset)
    return [pair for each in declared for pair in pairs_differing_in(points, **each)]


def _case(name: str, workload: str = "Timed", setup: str = "", **declared: Any) -> Case:
    over, pairs = tuple(declared.pop("over", ())), declared.pop("pairs", [])
    if over:
        pairs = [{"axis": over[0], "bases": over[1:]}]
    return Case(
        name=name,
        points=partial(_points, name),
        pairs=partial(_pairs, name, pairs),
        over=over,
        setup=FUNCTIONS[setup or name],
        workload=WORKLOADS[workload],
        **declared,
    )


CASES: Final = {
    name: _case(name, **declared) for name, declared in read_toml(Path(__file__).with_name("cases.toml")).items()
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
AXES_OF.update({name: lambda: OF_PEERS for name in ("peer", "peer_learn", "peer_solution", "peer_determinism")})


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

"""Points of cases from `points.toml`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warpdrive_min import BACKENDS

from ..core.archive import read_toml
from ..core.point import ON_CPU, ORACLE, PLAIN, PLAIN_ENVS, Point, Preset, matches
from ..judge.published.anchors import ANCHORS
from .shared import EPISODE_LENGTHS, ON_GPU, default_mode, env_point, has_gpu_sizes, shipped_envs, training_point

POINTS: Final = read_toml(Path(__file__).with_name("points.toml"))
"""Rows of points by case; lists of rows and conditions that they name."""
_TASKS: Final = {
    name: [{"learner": "shared", **task} for task in tasks]
    for name, tasks in read_toml(Path(__file__).with_name("tasks.toml")).items()
}
ROWS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    **POINTS["rows"],
    "anchors": [anchor.axes for anchor in ANCHORS],
    "tasks": _TASKS["to_threshold"],
    "whole_tasks": [*(task for task in _TASKS["to_threshold"] if task["learner"] == "shared"), *_TASKS["to_end"]],
}
"""Lists of rows by name."""
SEEDS: Final = range(5)
"""Seeds of runs that stop at the threshold."""
LISTS: Final[Mapping[str, Sequence[Any]]] = {
    "seeds": SEEDS,
    "whole_seeds": range(20),
    "classic": tuple(EPISODE_LENGTHS),
    "backends": tuple(BACKENDS),
    "kernels": tuple(BACKENDS),
    "compiled": tuple(name for name in BACKENDS if name != ORACLE),
    "on_gpu": ON_GPU,
    "on_cpu": ON_CPU,
    "of_torch": ("cpu", "pycuda"),
    "with_numpy": (PLAIN, *BACKENDS),
    "feasible": (PLAIN, *BACKENDS),
}
"""Values by the name of their list; torch is measured once per device."""
CONDITIONS: Final = ("presets", "gpu")
NO_AXES: Final = (*CONDITIONS, "each", "where")
"""Entries of a row that are no axes."""
LIMITED: Final = ("feasible", "kernels")
"""Lists of backends without those that take too long, see `is_feasible`."""
ORACLE_PAIRS: Final = 1_300_000
"""Agent pairs in all environments up to which the reference is measured.

Above that a step takes it seconds."""
ORACLE_ENVS: Final = 100_000
"""Environments up to which the reference is measured; its rate has saturated."""
PLAIN_PAIRS: Final = 100_000_000
"""Agent pairs up to which vectorised NumPy is measured if it computes all."""


def points_of(case: str, preset: Preset) -> list[Point]:
    """Return the points of a case of `points.toml` in a preset."""
    return [point for row in POINTS[case] for point in _product(row, preset)]


def _product(row: Mapping[str, Any], preset: Preset) -> Iterator[Point]:
    """Yield the points of a row.

    The `presets` and `gpu` of the row and of each factor must be met.
    """
    if preset not in row.get("presets", (preset,)):
        return
    conditions = {name: row[name] for name in CONDITIONS if name in row}
    where = row.get("where", ())
    where = POINTS["where"][where] if isinstance(where, str) else where
    values = [[{axis: each} for each in _listed(value)] for axis, value in row.items() if axis not in NO_AXES]
    rows = [ROWS[each] if isinstance(each, str) else each for each in row.get("each", ())]
    for factors in itertools.product([conditions], *values, *rows):
        presets = [each["presets"] for each in factors if "presets" in each] or [("default", "full")]
        has_sizes = all(each["gpu"] == has_gpu_sizes(preset) for each in factors if "gpu" in each)
        if has_sizes and all(preset in each for each in presets):
            axes = {axis: value for each in factors for axis, value in each.items() if axis not in CONDITIONS}
            point = point_of(**axes)
            is_wanted = is_possible(point) and (not where or any(matches(point, each) for each in where))
            if is_wanted and (row.get("backend") not in LIMITED or is_feasible(point)):
                yield point


def _listed(value: Any) -> Sequence[Any]:
    """Return the values of an axis: a list, a named one, or a single value."""
    value = LISTS.get(value, value) if isinstance(value, str) else value
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def point_of(**axes: Any) -> Point:
    """Return a point with these axes and derived ones, in the order of records."""
    if "implementation" in axes:
        return axes
    if "threshold" in axes:
        axes = {"n_envs": shipped_envs(axes["env"], axes["algorithm"]), **axes}
        order = ("env", "backend", "n_envs", "algorithm", "learner", "threshold")
        return {axis: axes.pop(axis) for axis in order if axis in axes} | axes
    axes = {"n_agents": 1, **axes}
    if axes.get("mode") == "":
        axes["mode"] = default_mode(axes["backend"])
    first = {"until": axes.pop("until")} if "until" in axes else {}
    if "n_ranks" in axes:
        first |= {name: axes[name] for name in ("env", "backend")} | {"n_ranks": axes.pop("n_ranks")}
    return first | (training_point if "n_steps" in axes else env_point)(**axes)


def is_possible(point: Point) -> bool:
    """True unless a point needs graphs on a CPU."""
    return point.get("mode") != "graph" or point["backend"] in ON_GPU


def is_feasible(point: Point) -> bool:
    """True unless NumPy would take too long, or has no code of the environment."""
    env, n_envs = point["env"], int(point["n_envs"])
    pairs = n_envs * int(point["n_agents"]) ** 2
    if point["backend"] == PLAIN:
        return env in PLAIN_ENVS and (env != "tag_continuous" or pairs <= PLAIN_PAIRS)
    return point["backend"] != ORACLE or (pairs <= ORACLE_PAIRS and n_envs <= ORACLE_ENVS)

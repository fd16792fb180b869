"""The points of the case `published`: `env_step` at sizes that others were measured at, and that no other case has."""

from __future__ import annotations

from typing import Final

import torch

from bench.case import Point, Preset
from bench.cases.environments import ON_CPU, ON_GPU

Sizes = dict[str, str | int]

NODE: Final[Sizes] = {"env": "tag_continuous", "n_envs": 60, "n_agents": 105, "n_taggers": 5}
"""Of WarpDrive's comparison of a GPU with a node of 16 CPUs."""
FEW: Final[Sizes] = {"env": "cartpole", "n_envs": 1_000, "n_agents": 1}
"""Of WarpDrive as it was measured for this project."""
GRID: Final[Sizes] = {"env": "tag_gridworld", "n_envs": 1_000, "n_agents": 100}
"""The same."""
CROWD: Final[Sizes] = {"env": "tag_gridworld", "n_envs": 2_000, "n_agents": 1_000}
"""Of its highest figure."""
NEAREST: Final[Sizes] = {"env": "tag_continuous", "n_envs": 2_000, "n_agents": 1_000, "n_taggers": 100}
"""The same with a search for neighbours, which would take NumPy minutes a step."""
SIZES: Final = (NODE, FEW, GRID, CROWD, NEAREST)


def published_points(preset: Preset) -> list[Point]:
    """Return the node's point on every backend, the others where there is a GPU to compare; smoke: a tiny node."""
    if preset == "smoke":
        return [_point(NODE | {"n_envs": 3}, backend) for backend in ON_CPU]
    points = [_point(NODE, backend) for backend in (*ON_CPU, *ON_GPU)]
    if torch.cuda.is_available() or preset == "full":
        points += [_point(CROWD, backend) for backend in (*ON_CPU, *ON_GPU)]
        points += [_point(sizes, backend) for sizes in (FEW, GRID, NEAREST) for backend in ON_GPU]
    return points


def _point(sizes: Sizes, backend: str) -> Point:
    return {"env": sizes["env"], "backend": backend, **sizes}

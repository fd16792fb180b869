"""MountainCar: config and spaces."""

from __future__ import annotations

from typing import Any, ClassVar

from warpdrive_min.config import PositiveInt
from warpdrive_min.environment import scene_in, sources_in
from warpdrive_min.spaces import Discrete

from .._common.valley import ValleyCar, ValleyConfig


class MountainCarConfig(ValleyConfig):
    """Config of MountainCar; the defaults are Gymnasium's MountainCar-v0."""

    PLACE: ClassVar[str] = "mountain_car"

    episode_length: PositiveInt = 200
    """Steps until truncation."""
    goal_position: float = 0.5
    """Smallest position of the goal, m."""
    force: float = 0.001
    """Push of the motor to the left or right, m/step^2."""


class MountainCar(ValleyCar):
    """Weak car in a valley, pushed left or right; it must swing to climb out.

    | action | meaning |
    |---|---|
    | 0 | push to the left |
    | 1 | no push |
    | 2 | push to the right |

    | observation | unit | range |
    |---|---|---|
    | 0: position | m | -1.2 to 0.6; goal from 0.5 on |
    | 1: velocity | m/step | -0.07 to 0.07 |

    Reward -1 for every step, the last one included. Terminated at the goal with at least ``goal_velocity``, truncated
    at ``episode_length``. Starts are uniform in -0.6 to -0.4 m, at rest.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control". Constants and order of the updates are
    those of Gymnasium's MountainCar-v0.
    """

    name = "MountainCar"
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    config: MountainCarConfig
    ops_per_step = 40
    """Operations of a step: 10 of the equations, 20 of the cosine, 10 of tests."""

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `MountainCarConfig` from keyword arguments."""
        super().__init__(MountainCarConfig(**config), Discrete(3), env_backend)

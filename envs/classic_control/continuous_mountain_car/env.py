"""ContinuousMountainCar: config and spaces."""

from __future__ import annotations

from typing import Any, ClassVar

from warpdrive_min.config import PositiveInt
from warpdrive_min.environment import scene_in, sources_in
from warpdrive_min.spaces import Box

from .._common.valley import ValleyCar, ValleyConfig


class ContinuousMountainCarConfig(ValleyConfig):
    """Config of ContinuousMountainCar; defaults are MountainCarContinuous-v0.

    That is Gymnasium's environment.
    """

    PLACE: ClassVar[str] = "continuous_mountain_car"

    episode_length: PositiveInt = 999
    """Steps until truncation."""
    goal_position: float = 0.45
    """Smallest position of the goal, m."""
    power: float = 0.0015
    """Push of the motor at action 1, m/step^2."""
    min_action: float = -1.0
    """Smallest action; lower ones are clipped, except in the reward."""
    max_action: float = 1.0
    """Largest action; higher ones are clipped, except in the reward."""
    goal_reward: float = 100.0
    """Reward for reaching the goal."""
    action_cost: float = 0.1
    """Cost per squared action."""

    def _check(self) -> None:
        super()._check()
        self._require_above("min_action", "max_action")


class ContinuousMountainCar(ValleyCar):
    """Weak car in a valley with continuous pushes; it must swing to climb out.

    | action | unit | range |
    |---|---|---|
    | 0: push | 0.0015 m/step^2 | -1 to 1; clipped by the step |

    | observation | unit | range |
    |---|---|---|
    | 0: position | m | -1.2 to 0.6; goal from 0.45 on |
    | 1: velocity | m/step | -0.07 to 0.07 |

    Reward -0.1 times the square of the action before clipping for every step, and 100 more at the goal. Terminated
    at the goal with at least ``goal_velocity``, truncated at ``episode_length``. Starts are uniform in -0.6 to
    -0.4 m, at rest.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control". Constants, continuous action and order of
    the updates are those of Gymnasium's MountainCarContinuous-v0.
    """

    name = "ContinuousMountainCar"
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__, "..mountain_car.scene")
    config: ContinuousMountainCarConfig
    ops_per_step = 45
    """Operations of a step: 15 of equations and reward, 20 of cosine, 10 of tests."""

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `ContinuousMountainCarConfig` from keyword arguments."""
        checked = ContinuousMountainCarConfig(**config)
        super().__init__(checked, Box(checked.min_action, checked.max_action, (1,)), env_backend)

"""ContinuousMountainCar: its config and spaces."""

from __future__ import annotations

from typing import Any, ClassVar

from warpdrive_min.config import PositiveInt
from warpdrive_min.environment import sources_in
from warpdrive_min.rendering import Episode, Scene
from warpdrive_min.spaces import Box

from .._common.valley import ValleyCar, ValleyConfig
from .scene import draw


class ContinuousMountainCarConfig(ValleyConfig):
    """Config of ContinuousMountainCar; the defaults are Gymnasium's MountainCarContinuous-v0."""

    PLACE: ClassVar[str] = "continuous_mountain_car"

    episode_length: PositiveInt = 999
    """Steps after which an episode is cut off."""
    goal_position: float = 0.45
    """Position from which on the goal is reached, m."""
    power: float = 0.0015
    """Push of the motor at action 1, m/step^2."""
    min_action: float = -1.0
    """Least action; those below count as it, except in the reward."""
    max_action: float = 1.0
    """Largest action; those above count as it, except in the reward."""
    goal_reward: float = 100.0
    """Reward for reaching the goal."""
    action_cost: float = 0.1
    """Cost of an action, per square of it."""

    def _check(self) -> None:
        super()._check()
        self._require_above("min_action", "max_action")


class ContinuousMountainCar(ValleyCar):
    """A car in a valley is pushed with a force of its choice; too weak to climb out at once, it has to swing up.

    | action | unit | range |
    |---|---|---|
    | 0: push | 0.0015 m/step^2 | -1 to 1; clipped by the step |

    | observation | unit | range |
    |---|---|---|
    | 0: position | m | -1.2 to 0.6; goal from 0.45 on |
    | 1: velocity | m/step | -0.07 to 0.07 |

    Reward -0.1 times the square of the action, as it was before clipping, for every step, and 100 more at the goal.
    Terminated at the goal with at least ``goal_velocity``, truncated at ``episode_length``. Starts are uniform in
    -0.6 to -0.4 m, at rest.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control"; constants, continuous action and order of
    the updates as in Gymnasium's MountainCarContinuous-v0.
    """

    name = "ContinuousMountainCar"
    kernel_sources = sources_in(__package__)
    config: ContinuousMountainCarConfig

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Take the fields of `ContinuousMountainCarConfig` as keyword arguments."""
        checked = ContinuousMountainCarConfig(**config)
        super().__init__(checked, Box(checked.min_action, checked.max_action, (1,)), env_backend)

    @property
    def ops_per_step(self) -> int:
        """Operations of a step: about 15 of the equations and the reward, 20 of the cosine, 10 of the tests."""
        return 45

    def scene(self, episode: Episode) -> Scene:
        """Show the valley, the goal, the car and its push."""
        return draw(self.config, episode)

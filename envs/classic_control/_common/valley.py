"""The valley that both mountain cars drive in: its config, arrays and starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from envs.classic_control._common.single import SingleAgent, SingleConfig
from warpdrive_min.environment import Array, Arrays
from warpdrive_min.errors import ConfigError

HAIR: Final = 1e-6
"""Distance to a threshold (m, m/step) below which rounding may decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValleyConfig(SingleConfig):
    """Config keys that both cars share; the height of the valley is sin(3 x) in shape, its bottom at -pi / 6 m."""

    positive: ClassVar[tuple[str, ...]] = ("max_speed",)

    gravity: float = 0.0025
    """Pull down the steepest slope, m/step^2."""
    max_speed: float = 0.07
    """m/step."""
    min_position: float = -1.2
    """The wall on the left, which stops the car, m."""
    max_position: float = 0.6
    """The end on the right, which the car does not pass, m."""
    goal_position: float
    """Position from which on the goal is reached, m."""
    goal_velocity: float = 0.0
    """Velocity that the car must have there at least, m/step."""
    min_start: float = -0.6
    """A start is uniform from here, m, at rest."""
    max_start: float = -0.4
    """A start is uniform up to here, m, at rest."""

    def __post_init__(self) -> None:
        SingleConfig.__post_init__(self)  # super() knows not the class that slots=True makes
        for low, high in (("min_position", "max_position"), ("min_start", "max_start")):
            require_above(self, low, high)
        if self.min_start < self.min_position or self.max_start > self.max_position:
            raise ConfigError(
                f"{self.environment}: starts must lie from min_position = {self.min_position} to "
                f"max_position = {self.max_position} (got {self.min_start} to {self.max_start})"
            )


def require_above(config: ValleyConfig, low: str, high: str) -> None:
    """Raise `ConfigError` unless one field is above another one."""
    if not getattr(config, low) < getattr(config, high):
        raise ConfigError(
            f"{config.environment}.{high}: must be above {low} = {getattr(config, low)} (got {getattr(config, high)})"
        )


class ValleyCar(SingleAgent):
    """A car whose motor is too weak to climb out of a valley without a swing; base of both mountain cars."""

    config: ValleyConfig
    n_state = n_features = 2

    def rounding_decides(self, before: Arrays, after: Arrays) -> tuple[Array, Array]:
        """Put in doubt who is within a hair of the goal, or of the wall, which stops who touches it."""
        x, v = after["state"][:, 0].T
        beyond = x - self.config.goal_position
        envs = np.abs(beyond) < HAIR
        envs |= (beyond > 0) & (np.abs(v - self.config.goal_velocity) < HAIR)
        envs |= np.abs(x - self.config.min_position) < HAIR
        return envs, np.zeros((len(envs), 1), bool)

    def get_physics(self) -> dict[str, float]:
        """Return the constants of the equations, the bounds, the goal and the range of starts."""
        config = self.config
        start_width = config.max_start - config.min_start
        return {
            "GRAVITY": config.gravity,
            "MAX_SPEED": config.max_speed,
            "MIN_POSITION": config.min_position,
            "MAX_POSITION": config.max_position,
            "GOAL_POSITION": config.goal_position,
            "GOAL_VELOCITY": config.goal_velocity,
            "START_WIDTH": start_width,
            "START_OFFSET": config.min_start / start_width,
        }

    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw starts, uniform in the position and at rest."""
        position = generator.uniform(self.config.min_start, self.config.max_start, n_rows)
        return np.stack([position, np.zeros(n_rows)], axis=1)

"""The valley that both mountain cars drive in: its config, arrays and starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from warpdrive_min.backends.base import Constant
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Array, Arrays, Environment
from warpdrive_min.errors import ConfigError

HAIR: Final = 1e-6
"""Distance to a threshold (m, m/step) below which rounding may decide."""
N_FEATURES: Final = 2
"""Position (m), velocity (m/step)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValleyConfig:
    """What the configs of both cars share; the height of the valley is sin(3 x) in shape, its bottom at -pi / 6 m."""

    environment: ClassVar[str]
    """Name of the environment in messages."""

    episode_length: int
    """Steps after which an episode is cut off."""
    reset_pool_size: int = 0
    """Starts: 0, a new one for each environment and episode; 1, always the same; more, a row of a pool of that size."""
    seed: int | None = None
    """Seed of the pool; None: 0."""
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
        for name in ("episode_length", "max_speed"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{self.environment}.{name}: must be positive (got {getattr(self, name)})")
        if self.reset_pool_size < 0:
            raise ConfigError(
                f"{self.environment}.reset_pool_size: must not be negative (got {self.reset_pool_size}); "
                "0 draws a new start for every episode"
            )
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


class ValleyCar(Environment):
    """A car whose motor is too weak to climb out of a valley without a swing; base of both mountain cars.

    A subclass sets `action_dtype`, its ``action_space`` and ``kernel_sources``.
    """

    config: ValleyConfig
    action_dtype: ClassVar[type[np.generic]]
    """Type of ``sampled_actions``."""

    def __init__(self, config: ValleyConfig, env_backend: str) -> None:
        super().__init__(env_backend)
        self.config = config
        self.num_agents = 1
        self.agents = {0: True}
        self.episode_length = config.episode_length

    @property
    def bytes_per_step(self) -> int:
        """State in and out 16, observation 8, reward 4, action 4, step counter in and out 8, three flags 12."""
        return 52

    def rounding_decides(self, before: Arrays, after: Arrays) -> tuple[Array, Array]:
        """Put in doubt who is within a hair of the goal, or of the wall, which stops who touches it."""
        x, v = after["state"][:, 0].T
        beyond = x - self.config.goal_position
        envs = np.abs(beyond) < HAIR
        envs |= (beyond > 0) & (np.abs(v - self.config.goal_velocity) < HAIR)
        envs |= np.abs(x - self.config.min_position) < HAIR
        return envs, np.zeros((len(envs), 1), bool)

    def get_constants(self) -> dict[str, Constant]:
        """Return the physics, rounded to float32 by the backends."""
        config = self.config
        start_width = config.max_start - config.min_start
        return {
            "RESET_POOL_SIZE": config.reset_pool_size,
            "GRAVITY": float(config.gravity),
            "MAX_SPEED": float(config.max_speed),
            "MIN_POSITION": float(config.min_position),
            "MAX_POSITION": float(config.max_position),
            "GOAL_POSITION": float(config.goal_position),
            "GOAL_VELOCITY": float(config.goal_velocity),
            "START_WIDTH": float(start_width),
            "START_OFFSET": config.min_start / start_width,
        }

    def get_data_dictionary(self) -> DataFeed:
        """State, and the pool where it is no pool to draw from: unused, or the one start."""
        feed = DataFeed()
        feed.add_data("state", np.zeros((1, N_FEATURES), np.float32), per_env=True)
        if self.config.reset_pool_size < 2:
            feed.add_data("state_reset_pool", self._pool())
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """What a trainer reads and writes."""
        feed = DataFeed()
        feed.add_data("observations", np.zeros((1, N_FEATURES), np.float32), per_env=True)
        feed.add_data("final_observations", np.zeros((1, N_FEATURES), np.float32), per_env=True)
        feed.add_data("sampled_actions", np.zeros((1, 1), self.action_dtype), per_env=True)
        feed.add_data("rewards", np.zeros(1, np.float32), per_env=True)
        feed.add_data("terminated", np.zeros((), np.int32), per_env=True)
        feed.add_data("truncated", np.zeros((), np.int32), per_env=True)
        return feed

    def get_reset_pool_dictionary(self) -> DataFeed:
        """Return the pool of starts, if there is one to draw from."""
        feed = DataFeed()
        if self.config.reset_pool_size >= 2:
            feed.add_pool_for_reset("state_reset_pool", self._pool(), reset_target="state")
        return feed

    def _pool(self) -> np.ndarray[Any, Any]:
        """Draw the starts; the first row is Gymnasium's start for the same seed."""
        generator = np.random.default_rng(self.config.seed or 0)
        pool = np.zeros((max(1, self.config.reset_pool_size), 1, N_FEATURES), np.float32)
        pool[:, 0, 0] = generator.uniform(self.config.min_start, self.config.max_start, len(pool))
        return pool

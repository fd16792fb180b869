"""Valley of both mountain cars: config and starts."""

from __future__ import annotations

from typing import Final

import numpy as np

from warpdrive_min.config import PositiveFloat
from warpdrive_min.environment import Array

from .single import SingleAgent, SingleConfig

ROUNDING_MARGIN: Final = 1e-6
"""Distance to a threshold (m, m/step) below which rounding may decide."""


class ValleyConfig(SingleConfig):
    """Config of a car in a valley with height sin(3 x) and bottom at -pi / 6 m."""

    gravity: float = 0.0025
    """Acceleration down the steepest slope, m/step^2."""
    max_speed: PositiveFloat = 0.07
    """Bound of the speed, m/step."""
    min_position: float = -1.2
    """Position of the left wall, which stops the car, m."""
    max_position: float = 0.6
    """Largest position, where the car stays, m."""
    goal_position: float
    """Smallest position of the goal, m."""
    goal_velocity: float = 0.0
    """Minimum velocity at the goal, m/step."""
    min_start: float = -0.6
    """Smallest start position, m; starts are uniform and at rest."""
    max_start: float = -0.4
    """Largest start position, m."""

    @property
    def start_width(self) -> float:
        """Width of the range of starts, m."""
        return self.max_start - self.min_start

    @property
    def start_offset(self) -> float:
        """Smallest start position, in widths of the range."""
        return self.min_start / self.start_width

    def _check(self) -> None:
        super()._check()
        self._require_above("min_position", "max_position")
        self._require_above("min_start", "max_start")
        low, high = self.min_position, self.max_position
        self._require("min_start", self.min_start >= low, f"must be at least min_position = {low}")
        self._require("max_start", self.max_start <= high, f"must be at most max_position = {high}")

    def _require_above(self, low: str, high: str) -> None:
        self._require(high, getattr(self, low) < getattr(self, high), f"must be above {low} = {getattr(self, low)}")


class ValleyCar(SingleAgent):
    """Base of both mountain cars: a weak car that must swing out of a valley."""

    config: ValleyConfig
    n_state = n_features = 2

    def near_threshold(self, state: Array) -> Array:
        """Return a mask of cars near the goal, or near the wall that stops them."""
        x, v = state.T
        beyond = x - self.config.goal_position
        near: Array = np.abs(beyond) < ROUNDING_MARGIN
        near |= (beyond > 0) & (np.abs(v - self.config.goal_velocity) < ROUNDING_MARGIN)
        near |= np.abs(x - self.config.min_position) < ROUNDING_MARGIN
        return near

    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw starts with uniform position, at rest."""
        position = generator.uniform(self.config.min_start, self.config.max_start, n_rows)
        return np.stack([position, np.zeros(n_rows)], axis=1)

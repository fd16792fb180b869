"""CartPole: config, arrays and spaces."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from warpdrive_min.config import PositiveFloat, PositiveInt
from warpdrive_min.environment import Array, scene_in, sources_in
from warpdrive_min.spaces import Discrete

from .._common.single import SingleAgent, SingleConfig

ROUNDING_MARGIN = 1e-5
"""Distance to a threshold (m, rad) below which rounding may decide."""


class CartPoleConfig(SingleConfig):
    """Config of CartPole; the defaults are Gymnasium's CartPole-v1."""

    PLACE: ClassVar[str] = "cartpole"

    episode_length: PositiveInt = 500
    """Steps until truncation."""
    gravity: float = 9.8
    """Acceleration of gravity, m/s^2."""
    cart_mass: PositiveFloat = 1.0
    """Mass of the cart, kg."""
    pole_mass: PositiveFloat = 0.1
    """Mass of the pole, kg."""
    half_length: PositiveFloat = 0.5
    """Half the pole's length, m."""
    force: float = 10.0
    """Push to the left or right, N."""
    time_step: PositiveFloat = 0.02
    """Length of a step, s."""
    max_angle: float = 12 * 2 * math.pi / 360
    """Pole angle at which the episode ends, rad."""
    max_position: float = 2.4
    """Cart position at which the episode ends, m."""
    start_range: float = 0.05
    """Starts are uniform within plus or minus this in every component."""

    @property
    def total_mass(self) -> float:
        """Mass of cart and pole, kg."""
        return self.cart_mass + self.pole_mass

    @property
    def pole_mass_length(self) -> float:
        """Pole mass times half its length, kg m."""
        return self.pole_mass * self.half_length


class CartPole(SingleAgent):
    """Pole on a cart that is pushed left or right; keep the pole upright.

    | action | meaning |
    |---|---|
    | 0 | push to the left |
    | 1 | push to the right |

    | observation | unit | range |
    |---|---|---|
    | 0: cart position | m | ends outside +-2.4 |
    | 1: cart velocity | m/s | |
    | 2: pole angle | rad | ends outside +-0.2094 (12 degrees) |
    | 3: pole angular velocity | rad/s | |

    Reward 1 for every step, the last one included. Terminated outside the ranges, truncated at
    ``episode_length``. Starts are uniform in +-0.05 in every component.

    Source: Barto, Sutton, Anderson 1983; constants and explicit Euler integration as in Gymnasium's CartPole-v1.
    """

    name = "CartPole"
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    config: CartPoleConfig
    n_state = n_features = 4
    ops_per_step = 80
    """Operations of a step: 30 of the equations, 40 of sine and cosine, 10 of tests."""

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `CartPoleConfig` from keyword arguments."""
        super().__init__(CartPoleConfig(**config), Discrete(2), env_backend)

    def near_threshold(self, state: Array) -> Array:
        """Return a mask of states near a bound of position or angle."""
        near = np.abs(np.abs(state[:, 0]) - self.config.max_position) < ROUNDING_MARGIN
        near |= np.abs(np.abs(state[:, 2]) - self.config.max_angle) < ROUNDING_MARGIN
        return near

    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw starts, uniform in every component."""
        return generator.uniform(-self.config.start_range, self.config.start_range, (n_rows, self.n_state))

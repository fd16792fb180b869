"""Pendulum: its config, arrays and spaces."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from warpdrive_min.config import PositiveFloat, PositiveInt
from warpdrive_min.environment import Array, sources_in
from warpdrive_min.rendering import Episode, Scene
from warpdrive_min.spaces import Box

from .._common.single import SingleAgent, SingleConfig
from .scene import draw

VELOCITY_COST = 0.1
"""Cost of the squared angular velocity, s^2/rad^2."""
TORQUE_COST = 0.001
"""Cost of the squared torque, 1/(N m)^2."""


class PendulumConfig(SingleConfig):
    """Config of Pendulum; the defaults are Gymnasium's Pendulum-v1."""

    PLACE: ClassVar[str] = "pendulum"

    episode_length: PositiveInt = 200
    """Steps after which an episode is cut off."""
    gravity: float = 10.0
    """Acceleration of gravity, m/s^2; WarpDrive has 9.81."""
    mass: PositiveFloat = 1.0
    """Mass of the rod, kg."""
    length: PositiveFloat = 1.0
    """Length of the rod, m."""
    max_velocity: PositiveFloat = 8.0
    """Bound of the angular velocity, rad/s."""
    max_torque: PositiveFloat = 2.0
    """Bound to which actions are clipped, plus or minus, N m."""
    time_step: PositiveFloat = 0.05
    """Length of a step, s."""
    start_angle: float = math.pi
    """Bound of the angle of a start, which is uniform within plus or minus this, rad."""
    start_velocity: float = 1.0
    """Bound of the velocity of a start, which is uniform within plus or minus this, rad/s."""

    @property
    def gravity_gain(self) -> float:
        """Angular acceleration by gravity for each unit of the sine, rad/s^2."""
        return 3 * self.gravity / (2 * self.length)

    @property
    def torque_gain(self) -> float:
        """Angular acceleration for each N m, rad/s^2: one over the rod's moment of inertia about its end."""
        return 3 / (self.mass * self.length**2)

    def physics(self) -> dict[str, float]:
        """Return the floats of the config, and the costs."""
        return {**super().physics(), "VELOCITY_COST": VELOCITY_COST, "TORQUE_COST": TORQUE_COST}


class Pendulum(SingleAgent):
    """A rod hangs from a joint with a motor that is too weak to lift it at once: swing it up and hold it.

    | action | unit | range |
    |---|---|---|
    | torque, float32 | N m | +-2, clipped |

    | observation | unit | range |
    |---|---|---|
    | 0: cosine of the angle, 0 upright | | +-1 |
    | 1: sine of the angle | | +-1 |
    | 2: angular velocity | rad/s | +-8 |

    Reward ``-(angle^2 + 0.1 velocity^2 + 0.001 torque^2)`` with the state before the step, the angle within +-pi
    and the torque after clipping: from -16.27 to 0. Never terminated, truncated at ``episode_length``. Starts are
    uniform, the angle in +-pi, the velocity in +-1.

    Source: Gymnasium's Pendulum-v1: constants and semi-implicit Euler integration. Different from it: in the state it
    lets the angle grow, in float64. Here it is float32, whose spacing at the 80 rad that 200 steps can reach is
    7.6e-6 and grows with the angle, so each step first takes it back within +-pi, where the spacing is at most
    2.4e-7; after a step it may be ``max_velocity * time_step`` beyond. Only ``state`` shows that, and it is compared
    modulo 2 pi. Different in WarpDrive: gravity is 9.81 there.
    """

    name = "Pendulum"
    tolerance = 5e-5
    kernel_sources = sources_in(__package__)
    config: PendulumConfig
    n_state, n_features = 2, 3
    state_period = (2 * math.pi, 0.0)

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Take the fields of `PendulumConfig` as keyword arguments."""
        checked = PendulumConfig(**config)
        super().__init__(checked, Box(-checked.max_torque, checked.max_torque, (1,)), env_backend)

    @property
    def ops_per_step(self) -> int:
        """Operations of a step: about 30 of the equations, 70 of the sine before and sine and cosine after it."""
        return 100

    def scene(self, episode: Episode) -> Scene:
        """Show the pendulum and its torque."""
        return draw(self.config, episode)

    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw starts, uniform in both components."""
        limits = np.array([self.config.start_angle, self.config.start_velocity])
        return generator.uniform(-limits, limits, (n_rows, self.n_state))

"""Pendulum: config, arrays and spaces."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from warpdrive_min.config import PositiveFloat, PositiveInt
from warpdrive_min.environment import Array, scene_in, sources_in
from warpdrive_min.spaces import Box

from .._common.single import SingleAgent, SingleConfig

VELOCITY_COST = 0.1
"""Cost of the squared angular velocity, s^2/rad^2."""
TORQUE_COST = 0.001
"""Cost of the squared torque, 1/(N m)^2."""


class PendulumConfig(SingleConfig):
    """Config of Pendulum; the defaults are Gymnasium's Pendulum-v1."""

    PLACE: ClassVar[str] = "pendulum"

    episode_length: PositiveInt = 200
    """Steps until truncation."""
    gravity: float = 10.0
    """Acceleration of gravity, m/s^2; 9.81 in WarpDrive."""
    mass: PositiveFloat = 1.0
    """Mass of the rod, kg."""
    length: PositiveFloat = 1.0
    """Length of the rod, m."""
    max_velocity: PositiveFloat = 8.0
    """Bound of the angular velocity, rad/s."""
    max_torque: PositiveFloat = 2.0
    """Bound of the torque, plus or minus, N m; actions are clipped to it."""
    time_step: PositiveFloat = 0.05
    """Length of a step, s."""
    start_angle: float = math.pi
    """Starts have a uniform angle within plus or minus this, rad."""
    start_velocity: float = 1.0
    """Starts have a uniform velocity within plus or minus this, rad/s."""

    @property
    def gravity_gain(self) -> float:
        """Angular acceleration by gravity per unit of the sine, rad/s^2."""
        return 3 * self.gravity / (2 * self.length)

    @property
    def torque_gain(self) -> float:
        """Angular acceleration per N m, rad/s^2.

        It is the inverse of the rod's moment of inertia about its end.
        """
        return 3 / (self.mass * self.length**2)

    def physics(self) -> dict[str, float]:
        """Return the floats of the config, and the costs."""
        return {**super().physics(), "VELOCITY_COST": VELOCITY_COST, "TORQUE_COST": TORQUE_COST}


class Pendulum(SingleAgent):
    """Rod on a joint with a weak motor: swing it up and hold it.

    | action | unit | range |
    |---|---|---|
    | torque, float32 | N m | +-2, clipped |

    | observation | unit | range |
    |---|---|---|
    | 0: cosine of the angle, 0 upright | | +-1 |
    | 1: sine of the angle | | +-1 |
    | 2: angular velocity | rad/s | +-8 |

    Reward ``-(angle^2 + 0.1 velocity^2 + 0.001 torque^2)`` from the state before the step, with the angle within +-pi
    and the clipped torque: from -16.27 to 0. Never terminated, truncated at ``episode_length``. Starts are uniform:
    the angle in +-pi, the velocity in +-1.

    Source: Gymnasium's Pendulum-v1, with its constants and semi-implicit Euler integration. Difference: Gymnasium's
    angle grows in float64. In float32 the spacing at 80 rad, which 200 steps can reach, is 7.6e-6 and grows with the
    angle. So each step first wraps the angle to +-pi, where the spacing is at most 2.4e-7. After a step it may be
    ``max_velocity * time_step`` beyond. Only ``state`` shows this; it is compared modulo 2 pi. WarpDrive's gravity
    is 9.81.
    """

    name = "Pendulum"
    tolerance = 5e-5
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    config: PendulumConfig
    n_state, n_features = 2, 3
    state_period = (2 * math.pi, 0.0)
    ops_per_step = 100
    """Operations of a step: 30 of the equations, 70 of two sines and a cosine."""

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `PendulumConfig` from keyword arguments."""
        checked = PendulumConfig(**config)
        super().__init__(checked, Box(-checked.max_torque, checked.max_torque, (1,)), env_backend)

    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw starts, uniform in both components."""
        limits = np.array([self.config.start_angle, self.config.start_velocity])
        return generator.uniform(-limits, limits, (n_rows, self.n_state))

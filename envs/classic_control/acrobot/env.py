"""Acrobot: config, arrays and spaces."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from warpdrive_min.config import PositiveFloat, PositiveInt
from warpdrive_min.environment import Array, scene_in, sources_in
from warpdrive_min.spaces import Discrete

from .._common.single import SingleAgent, SingleConfig

ROUNDING_MARGIN = 1e-5
"""Distance to the goal's height below which rounding may decide, m.

A step's error is 1e-6 at 10 rad/s.
"""


class AcrobotConfig(SingleConfig):
    """Config of Acrobot; the defaults are Gymnasium's Acrobot-v1."""

    PLACE: ClassVar[str] = "acrobot"

    episode_length: PositiveInt = 500
    """Steps until truncation."""
    gravity: float = 9.8
    """Acceleration of gravity, m/s^2."""
    link_mass_1: PositiveFloat = 1.0
    """Mass of the link at the fixed joint, kg."""
    link_mass_2: PositiveFloat = 1.0
    """Mass of the link at the driven joint, kg."""
    link_length_1: PositiveFloat = 1.0
    """Length of the link at the fixed joint, m."""
    link_length_2: PositiveFloat = 1.0
    """Length of the other link, m; affects only the height of the tip."""
    link_com_1: PositiveFloat = 0.5
    """Distance from the fixed joint to the first link's centre of mass, m."""
    link_com_2: PositiveFloat = 0.5
    """Distance from the driven joint to the second link's centre of mass, m."""
    link_moi: PositiveFloat = 1.0
    """Moment of inertia of each link about its centre of mass, kg m^2."""
    torque: float = 1.0
    """Torque of the driven joint, N m."""
    max_velocity_1: PositiveFloat = 4 * math.pi
    """Bound of the first joint's velocity, rad/s."""
    max_velocity_2: PositiveFloat = 9 * math.pi
    """Bound of the second joint's velocity, rad/s."""
    goal_height: float = 1.0
    """Height of the tip above the fixed joint that ends the episode, m."""
    time_step: PositiveFloat = 0.2
    """Length of a step, s."""
    start_range: float = 0.1
    """Starts are uniform within plus or minus this in every component."""

    @property
    def inertia_1(self) -> float:
        """Inertia about the fixed joint, kg m^2, independent of the second angle."""
        elbow = self.link_mass_2 * (self.link_length_1**2 + self.link_com_2**2)
        return self.link_mass_1 * self.link_com_1**2 + elbow + 2 * self.link_moi

    @property
    def inertia_2(self) -> float:
        """Inertia of the second link about the driven joint, kg m^2."""
        return self.link_mass_2 * self.link_com_2**2 + self.link_moi

    @property
    def coupling(self) -> float:
        """Factor of the second angle's cosine in the joints' coupled inertia, kg m^2."""
        return self.link_mass_2 * self.link_length_1 * self.link_com_2

    @property
    def weight_1(self) -> float:
        """Torque of gravity on the fixed joint, N m.

        It includes the first link and the load at the driven joint.
        """
        return (self.link_mass_1 * self.link_com_1 + self.link_mass_2 * self.link_length_1) * self.gravity

    @property
    def weight_2(self) -> float:
        """Torque of gravity on the driven joint, N m."""
        return self.link_mass_2 * self.link_com_2 * self.gravity

    def physics(self) -> dict[str, float]:
        """Return the floats of the config, and others under the kernels' names."""
        return {
            **super().physics(),
            "LENGTH_1": self.link_length_1,
            "LENGTH_2": self.link_length_2,
            "HALF_STEP": self.time_step / 2,
            "SIXTH_STEP": self.time_step / 6,
        }


class Acrobot(SingleAgent):
    """Two links on a fixed joint; a motor between them swings the tip up.

    | action | meaning |
    |---|---|
    | 0 | torque of -1 N m on the joint between the links |
    | 1 | no torque |
    | 2 | torque of 1 N m |

    | observation | unit | range |
    |---|---|---|
    | 0, 1: cosine and sine of the first angle, 0 hanging down | | +-1 |
    | 2, 3: cosine and sine of the second angle, 0 in line with the first link | | +-1 |
    | 4: angular velocity of the first joint | rad/s | +-4 pi |
    | 5: angular velocity of the second joint | rad/s | +-9 pi |

    Reward -1 for every step, 0 for the one that reaches the goal. Terminated when the tip is higher than 1 m above
    the fixed joint, ``-cos(angle 1) - cos(angle 1 + angle 2) > 1``; truncated at ``episode_length``. Starts are
    uniform in +-0.1 in both angles and both velocities. The state has the angles, within +-pi.

    Source: Sutton 1996, "Generalization in Reinforcement Learning: Successful Examples Using Sparse Coarse Coding",
    with the equations of Sutton and Barto's book. Constants and one fourth-order Runge-Kutta step of 0.2 s are those of
    Gymnasium's Acrobot-v1. Difference: all is float32; Gymnasium uses float64.
    """

    name = "Acrobot"
    tolerance = 1e-4
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    config: AcrobotConfig
    n_state, n_features = 4, 6
    state_period = (2 * math.pi, 2 * math.pi, 0.0, 0.0)
    ops_per_step = 690
    """Operations of a step.

    Four slopes of 130 (100 of them sines), 60 to add up, 110 to wrap, observe, test.
    """

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `AcrobotConfig` from keyword arguments."""
        super().__init__(AcrobotConfig(**config), Discrete(3), env_backend)

    def near_threshold(self, state: Array) -> Array:
        """Return a mask of tips near the goal's height; angle wrapping decides nothing."""
        angle_1, angle_2 = state[:, :2].astype(np.float64).T
        config = self.config
        height = -config.link_length_1 * np.cos(angle_1) - config.link_length_2 * np.cos(angle_1 + angle_2)
        near: Array = np.abs(height - config.goal_height) < ROUNDING_MARGIN
        return near

    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw starts, uniform in every component."""
        return generator.uniform(-self.config.start_range, self.config.start_range, (n_rows, self.n_state))

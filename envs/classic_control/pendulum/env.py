"""Pendulum: its config, arrays and spaces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from envs.classic_control.pendulum.scene import draw
from warpdrive_min.backends.base import Constant, Language, Source
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Environment
from warpdrive_min.errors import ConfigError
from warpdrive_min.rendering import Episode, Scene
from warpdrive_min.spaces import Box

N_STATE = 2
"""Angle (rad), angular velocity (rad/s)."""
N_FEATURES = 3
"""Cosine and sine of the angle, angular velocity (rad/s)."""

VELOCITY_COST = 0.1
"""Cost of the squared angular velocity, s^2/rad^2."""
TORQUE_COST = 0.001
"""Cost of the squared torque, 1/(N m)^2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendulumConfig:
    """Config of Pendulum; the defaults are Gymnasium's Pendulum-v1."""

    episode_length: int = 200
    """Steps after which an episode is cut off."""
    reset_pool_size: int = 0
    """Starts: 0, a new one for each environment and episode; 1, always the same; more, a row of a pool of that size."""
    seed: int | None = None
    """Seed of the pool; None: 0."""
    gravity: float = 10.0
    """m/s^2; WarpDrive has 9.81."""
    mass: float = 1.0
    """Of the rod, kg."""
    length: float = 1.0
    """Of the rod, m."""
    max_velocity: float = 8.0
    """Bound of the angular velocity, rad/s."""
    max_torque: float = 2.0
    """Actions are clipped to plus or minus this, N m."""
    time_step: float = 0.05
    """s."""
    start_angle: float = math.pi
    """Angles of starts are uniform within plus or minus this, rad."""
    start_velocity: float = 1.0
    """Velocities of starts are uniform within plus or minus this, rad/s."""

    def __post_init__(self) -> None:
        for name in ("episode_length", "mass", "length", "max_velocity", "max_torque", "time_step"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"pendulum.{name}: must be positive (got {getattr(self, name)})")
        if self.reset_pool_size < 0:
            raise ConfigError(f"pendulum.reset_pool_size: must not be negative (got {self.reset_pool_size})")

    @property
    def gravity_gain(self) -> float:
        """Angular acceleration by gravity for each unit of the sine, rad/s^2."""
        return 3 * self.gravity / (2 * self.length)

    @property
    def torque_gain(self) -> float:
        """Angular acceleration for each N m, rad/s^2: one over the rod's moment of inertia about its end."""
        return 3 / (self.mass * self.length**2)


class Pendulum(Environment):
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
    kernel_sources: ClassVar[dict[Language, Source]] = {
        "numpy": "envs.classic_control.pendulum.reference",
        "cuda_c": Path(__file__).with_name("kernel.cu"),
        "numba": "envs.classic_control.pendulum.kernel_numba",
    }

    def __init__(self, *, env_backend: str = "cpu", **config: int | float | None) -> None:
        """Take the fields of `PendulumConfig` as keyword arguments."""
        super().__init__(env_backend)
        self.config = PendulumConfig(**config)  # type: ignore[arg-type]
        self.num_agents = 1
        self.agents = {0: True}
        self.episode_length = self.config.episode_length
        self.action_space = {0: Box(-self.config.max_torque, self.config.max_torque, (1,))}

    @property
    def bytes_per_step(self) -> int:
        """State in and out 16, observation 12, reward 4, action 4, step counter in and out 8, three flags 12."""
        return 56

    @property
    def ops_per_step(self) -> int:
        """About 30 operations of the equations, 70 of the sine before the step and sine and cosine after it."""
        return 100

    def scene(self, episode: Episode) -> Scene:
        """Show the pendulum and its torque."""
        return draw(self.config, episode)

    def get_constants(self) -> dict[str, Constant]:
        """Return the physics, rounded to float32 by the backends."""
        config = self.config
        physics = {
            "GRAVITY_GAIN": config.gravity_gain,
            "TORQUE_GAIN": config.torque_gain,
            "MAX_VELOCITY": config.max_velocity,
            "MAX_TORQUE": config.max_torque,
            "TIME_STEP": config.time_step,
            "VELOCITY_COST": VELOCITY_COST,
            "TORQUE_COST": TORQUE_COST,
            "START_ANGLE": config.start_angle,
            "START_VELOCITY": config.start_velocity,
            "PI": math.pi,
            "TWO_PI": 2 * math.pi,
        }
        # A config may say 10 for 10.0; compiled in as an int it would make Numba compute in float64.
        floats: dict[str, Constant] = {name: float(value) for name, value in physics.items()}
        return {"RESET_POOL_SIZE": config.reset_pool_size, **floats}

    def get_data_dictionary(self) -> DataFeed:
        """State, and the pool where it is no pool to draw from: unused, or the one start."""
        feed = DataFeed()
        feed.add_data("state", np.zeros((1, N_STATE), np.float32), per_env=True, period=(2 * math.pi, 0.0))
        if self.config.reset_pool_size < 2:
            feed.add_data("state_reset_pool", self._pool())
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """What a trainer reads and writes."""
        feed = DataFeed()
        feed.add_data("observations", np.zeros((1, N_FEATURES), np.float32), per_env=True)
        feed.add_data("final_observations", np.zeros((1, N_FEATURES), np.float32), per_env=True)
        feed.add_data("sampled_actions", np.zeros((1, 1), np.float32), per_env=True)
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

    def _pool(self) -> np.ndarray:
        """Draw the starts; the first row is Gymnasium's start for the same seed."""
        generator = np.random.default_rng(self.config.seed or 0)
        limits = np.array([self.config.start_angle, self.config.start_velocity])
        n_rows = max(1, self.config.reset_pool_size)
        return generator.uniform(-limits, limits, (n_rows, 1, N_STATE)).astype(np.float32)

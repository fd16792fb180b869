"""CartPole: its config, arrays and spaces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from envs.classic_control.cartpole.scene import draw
from warpdrive_min.backends.base import Constant, Language, Source
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Array, Arrays, Environment
from warpdrive_min.errors import ConfigError
from warpdrive_min.rendering import Episode, Scene
from warpdrive_min.spaces import Discrete

HAIR = 1e-5
"""Distance to a threshold (m, rad) below which rounding may decide."""
N_FEATURES = 4
"""Cart position (m), cart velocity (m/s), pole angle (rad), pole angular velocity (rad/s)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CartPoleConfig:
    """Config of CartPole; the defaults are Gymnasium's CartPole-v1."""

    episode_length: int = 500
    """Steps after which an episode is cut off."""
    reset_pool_size: int = 0
    """Starts: 0, a new one for each environment and episode; 1, always the same; more, a row of a pool of that size."""
    seed: int | None = None
    """Seed of the pool; None: 0."""
    gravity: float = 9.8
    """m/s^2."""
    cart_mass: float = 1.0
    """kg."""
    pole_mass: float = 0.1
    """kg."""
    half_length: float = 0.5
    """Half the pole's length, m."""
    force: float = 10.0
    """Push to the left or right, N."""
    time_step: float = 0.02
    """s."""
    max_angle: float = 12 * 2 * math.pi / 360
    """Pole angle at which the episode ends, rad."""
    max_position: float = 2.4
    """Cart position at which the episode ends, m."""
    start_range: float = 0.05
    """Every component of a start is uniform within plus or minus this."""

    def __post_init__(self) -> None:
        for name in ("episode_length", "cart_mass", "pole_mass", "half_length", "time_step"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"cartpole.{name}: must be positive (got {getattr(self, name)})")
        if self.reset_pool_size < 0:
            raise ConfigError(f"cartpole.reset_pool_size: must not be negative (got {self.reset_pool_size})")

    @property
    def total_mass(self) -> float:
        """Cart and pole, kg."""
        return self.cart_mass + self.pole_mass

    @property
    def pole_mass_length(self) -> float:
        """Pole mass times half its length, kg m."""
        return self.pole_mass * self.half_length


class CartPole(Environment):
    """A pole stands on a cart that is pushed left or right; the longer it stands, the better.

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
    kernel_sources: ClassVar[dict[Language, Source]] = {
        "numpy": "envs.classic_control.cartpole.reference",
        "cuda_c": Path(__file__).with_name("kernel.cu"),
        "numba": "envs.classic_control.cartpole.kernel_numba",
    }

    def __init__(self, *, env_backend: str = "cpu", **config: int | float | None) -> None:
        """Take the fields of `CartPoleConfig` as keyword arguments."""
        super().__init__(env_backend)
        self.config = CartPoleConfig(**config)  # type: ignore[arg-type]
        self.num_agents = 1
        self.agents = {0: True}
        self.episode_length = self.config.episode_length
        self.action_space = {0: Discrete(2)}

    @property
    def bytes_per_step(self) -> int:
        """State in and out 32, observation 16, reward 4, action 4, step counter in and out 8, three flags 12."""
        return 76

    @property
    def ops_per_step(self) -> int:
        """About 30 operations of the equations, 40 of sine and cosine, 10 of the tests."""
        return 80

    def rounding_decides(self, before: Arrays, after: Arrays) -> tuple[Array, Array]:
        """Put in doubt who is within a hair of a threshold."""
        state = after["state"][:, 0]
        envs = np.abs(np.abs(state[:, 0]) - self.config.max_position) < HAIR
        envs |= np.abs(np.abs(state[:, 2]) - self.config.max_angle) < HAIR
        return envs, np.zeros((len(envs), 1), bool)

    def scene(self, episode: Episode) -> Scene:
        """Show the cart on its track, the pole, and the bounds that end an episode."""
        return draw(self.config, episode)

    def get_constants(self) -> dict[str, Constant]:
        """Return the physics, rounded to float32 by the backends."""
        config = self.config
        return {
            "RESET_POOL_SIZE": config.reset_pool_size,
            "GRAVITY": config.gravity,
            "POLE_MASS": config.pole_mass,
            "TOTAL_MASS": config.total_mass,
            "HALF_LENGTH": config.half_length,
            "POLE_MASS_LENGTH": config.pole_mass_length,
            "FORCE": config.force,
            "TIME_STEP": config.time_step,
            "MAX_ANGLE": config.max_angle,
            "MAX_POSITION": config.max_position,
            "START_RANGE": config.start_range,
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
        feed.add_data("sampled_actions", np.zeros((1, 1), np.int32), per_env=True)
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
        limit = self.config.start_range
        return generator.uniform(-limit, limit, (max(1, self.config.reset_pool_size), 1, N_FEATURES)).astype(np.float32)

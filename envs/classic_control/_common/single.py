"""Parts that environments of one agent share: keys of their config, their arrays, and the pool of starts."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from warpdrive_min.backends.base import Constant
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Array, Environment
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleConfig:
    """Config keys of all environments of one agent."""

    environment: ClassVar[str]
    """Name of the environment in messages."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Further fields that must be positive."""

    episode_length: int
    """Steps after which an episode is cut off."""
    reset_pool_size: int = 0
    """Starts: 0, a new one for each environment and episode; 1, always the same; more, a row of a pool of that size."""
    seed: int | None = None
    """Seed of the pool; None: 0."""

    def __post_init__(self) -> None:
        for name in ("episode_length", *self.positive):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{self.environment}.{name}: must be positive (got {getattr(self, name)})")
        if self.reset_pool_size < 0:
            raise ConfigError(
                f"{self.environment}.reset_pool_size: must not be negative (got {self.reset_pool_size}); "
                "0 draws a new start for every episode"
            )


class SingleAgent(Environment, abc.ABC):
    """Base of environments of one agent, whose state is a row of float32 and starts afresh with each episode.

    A subclass sets the class variables, and says what its physics are and from where episodes start.
    """

    config: SingleConfig
    n_state: ClassVar[int]
    """Components of the state."""
    n_features: ClassVar[int]
    """Components of an observation."""
    state_period: ClassVar[tuple[float, ...] | None] = None
    """Period of each component of the state, 0 where it has none."""

    def __init__(self, config: SingleConfig, action_space: Box | Discrete, env_backend: str) -> None:
        super().__init__(env_backend)
        self.config = config
        self.num_agents = 1
        self.agents = {0: True}
        self.episode_length = config.episode_length
        self.action_space = {0: action_space}

    @abc.abstractmethod
    def get_physics(self) -> Mapping[str, float]:
        """Return the numbers that are compiled in, by UPPER_CASE name."""

    @abc.abstractmethod
    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw rows of the pool, ``(n_rows, n_state)``; the first one is Gymnasium's start for the same seed."""

    @property
    def action_dtype(self) -> type[np.generic]:
        """Type of ``sampled_actions``."""
        return np.float32 if isinstance(self.action_space[0], Box) else np.int32

    @property
    def bytes_per_step(self) -> int:
        """State in and out, observation; reward 4, action 4, step counter in and out 8, three flags 12."""
        return 8 * self.n_state + 4 * self.n_features + 28

    def get_constants(self) -> dict[str, Constant]:
        """Return the physics, rounded to float32 by the backends, and the size of the pool."""
        # A config may say 10 for 10.0; compiled in as an int it would make Numba compute in float64.
        floats: dict[str, Constant] = {name: float(value) for name, value in self.get_physics().items()}
        return {"RESET_POOL_SIZE": self.config.reset_pool_size, **floats}

    def get_data_dictionary(self) -> DataFeed:
        """State, and the pool where it is no pool to draw from: unused, or the one start."""
        feed = DataFeed()
        attributes: dict[str, Any] = {} if self.state_period is None else {"period": self.state_period}
        feed.add_data("state", np.zeros((1, self.n_state), np.float32), per_env=True, **attributes)
        if self.config.reset_pool_size < 2:
            feed.add_data("state_reset_pool", self._pool())
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """What a trainer reads and writes."""
        feed = DataFeed()
        feed.add_data("observations", np.zeros((1, self.n_features), np.float32), per_env=True)
        feed.add_data("final_observations", np.zeros((1, self.n_features), np.float32), per_env=True)
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

    def _pool(self) -> Array:
        generator = np.random.default_rng(self.config.seed or 0)
        return self.draw_starts(generator, max(1, self.config.reset_pool_size)).astype(np.float32)[:, None]

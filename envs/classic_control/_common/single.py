"""Shared parts of single-agent environments: config, arrays, pool of starts."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np

from warpdrive_min.backends.base import Constant
from warpdrive_min.config import Config, PoolSize, PositiveInt, Seed
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Array, Arrays, Environment, trainer_arrays
from warpdrive_min.spaces import Box, Discrete


class SingleConfig(Config):
    """Config of a single-agent environment."""

    episode_length: PositiveInt
    """Steps until truncation."""
    reset_pool_size: PoolSize = 0
    """Starts: 0, a new one per environment and episode; 1, one; n, a pool of n."""
    seed: Seed | None = None
    """Seed of the pool; None: 0."""

    def physics(self) -> dict[str, float]:
        """Return the fields and properties that are floats, by UPPER_CASE name."""
        names = [name for name, field in type(self).model_fields.items() if field.annotation is float]
        for cls in type(self).__mro__:
            for name, value in vars(cls).items():
                if isinstance(value, property) and value.fget and value.fget.__annotations__["return"] == "float":
                    names.append(name)
        return {name.upper(): float(getattr(self, name)) for name in names}


class SingleAgent(Environment, abc.ABC):
    """Base of single-agent environments with a float32 state vector.

    Each episode draws a new state. A subclass sets the class variables and defines the starts. Its kernels get the
    floats of its config.
    """

    config: SingleConfig
    n_state: ClassVar[int]
    """Number of components of the state."""
    n_features: ClassVar[int]
    """Number of components of an observation."""
    state_period: ClassVar[tuple[float, ...] | None] = None
    """Period of each component of the state, 0 for none."""

    def __init__(self, config: SingleConfig, action_space: Box | Discrete, env_backend: str) -> None:
        super().__init__(env_backend)
        self.config = config
        self.num_agents = 1
        self.agents = {0: True}
        self.episode_length = config.episode_length
        self.action_space = {0: action_space}

    @abc.abstractmethod
    def draw_starts(self, generator: np.random.Generator, n_rows: int) -> Array:
        """Draw rows of the pool, ``(n_rows, n_state)``.

        The first row is Gymnasium's start for the same seed.
        """

    @property
    def action_dtype(self) -> type[np.generic]:
        """Type of ``sampled_actions``."""
        return np.float32 if hasattr(self.action_space[0], "low") else np.int32

    @property
    def bytes_per_step(self) -> int:
        """Bytes of a step.

        State in and out, observation; reward 4, action 4, step counter twice 8, three flags 12.
        """
        return 8 * self.n_state + 4 * self.n_features + 28

    def near_threshold(self, state: Array) -> Array:
        """Return a mask of states close enough to a threshold for rounding to decide.

        States are ``(n_envs, n_state)``.
        """
        return np.zeros(len(state), bool)

    def rounding_decides(self, before: Arrays, after: Arrays) -> tuple[Array, Array]:
        """Return environments near a threshold."""
        envs = self.near_threshold(after["state"][:, 0])
        return envs, np.zeros((len(envs), 1), bool)

    def get_constants(self) -> dict[str, Constant]:
        """Return the physics constants, and sizes of the pool and of rows.

        The backends round to float32.
        """
        sizes = {"RESET_POOL_SIZE": self.config.reset_pool_size, "N_STATE": self.n_state, "N_FEATURES": self.n_features}
        return {**sizes, **self.config.physics()}

    def get_data_dictionary(self) -> DataFeed:
        """Return the state; and the pool, if no row is drawn from it.

        Such a pool is unused, or holds the one start.
        """
        feed = DataFeed()
        attributes: dict[str, Any] = {} if self.state_period is None else {"period": self.state_period}
        feed.add_data("state", np.zeros((1, self.n_state), np.float32), per_env=True, **attributes)
        if self.config.reset_pool_size < 2:
            feed.add_data("state_reset_pool", self._pool())
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """Return the arrays that a trainer reads and writes."""
        return trainer_arrays(1, self.n_features, dtype=self.action_dtype)

    def get_reset_pool_dictionary(self) -> DataFeed:
        """Return the pool of starts, if rows are drawn from it."""
        feed = DataFeed()
        if self.config.reset_pool_size >= 2:
            feed.add_pool_for_reset("state_reset_pool", self._pool(), reset_target="state")
        return feed

    def _pool(self) -> Array:
        generator = np.random.default_rng(self.config.seed or 0)
        return self.draw_starts(generator, max(1, self.config.reset_pool_size)).astype(np.float32)[:, None]

"""Base of the NumPy baselines: many environments in NumPy arrays."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]


class Batch(abc.ABC):
    """Environments stepped together on one thread, with automatic restart.

    A subclass creates `rewards` and, through `show`, both kinds of observations, in its own layout, and starts all
    environments. A step overwrites its results.

    Args:
        config: Config of the environment.
        n_envs: Number of environments.
        seed: Seed of starts and of random actions, which are others than those of the backends.
    """

    observations: Floats
    final_observations: Floats
    """Last observations of episodes that ended with the last step; stale elsewhere."""
    rewards: Floats

    def __init__(self, config: Any, n_envs: int, seed: int) -> None:
        self.config, self.n_envs = config, n_envs
        self.episode_length: int = config.episode_length
        self.generator = np.random.Generator(np.random.SFC64(seed))
        self.timestep = np.zeros(n_envs, np.int32)
        self.terminated, self.truncated, self.done = np.zeros((3, n_envs), bool)

    @abc.abstractmethod
    def draw(self) -> Array:
        """Draw a uniform action for every agent in one generator call."""

    @abc.abstractmethod
    def advance(self, actions: Array) -> None:
        """Step all environments: write state, observations, rewards, `terminated`."""

    @abc.abstractmethod
    def restart(self, envs: Indices) -> None:
        """Restart environments: write their state and `observations`."""

    def show(self, observations: Floats) -> None:
        """Set the observation array, and allocate one for last observations."""
        self.observations, self.final_observations = observations, np.zeros_like(observations)

    def keep_last(self, envs: Indices) -> None:
        """Copy observations to `final_observations`; environments are the last axis."""
        self.final_observations[..., envs] = self.observations[..., envs]

    @abc.abstractmethod
    def arrays(self) -> Mapping[str, Array]:
        """Return arrays by their names in the reference, environments first."""

    @abc.abstractmethod
    def as_sampled(self, actions: Array) -> Array:
        """Return actions in the reference's layout, ``(n_envs, n_agents, n_types)``."""

    def step(self, actions: Array) -> None:
        """Step every environment, and restart those that ended."""
        np.add(self.timestep, 1, out=self.timestep)
        self.advance(actions)
        np.greater_equal(self.timestep, self.episode_length, out=self.truncated)
        np.greater(self.truncated, self.terminated, out=self.truncated)
        np.logical_or(self.truncated, self.terminated, out=self.done)
        ended = np.flatnonzero(self.done)
        if ended.size:
            self.keep_last(ended)
            self.timestep[ended] = 0
            self.restart(ended)

    def snapshot(self) -> Callable[[], None]:
        """Copy arrays and generator state; return their restoring function."""
        live = [value for value in vars(self).values() if isinstance(value, np.ndarray)]
        copies, drawn = [array.copy() for array in live], self.generator.bit_generator.state

        def restore() -> None:
            self.generator.bit_generator.state = drawn
            for array, copy in zip(live, copies, strict=True):
                array[...] = copy

        return restore

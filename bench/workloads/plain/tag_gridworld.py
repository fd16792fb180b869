"""Tag GridWorld in vectorised NumPy; environments are the last axis.

Cells are float32, which represents all of them exactly. Constant parts of the observations are written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from warpdrive_min.errors import require

from .batch import Array, Batch, Floats, Indices

MAX_GRID_LENGTH: Final = 2_896
"""Largest grid whose squared distances float32 represents exactly."""
DX: Final = np.array([0, 1, -1, 0, 0], np.float32)
DY: Final = np.array([0, 0, 0, 1, -1], np.float32)


class TagGridWorld(Batch):
    """Tag GridWorld; arrays are ``(..., n_agents, n_envs)``, the runner last.

    Raises:
        ConfigError: Starts are drawn from a pool, or the grid is larger than `MAX_GRID_LENGTH`.
    """

    def __init__(self, config: Any, n_envs: int, seed: int) -> None:
        super().__init__(config, n_envs, seed)
        require(not config.reset_pool_size, "plain TagGridWorld", "takes one start", config.reset_pool_size)
        at_most = f"must be at most {MAX_GRID_LENGTH}"
        require(config.grid_length <= MAX_GRID_LENGTH, "plain TagGridWorld: grid_length", at_most, config.grid_length)
        shape = config.n_agents, n_envs
        self.starts: Floats = np.stack([cells[0] for cells in config.initial_states]).astype(np.float32)
        self.cells = np.zeros((2, *shape), np.float32)
        self.moved = np.zeros((2, *shape), np.float32)
        self.is_stopped = np.zeros((2, *shape), bool)
        self.step_cost = np.float32(config.step_cost_for_tagger)
        self.rewards = np.zeros(shape, np.float32)
        self.distance = np.zeros((config.num_taggers, n_envs), np.float32)
        self.show(np.zeros((config.n_features, *shape), np.float32))
        self.write_constants()
        self.cells[:] = self.starts[..., None]
        self.distance[:] = np.square(self.starts[:, :-1] - self.starts[:, -1:]).sum(0)[:, None]
        self.observe()
        self.seen_at_first = self.observations[..., 0].copy()

    def write_constants(self) -> None:
        """Write the constant observations: types and, if all agents are observed, ids."""
        n_agents = self.config.n_agents
        if not self.config.use_full_observation:
            self.observations[4, -1] = 1
            return
        self.observations[3 * n_agents - 1] = 1
        agent = np.arange(n_agents)
        self.observations[3 * n_agents + agent, agent] = 1

    def draw(self) -> Array:
        """Draw one of the five actions."""
        return self.generator.integers(len(DX), size=self.rewards.shape, dtype=np.int8)

    def as_sampled(self, actions: Array) -> Array:
        """Put environments first, and add the axis of types."""
        return actions.T[..., None]

    def arrays(self) -> Mapping[str, Array]:
        """Return views."""
        return {
            "loc_x": self.cells[0].T,
            "loc_y": self.cells[1].T,
            "_timestep_": self.timestep,
            "observations": self.observations.T,
            "final_observations": self.final_observations.T,
            "rewards": self.rewards.T,
        }

    def advance(self, actions: Array) -> None:
        """Move all agents, check for tags, and assign rewards."""
        c, (dx, dy) = self.config, self.moved
        DX.take(actions, out=dx, mode="clip")
        DY.take(actions, out=dy, mode="clip")
        self.moved += self.cells
        np.clip(self.moved, 0, c.grid_length, out=self.cells)
        np.not_equal(self.moved, self.cells, out=self.is_stopped)
        along_x, along_y = self.is_stopped
        np.logical_or(along_x, along_y, out=along_x)
        np.multiply(along_x, -c.wall_hit_penalty, out=self.rewards, dtype=np.float32)
        away = np.subtract(self.cells[:, :-1], self.cells[:, -1:], out=self.moved[:, :-1])
        np.square(away, out=away)
        np.add(away[0], away[1], out=self.distance)
        np.equal(self.distance.min(0), 0, out=self.terminated)
        self.rewards[:-1] += np.where(self.terminated, np.float32(c.tag_reward_for_tagger), -self.step_cost)
        self.rewards[-1] += np.where(self.terminated, np.float32(-c.tag_penalty_for_runner), self.step_cost)
        self.observe()

    def observe(self) -> None:
        """Write the changing observations of all agents."""
        c, n = self.config, self.config.n_agents
        share = np.divide(self.cells, c.grid_length, out=self.moved)
        if c.use_full_observation:
            self.observations[: 2 * n].reshape(2, n, n, -1)[:] = share[:, :, None]
        else:
            self.observations[:2] = share
            self.observations[2:4, :-1] = share[:, -1:]
            self.observations[2:4, -1] = share[:, self.distance.argmin(0), np.arange(self.n_envs)]
        self.observations[-1] = np.divide(self.timestep, c.episode_length, dtype=np.float32)

    def restart(self, envs: Indices) -> None:
        """Put all agents at the fixed start, and write the observations."""
        self.cells[..., envs] = self.starts[..., None]
        self.observations[..., envs] = self.seen_at_first[..., None]

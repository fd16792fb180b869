"""Lookout, whose observations are dicts with an action mask."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warpdrive_min import DataFeed, Environment
from warpdrive_min.spaces import Discrete

if TYPE_CHECKING:
    from numba import float32, int32

N_CHOICES = 3


class Parts(NamedTuple):
    """Observations as kernels take them, in the order of `seen`."""

    observations_numbers: float32[:, :, :]
    observations_hour: float32[:, :]
    observations_map: int32[:, :, :, :]
    observations_action_mask: int32[:, :, :]


class LastParts(NamedTuple):
    """Observations of an episode's last step."""

    final_observations_numbers: float32[:, :, :]
    final_observations_hour: float32[:, :]
    final_observations_map: int32[:, :, :, :]
    final_observations_action_mask: int32[:, :, :]


class Lookout(Environment):
    """Environment in which agents are paid the sum of their actions.

    A forbidden action pays -100. Time alone ends episodes.

    Args:
        num_agents: Number of agents, with the ids 0, 1 and so on.
        episode_length: Steps after which an episode is cut off.
        without_map: Agents that do not see the map.
    """

    name = "Lookout"
    kernel_sources = {  # noqa: RUF012
        "numpy": "tests.environments.lookout_numpy",
        "cuda_c": Path(__file__).with_name("lookout.cu"),
        "numba": "tests.environments.lookout_numba",
    }

    def __init__(self, num_agents: int = 2, episode_length: int = 3, without_map: Collection[int] = ()) -> None:
        super().__init__()
        self.num_agents, self.episode_length, self.without_map = num_agents, episode_length, without_map
        self.action_space = dict.fromkeys(range(num_agents), Discrete(N_CHOICES))

    def get_data_dictionary(self) -> DataFeed:
        feed = DataFeed()
        feed.add_data("total", np.zeros(self.num_agents, np.int32), per_env=True)
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        feed = DataFeed()
        for flag in ("terminated", "truncated"):
            feed.add_data(flag, np.zeros((), np.int32), per_env=True)
        for key in seen(0, 0, 0):
            rows = np.array([seen(agent, 0, 0)[key] for agent in range(self.num_agents)])
            feed.add_data(f"observations_{key}", rows, per_env=True)
            feed.add_data(f"final_observations_{key}", rows, per_env=True)
        feed.add_data("sampled_actions", np.zeros((self.num_agents, 1), np.int32), per_env=True)
        feed.add_data("rewards", np.zeros(self.num_agents, np.float32), per_env=True)
        return feed

    def reset(self) -> dict[int, Any]:
        """Return the first observations."""
        observations = {agent: seen(agent, 0, 0) for agent in range(self.num_agents)}
        for agent in self.without_map:
            del observations[agent]["map"]
        return observations


def seen(agent: int, time: int, total: int) -> dict[str, Any]:
    """Return an agent's observation for a sum of actions."""
    mask = np.ones(N_CHOICES, np.int32)
    mask[(time + agent) % N_CHOICES] = 0
    return {
        "numbers": np.array([time, total], np.float32),
        "hour": np.array(time / 2, np.float32),
        "map": (10 * agent + total + np.arange(6, dtype=np.int32)).reshape(2, 3),
        "action_mask": mask,
    }

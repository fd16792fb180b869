"""Recall: a cue at the first step is needed later."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min import DataFeed, Environment
from warpdrive_min.spaces import Discrete

N_CUES = 2


class Recall(Environment):
    """Environment that shows each agent a cue only once.

    The cue is a 1 in one of two entries; later observations are zeros. A step pays 1 for the
    action of the cue, and 0 for the other; the first step pays nothing.

    Args:
        num_agents: Agents, whose cues differ.
        episode_length: Steps after which an episode is cut off.
    """

    name = "Recall"
    kernel_sources = {"numpy": "tests.environments.recall_numpy"}  # noqa: RUF012

    def __init__(self, num_agents: int = 2, episode_length: int = 4) -> None:
        super().__init__()
        self.num_agents, self.episode_length = num_agents, episode_length
        self.action_space = dict.fromkeys(range(num_agents), Discrete(N_CUES))

    def get_tensor_dictionary(self) -> DataFeed:
        """Return data that the trainer's placeholders lack."""
        feed = DataFeed()
        for flag in ("terminated", "truncated"):
            feed.add_data(flag, np.zeros((), np.int32), per_env=True)
        feed.add_data("cues", np.zeros(self.num_agents, np.int32), per_env=True)
        seen = np.zeros((self.num_agents, N_CUES), np.float32)
        for name in ("observations", "final_observations"):
            feed.add_data(name, seen, per_env=True)
        feed.add_data("sampled_actions", np.zeros((self.num_agents, 1), np.int32), per_env=True)
        feed.add_data("rewards", np.zeros(self.num_agents, np.float32), per_env=True)
        return feed

    def reset(self) -> dict[int, Any]:
        """Return observations of the right shape; the kernels make the cues."""
        return {agent: np.zeros(N_CUES, np.float32) for agent in range(self.num_agents)}

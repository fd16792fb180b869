"""Fragile, with planted races and uninitialised reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from warpdrive_min import CUDAEnvironmentContext, DataFeed
from warpdrive_min.environment import trainer_arrays
from warpdrive_min.spaces import Discrete


class Fragile(CUDAEnvironmentContext):
    """Agents move, see their neighbour, and share the sum of their places.

    Args:
        fault: One of `faults`.
        threads: The kernels have a thread for each agent.
        num_agents: Number of agents; more than 32 are in several warps.
    """

    name, episode_length = "Fragile", 6
    faults: ClassVar[tuple[str, ...]] = (
        *("none", "no barrier", "sum in any order"),
        *("shared memory", "array", "last writer"),
    )

    def __init__(self, fault: str = "none", *, threads: bool = False, num_agents: int = 5) -> None:
        super().__init__()
        self.fault, self.num_agents = fault, num_agents
        source = "fragile_threads.cu" if threads else "fragile.cu"
        self.kernel_sources = {"cuda_c": Path(__file__).with_name(source)}
        self.action_space = dict.fromkeys(range(num_agents), Discrete(2))

    def get_constants(self) -> dict[str, Any]:
        return {"FAULT": self.faults.index(self.fault)}

    def get_data_dictionary(self) -> DataFeed:
        feed = DataFeed()
        feed.add_data("place", np.zeros(self.num_agents, np.float32), per_env=True)
        wind = np.empty(self.num_agents, np.float32)
        if self.fault != "array":
            wind[:] = 1.0
        feed.add_data("wind", wind, per_env=True)
        feed.add_data("leader", np.zeros((), np.int32), per_env=True)
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        return trainer_arrays(self.num_agents, 2)

    def reset(self) -> dict[int, Any]:
        return {agent: np.zeros(2, np.float32) for agent in self.action_space}

    def step(self, actions: Any = None) -> None:
        assert actions is None
        self.cuda_step()

"""Relay, with planted faults at the edges of loops, sums and blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.environments.fragile import Fragile
from warpdrive_min import DataFeed


class Relay(Fragile):
    """Agents queue, pass numbers on, and see their neighbour and the sum.

    Faults: slots in the order of arrival; a shared buffer overwritten before all have read it; a sum over words that
    nothing wrote; the last agent sees the first one of the next environment.
    """

    name = "Relay"
    faults = ("none", "arrival", "reused buffer", "no padding", "next environment")

    def __init__(self, fault: str = "none", *, num_agents: int = 5) -> None:
        super().__init__(fault, num_agents=num_agents)
        self.kernel_sources = {"cuda_c": Path(__file__).with_name("relay.cu")}

    def get_data_dictionary(self) -> DataFeed:
        feed = DataFeed()
        feed.add_data("place", np.zeros(self.num_agents, np.float32), per_env=True)
        feed.add_data("slot", np.zeros(self.num_agents, np.int32), per_env=True)
        return feed

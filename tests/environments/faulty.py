"""Faulty, which breaks its contract at one step in one copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from warpdrive_min import DataFeed, Environment
from warpdrive_min.environment import trainer_arrays
from warpdrive_min.spaces import Box, Discrete

FAULTS: Final = (
    "none",
    "observations",
    "rewards",
    "final_observations",
    "observations not written",
    "final_observations not written",
    "done contradicts",
    "timestep stays",
    "infinite",
)
ENV, AGENT = 1, 1
"""Environment and agent of the fault."""


class Faulty(Environment):
    """Environment with a planted fault.

    Two agents observe the environment's age and the episode's. Time alone ends episodes, after ``cut_after`` steps.

    Args:
        fault: One of `FAULTS`.
        step: Step, counted from 1, at which numbers are NaN, or infinite.
        cut_after: Steps after which an episode is truncated.
        says_so: The class has it as ``earliest_truncation``.
        is_box: Actions are continuous.
        episode_length: Steps of an episode, as the environment says.
    """

    name = "Faulty"
    kernel_sources = {  # noqa: RUF012
        "numpy": "tests.environments.faulty_numpy",
        "cuda_c": Path(__file__).with_name("faulty.cu"),
    }

    def __init__(
        self,
        fault: str = "none",
        step: int = 0,
        cut_after: int = 3,
        *,
        says_so: bool = True,
        is_box: bool = False,
        episode_length: int = 50,
    ) -> None:
        super().__init__()
        self.num_agents, self.episode_length = 2, episode_length
        if is_box:
            self.kernel_sources = {**self.kernel_sources, "cuda_c": Path(__file__).with_name("faulty_box.cu")}
        self.fault, self.step_of_fault, self.cut_after, self.is_box = fault, step, cut_after, is_box
        self.earliest_truncation = cut_after if says_so else None
        space = Box(-1.0, 1.0, (1,)) if is_box else Discrete(2)
        self.action_space = dict.fromkeys(range(2), space)

    def get_constants(self) -> dict[str, Any]:
        return {"FAULT_ENV": ENV, "FAULT_AGENT": AGENT, "CUT_AFTER": self.cut_after}

    def get_data_dictionary(self) -> DataFeed:
        feed = DataFeed()
        feed.add_data("fault", FAULTS.index(self.fault))
        feed.add_data("fault_step", self.step_of_fault)
        feed.add_data("age", np.zeros((), np.int32), per_env=True)
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        return trainer_arrays(2, 2, dtype=np.float32 if self.is_box else np.int32)

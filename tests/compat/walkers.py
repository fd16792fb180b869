"""Walkers: a Python class and a kernel subclass in WarpDrive's style."""

from pathlib import Path

import numpy as np
from warp_drive.utils.constants import Constants
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

from warpdrive_min.spaces import Discrete

CUDA_SOURCE = Path(__file__).with_name("walkers_step.cu")
NUMBA_SOURCE = "tests.compat.walkers_step_numba"


class Walkers:
    """Agents on a ring, paid for each agent that they meet.

    The ring has two cells per agent.
    """

    name = "Walkers"

    def __init__(self, num_agents=3, episode_length=4, env_backend="cpu"):
        self.num_agents, self.episode_length, self.env_backend = num_agents, episode_length, env_backend
        self.n_cells = 2 * num_agents
        self.step_actions = np.array([0, 1, -1], np.int32)
        self.action_space = {agent: Discrete(3) for agent in range(num_agents)}
        self.reward_per_meeting = 0.5

    def reset(self):
        self.timestep = 0
        self.cell = np.arange(0, self.n_cells, 2, dtype=np.int32)
        return self.observe()

    def meetings(self):
        return (self.cell[:, None] == self.cell).sum(1) - 1

    def observe(self):
        place = self.cell / np.float32(self.n_cells)
        time = np.full(self.num_agents, self.timestep / np.float32(self.episode_length))
        return dict(enumerate(np.stack([place, self.meetings(), time], -1).astype(np.float32)))

    def step(self, actions=None):
        self.timestep += 1
        moves = self.step_actions[[int(actions[agent]) for agent in range(self.num_agents)]]
        self.cell = ((self.cell + moves) % self.n_cells).astype(np.int32)
        rewards = dict(enumerate((self.reward_per_meeting * self.meetings()).tolist()))
        return self.observe(), rewards, {"__all__": self.timestep == self.episode_length}, {}


class CUDAWalkers(Walkers, CUDAEnvironmentContext):
    """Walkers in kernels."""

    def __init__(self, *args, **kwargs):
        Walkers.__init__(self, *args, **kwargs)
        CUDAEnvironmentContext.__init__(self)

    def get_data_dictionary(self):
        feed = DataFeed()
        feed.add_data(name="cell", data=self.cell, save_copy_and_apply_at_reset=True, log_data_across_episode=True)
        feed.add_data_list([("reward_per_meeting", self.reward_per_meeting)])
        return feed

    def get_tensor_dictionary(self):
        return DataFeed()

    def step(self, actions=None):
        args = [
            "cell",
            Constants.ACTIONS,
            Constants.OBSERVATIONS,
            Constants.REWARDS,
            "_done_",
            "_timestep_",
            "reward_per_meeting",
            ("episode_length", "meta"),
        ]
        block, grid = self.cuda_function_manager.block, self.cuda_function_manager.grid
        if self.env_backend == "pycuda":
            self.cuda_step(*self.cuda_step_function_feed(args), block=block, grid=grid)
        elif self.env_backend == "numba":
            self.cuda_step[grid, block](*self.cuda_step_function_feed(args))

"""Orchard: each agent has a tree, and picks or waits.

Season and price are single numbers that change in an episode, so each copy has its own. The data are as loosely typed
as users' often are: `bonus` is a list of integers, where the kernel in CUDA C declares floats.
"""

import numpy as np
from gymnasium.spaces import Discrete
from warp_drive.utils.constants import Constants
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

GROWTH = 1.25
"""Factor of the price in a step."""


class Orchard(CUDAEnvironmentContext):
    """Trees that grow slower with age, in Python and kernels."""

    name = "Orchard"

    def __init__(self, num_trees=3, episode_length=4, env_backend="cpu"):
        super().__init__()
        self.num_agents = num_trees
        self.episode_length = episode_length
        self.env_backend = env_backend
        self.action_space = {agent: Discrete(2) for agent in range(num_trees)}
        self.first_fruit = np.linspace(1, 2, num_trees)
        self.bonus = [0] * num_trees

    def reset(self):
        """Start an episode."""
        self.fruit = self.first_fruit.astype(np.float32)
        self.season, self.price = 0, 1.5
        return self._observations()

    def step(self, actions=None):
        """Step in Python with actions by agent, or launch the kernel."""
        if self.env_backend != "cpu":
            names = ["fruit", "season", "price", "bonus", "num_levels", Constants.OBSERVATIONS, Constants.ACTIONS]
            names += [Constants.REWARDS, "_done_", "_timestep_", ("episode_length", "meta")]
            self.cuda_step(
                *self.cuda_step_function_feed(names),
                block=self.cuda_function_manager.block,
                grid=self.cuda_function_manager.grid,
            )
            return None
        self.season += 1
        self.price = np.float32(self.price * GROWTH)
        picked = np.array([actions[agent] for agent in range(self.num_agents)], np.float32)
        rewards = picked * self.fruit * self.price + np.array(self.bonus)
        self.fruit = self.fruit * (1 - picked / 2) + 2.0 ** -np.float32(self.season)
        done = {"__all__": self.season >= self.episode_length}
        return self._observations(), dict(enumerate(rewards)), done, {}

    def _observations(self):
        return {
            agent: np.array([fruit, self.price, self.season / self.episode_length], np.float32)
            for agent, fruit in enumerate(self.fruit)
        }

    def get_data_dictionary(self):
        """Return the state with two numbers, and loosely typed data."""
        feed = DataFeed()
        feed.add_data("fruit", self.fruit, save_copy_and_apply_at_reset=True)
        feed.add_data("season", self.season, save_copy_and_apply_at_reset=True)
        feed.add_data("price", self.price, True)
        feed.add_data("bonus", self.bonus)
        feed.add_data("num_levels", 2.0)
        return feed

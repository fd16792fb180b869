"""Counter, an outside author's environment by WarpDrive's manual.

One class for both modes: in Python it steps one environment in dicts; on a backend it launches its kernel with explicit
arguments. Its kernels have WarpDrive's names, set ``_done_`` and never clear it, and restart nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from warpdrive_min import CUDAEnvironmentContext, DataFeed
from warpdrive_min.spaces import Discrete

ARGUMENTS = [
    "count",
    "place",
    ("weights", "shared"),
    "sampled_actions",
    "observations",
    "rewards",
    "_timestep_",
    "_done_",
    ("step_size", "device"),
    ("n_envs", "meta"),
]


class Counter(CUDAEnvironmentContext):
    """Agents count actions of 1; an episode ends at a limit."""

    name = "Counter"
    kernel_sources = {  # noqa: RUF012  (as in a manual)
        "numpy": "tests.environments.counter_numpy",
        "cuda_c": Path(__file__).with_name("counter.cu"),
        "numba": "tests.environments.counter_numba",
    }

    def __init__(
        self,
        num_agents: int = 3,
        episode_length: int = 6,
        limit: int = 4,
        pool_size: int = 0,
        random_start: bool = False,
        env_backend: str = "cpu",
    ) -> None:
        super().__init__()
        self.num_agents, self.episode_length = num_agents, episode_length
        self.limit, self.pool_size, self.random_start = limit, pool_size, random_start
        self.env_backend = env_backend
        self.action_space = {agent: Discrete(2) for agent in range(num_agents)}
        self.weights = np.arange(1, num_agents + 1, dtype=np.float32) / 2
        self.generator = np.random.default_rng(0)
        self.timestep = 0
        self.n_resets = 0

    def get_constants(self):
        return {"LIMIT": self.limit}

    def get_data_dictionary(self):
        self.cuda_data_manager.add_shared_constants({"weights": self.weights})
        feed = DataFeed()
        feed.add_data("count", self.count, save_copy_and_apply_at_reset=True, log_data_across_episode=True)
        feed.add_data("step_size", 1)
        feed.add_data("place", self.place, save_copy_and_apply_at_reset=self.pool_size == 0)
        feed.add_data("label", np.zeros(1, np.int32), save_copy_and_apply_at_reset=self.pool_size == 0)
        return feed

    def get_tensor_dictionary(self):
        feed = DataFeed()
        feed.add_data("observations", self.observe(), save_copy_and_apply_at_reset=True)
        feed.add_data("sampled_actions", np.zeros((self.num_agents, 1), np.int32), per_env=True)
        feed.add_data("rewards", np.zeros(self.num_agents, np.float32), per_env=True)
        return feed

    def get_reset_pool_dictionary(self):
        feed = DataFeed()
        if self.pool_size:
            rows = np.arange(self.pool_size, dtype=np.float32)[:, None] + 10
            feed.add_pool_for_reset("place_reset_pool", np.repeat(rows, self.num_agents, 1), reset_target="place")
            labels = np.arange(self.pool_size, dtype=np.int32)[:, None]
            feed.add_pool_for_reset("label_reset_pool", labels, reset_target="label")
        return feed

    def reset(self):
        self.n_resets += 1
        self.timestep = 0
        self.count = np.zeros(self.num_agents, np.int32)
        self.place = np.full(self.num_agents, 0.5, np.float32)
        if self.random_start:
            self.place = self.generator.random(self.num_agents, np.float32)
        return dict(enumerate(self.observe()))

    def observe(self):
        return np.stack([self.count.astype(np.float32), self.place], axis=-1)

    def step(self, actions: Any = None):
        if actions is None:
            return self.launch(self.cuda_step_function_feed(ARGUMENTS))
        self.timestep += 1
        self.count += [int(actions[agent]) for agent in range(self.num_agents)]
        rewards = dict(enumerate((self.weights * self.count.astype(np.float32)).tolist()))
        done = self.timestep >= self.episode_length or self.count.max() >= self.limit
        return dict(enumerate(self.observe())), rewards, {"__all__": bool(done)}, {}

    def launch(self, arguments: list[Any]) -> None:
        """Launch in both of WarpDrive's forms."""
        block, grid = self.cuda_function_manager.block, self.cuda_function_manager.grid
        if self.env_backend == "numba":
            self.cuda_step[grid, block](*arguments)
        else:
            self.cuda_step(*arguments, block=block, grid=grid)


class PlainCounter(Counter):
    """Counter without NumPy kernels: on the CPU it has only Python."""

    kernel_sources = {  # noqa: RUF012
        language: source for language, source in Counter.kernel_sources.items() if language != "numpy"
    }


class ThreadsCounter(Counter):
    """Counter whose kernel has a thread for each agent.

    WarpDrive's kernels are so.
    """

    kernel_sources = {"cuda_c": Path(__file__).with_name("counter_threads.cu")}  # noqa: RUF012


class PythonCounter:
    """Environment without knowledge of the core: Python only."""

    name = "PythonCounter"

    def __init__(self, episode_length: int = 3) -> None:
        self.num_agents, self.episode_length = 1, episode_length
        self.action_space = {"only": Discrete(3)}

    def reset(self):
        self.timestep = 0
        return {"only": np.zeros(2, np.float32)}

    def step(self, actions: Any = None):
        self.timestep += 1
        observation = np.array([self.timestep, actions["only"]], np.float32)
        return {"only": observation}, {"only": 1.0}, {"__all__": self.timestep >= self.episode_length}, {}

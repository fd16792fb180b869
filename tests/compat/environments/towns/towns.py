"""Towns and their council: closings of towns, payments of the council.

One class for all backends, as users of WarpDrive write them: `env_backend` decides whether `step` computes here or
launches kernels. The policies "town" and "council" have arrays of their own.
"""

import numpy as np
from gymnasium.spaces import Discrete
from warp_drive.managers.function_manager import CUDAFunctionFeed
from warp_drive.utils.constants import Constants
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

LAG_WEIGHTS = np.array([0.2, 0.3, 0.5], np.float32)
"""Costs of closings in this step and the earlier ones."""


class Towns(CUDAEnvironmentContext):
    """Towns with wealth; the last agent is their council.

    The council's column has the sum of wealth. The towns' observations are an array ``(num_envs, num_towns,
    features)``, or with ``agents_last`` ``(num_envs, features, num_towns)``.
    """

    name = "Towns"

    def __init__(
        self, num_towns=50, episode_length=30, agents_last=False, seed=None, env_backend="cpu", grant=0.4, cost=0.1
    ):
        super().__init__()
        self.num_agents, self.num_towns, self.episode_length = num_towns + 1, num_towns, episode_length
        self.agents_last, self.env_backend = agents_last, env_backend
        self.num_levels, self.interval = 10, 2
        self.grant, self.cost = np.float32(grant), np.float32(cost)
        towns, council = list(range(num_towns)), [num_towns]
        self.policy_tag_to_agent_id_map = {"town": towns, "council": council}
        self.action_space = {**dict.fromkeys(towns, Discrete(10)), num_towns: Discrete(20)}
        self.observation_space = None  # set by the wrapper
        self.growth = np.random.RandomState(seed).uniform(0.9, 1.2, num_towns).astype(np.float32)

    # ------------------------------------------------------------ on the CPU

    def reset(self):
        """Start an episode and return the observations by agent."""
        self.timestep = 0
        self.wealth = _with_sum(np.ones(self.num_towns))
        self.paid = np.zeros(self.num_agents, np.float32)
        self.closing = np.zeros((self.episode_length + 1, self.num_towns), np.int32)
        self.subsidy = np.zeros(1, np.int32)
        return self._observations()

    def step(self, actions=None):
        """Step with the agents' actions on the CPU, or launch kernels."""
        if self.env_backend == "cpu":
            return self._step_on_cpu(actions)
        block, grid = self.cuda_function_manager.block, self.cuda_function_manager.grid
        step_arguments = self.cuda_step_function_feed(self._step_arguments())
        rewards_arguments = self.cuda_rewards_feed(["wealth", "paid", "cost", *_of_both(Constants.REWARDS)])
        if self.env_backend == "pycuda":
            self.cuda_step(*step_arguments, block=block, grid=grid)
            self.cuda_rewards(*rewards_arguments, block=block, grid=grid)
        elif self.env_backend == "numba":
            self.cuda_step[grid, block](*step_arguments)
            self.cuda_rewards[grid, block](*rewards_arguments)
        else:
            raise ValueError(f"Towns: runs on cpu, numba or pycuda (got {self.env_backend})")
        return None

    def _step_on_cpu(self, actions):
        self.timestep += 1
        self.closing[self.timestep] = [int(actions[town]) for town in range(self.num_towns)]
        if (self.timestep - 1) % self.interval == 0:
            self.subsidy[0] = int(actions[self.num_towns])
        closed = sum(weight * self._closed(lag) for lag, weight in enumerate(LAG_WEIGHTS))
        paid = np.full(self.num_towns, self.grant * self._share())
        self.paid = _with_sum(self.paid[:-1] + paid)
        self.wealth = _with_sum(self.wealth[:-1] * self.growth * (1 - closed / 2) + paid)
        wealth = np.log(self.wealth[:-1] + np.float32(0.01))
        council = wealth.mean() - self.cost * self.paid[-1]
        rewards = {**dict(enumerate(wealth.astype(np.float32))), self.num_towns: np.float32(council)}
        return self._observations(), rewards, {"__all__": self.timestep >= self.episode_length}, {}

    def _observations(self):
        time = self.timestep / self.episode_length
        towns = [self.wealth[:-1], self.growth, self._closed(0)]
        towns += [np.full(self.num_towns, each) for each in (self._share(), time)]
        council = [self.wealth[-1:], self.paid[-1:], [self._share(), time], self._closed(0)]
        rows = np.stack(towns, -1).astype(np.float32)
        return {**dict(enumerate(rows)), self.num_towns: np.concatenate(council).astype(np.float32)}

    def _closed(self, lag):
        """Return each town's closing ``lag`` steps ago, from 0 to 1.

        It is 0 before the episode.
        """
        return self.closing[max(self.timestep - lag, 0)].astype(np.float32) / np.float32(self.num_levels - 1)

    def _share(self):
        return self.subsidy[0] / np.float32(19)

    # ------------------------------------------------------------ in kernels

    def get_data_dictionary(self):
        """Return the state (restored by resets) and the shared parameters."""
        feed = DataFeed()
        for name in ("wealth", "paid"):
            feed.add_data(name, getattr(self, name), save_copy_and_apply_at_reset=True, log_data_across_episode=True)
        feed.add_data("closing", self.closing, save_copy_and_apply_at_reset=True)
        feed.add_data_list(
            [
                ("subsidy", self.subsidy, True),
                *((name, getattr(self, name)) for name in ("growth", "num_levels", "interval")),
                *({"name": name, "data": getattr(self, name)} for name in ("grant", "cost")),
                ("agents_last", self.agents_last),
            ]
        )
        return feed

    def get_tensor_dictionary(self):
        """Return nothing: torch reads the trainer's arrays."""
        return DataFeed()

    def initialize_step_function_context(
        self, cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
    ):
        """Keep the base class's kernel, look up the second, fill constants."""
        is_ready = super().initialize_step_function_context(
            cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
        )
        rewards = step_function_name.replace("Step", "Rewards")
        cuda_function_manager.initialize_functions([rewards])
        self.cuda_rewards = cuda_function_manager.get_function(rewards)
        self.cuda_rewards_feed = CUDAFunctionFeed(cuda_data_manager)
        cuda_data_manager.add_shared_constants({"kLagWeights": LAG_WEIGHTS})
        if self.env_backend == "pycuda":
            cuda_function_manager.initialize_shared_constants(cuda_data_manager, ["kLagWeights"])
        return is_ready

    def _step_arguments(self):
        return [
            *("wealth", "paid", "closing", "subsidy", "growth", "num_levels", "interval", "grant", "agents_last"),
            # CUDA C has them in constant memory, Numba takes them as an array.
            *([("kLagWeights", "shared")] if self.env_backend == "numba" else []),
            *_of_both(Constants.OBSERVATIONS),
            *_of_both(Constants.ACTIONS),
            "_done_",
            "_timestep_",
            ("episode_length", "meta"),
        ]


def _of_both(name):
    return [f"{name}_town", f"{name}_council"]


def _with_sum(of_towns):
    return np.append(of_towns, of_towns.sum(dtype=np.float32)).astype(np.float32)

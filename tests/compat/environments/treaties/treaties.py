"""Treaties: regions save, mitigate, and bind each other to do so.

A Python class, and a subclass that steps in kernels, as users of WarpDrive write them. Every observation is a dict of
features and of the mask of the actions that treaties leave open.
"""

import numpy as np
from gymnasium.spaces import MultiDiscrete
from warp_drive.managers.function_manager import CUDAFunctionFeed
from warp_drive.utils.constants import Constants
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

SAVINGS, MITIGATION, PROPOSAL, ACCEPTANCE = range(4)
"""Columns of an action: two levels, an offer, and a joining flag."""
HEAT_TRANSITION = np.array([[0.872, 0.009], [0.025, 0.975]], np.float32)
"""Rows: air and ocean after a step; columns: both before it."""
LEVELS, TOLERANCE = 10, 2


class Treaties:
    """Regions with capital and one temperature of air and ocean."""

    name = "Treaties"

    def __init__(self, num_regions=27, episode_length=20, seed=None, env_backend="cpu"):
        self.num_agents, self.episode_length, self.env_backend = num_regions, episode_length, env_backend
        self.productivity = np.random.RandomState(seed).uniform(1, 3, num_regions).astype(np.float32)
        self.action_nvec = [LEVELS] * 3 + [2]
        self.action_space = {region: MultiDiscrete(self.action_nvec) for region in range(num_regions)}
        self.observation_space = None  # set by the wrapper

    def reset(self):
        """Start an episode and return the observations by agent."""
        self.timestep = 0
        self.capital = np.linspace(1, 2, self.num_agents, dtype=np.float32)
        self.emissions = np.zeros(self.num_agents, np.float32)
        self.mitigation_floor = np.zeros(self.num_agents, np.int32)
        self.treaties = np.zeros((self.num_agents, self.num_agents), np.int32)
        self.temperature = np.array([1.0, 0.1], np.float32)
        return self._observations()

    def step(self, actions=None):
        """Take one step with the actions by agent."""
        self.timestep += 1
        chosen = np.array([actions[region] for region in range(self.num_agents)], np.int32)
        rewards = self._produce(chosen)
        self.temperature = HEAT_TRANSITION @ self.temperature
        self.temperature[0] += np.float32(0.01) * self.emissions.sum(dtype=np.float32)
        self._negotiate(chosen)
        done = {"__all__": self.timestep >= self.episode_length}
        return self._observations(), dict(enumerate(rewards)), done, {}

    def _produce(self, chosen):
        levels = np.maximum(chosen[:, MITIGATION], self.mitigation_floor)
        mitigation, savings = (each.astype(np.float32) / np.float32(LEVELS - 1) for each in (levels, chosen[:, 0]))
        gross = self.productivity * np.sqrt(self.capital)
        net = gross * (1 - np.float32(0.1) * mitigation) / (1 + np.float32(0.05) * self.temperature[0])
        invested = savings * np.float32(0.5) * net
        self.emissions = (1 - mitigation) * gross
        self.capital = np.float32(0.8) * self.capital + invested
        return np.log(net - invested + 1).astype(np.float32)

    def _negotiate(self, chosen):
        """Bind each region to its best treaty.

        A treaty needs two regions that join and offer close levels.
        """
        joins, offers = chosen[:, ACCEPTANCE] == 1, chosen[:, PROPOSAL]
        is_close = np.abs(offers[:, None] - offers) <= TOLERANCE
        self.treaties = (joins[:, None] & joins & is_close & ~np.eye(self.num_agents, dtype=bool)).astype(np.int32)
        self.mitigation_floor = (self.treaties * np.minimum(offers[:, None], offers)).max(1).astype(np.int32)

    def _observations(self):
        of_all = [self.temperature[0], self.timestep / self.episode_length]
        columns = [self.capital, self.emissions, *(np.full(self.num_agents, each) for each in of_all)]
        features = np.stack([*columns, self.treaties.sum(1) / self.num_agents], -1).astype(np.float32)
        mask = np.ones((self.num_agents, sum(self.action_nvec)), np.int32)
        mask[:, LEVELS : 2 * LEVELS] = np.arange(LEVELS) >= self.mitigation_floor[:, None]
        return {
            region: {"features": features[region], Constants.ACTION_MASK: mask[region]}
            for region in range(self.num_agents)
        }


class CUDATreaties(Treaties, CUDAEnvironmentContext):
    """Treaties in three kernels: step, negotiation after it, and restart."""

    def __init__(self, *args, **kwargs):
        Treaties.__init__(self, *args, **kwargs)
        CUDAEnvironmentContext.__init__(self)

    def get_data_dictionary(self):
        """Return the state (restored by resets) and the shared parameters."""
        feed = DataFeed()
        for name in _STATE[:-1]:
            feed.add_data(
                name=name, data=getattr(self, name), save_copy_and_apply_at_reset=True, log_data_across_episode=True
            )
        feed.add_data(name="temperature", data=self.temperature, save_copy_and_apply_at_reset=True)
        feed.add_data_list([("productivity", self.productivity), ("num_levels", LEVELS), ("tolerance", TOLERANCE)])
        return feed

    def get_tensor_dictionary(self):
        """Return the trainer's adjustable tensor: the weight of each region's reward."""
        feed = DataFeed()
        weight = np.ones(self.num_agents, np.float32)
        feed.add_data(name="reward_weight", data=weight, save_copy_and_apply_at_reset=True)
        return feed

    def initialize_step_function_context(
        self, cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
    ):
        """Look up the kernels and fill the constants."""
        is_ready = super().initialize_step_function_context(
            cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
        )
        negotiate = f"{step_function_name}Negotiate"
        cuda_function_manager.initialize_functions([negotiate, "CudaTreatiesReset"])
        self.cuda_negotiate = cuda_function_manager.get_function(negotiate)
        self.cuda_negotiate_feed = CUDAFunctionFeed(cuda_data_manager)
        cuda_data_manager.add_shared_constants({"kHeatTransition": HEAT_TRANSITION})
        if self.env_backend == "pycuda":
            cuda_function_manager.initialize_shared_constants(cuda_data_manager, ["kHeatTransition"])
        return is_ready

    def step(self, actions=None):
        """Launch the step and the negotiation."""
        features, mask = _OBSERVATIONS
        step_arguments = [
            *("capital", "emissions", "mitigation_floor", "temperature", "productivity", "num_levels", "reward_weight"),
            # CUDA C has them in constant memory, Numba takes them as an array.
            *([("kHeatTransition", "s")] if self.env_backend == "numba" else []),
            *(features, Constants.ACTIONS, Constants.REWARDS, "_done_", "_timestep_", ("episode_length", "meta")),
        ]
        negotiate_arguments = ["treaties", "mitigation_floor", "num_levels", "tolerance"]
        negotiate_arguments += [features, mask, Constants.ACTIONS]
        block, grid = self.cuda_function_manager.block, self.cuda_function_manager.grid
        step_arguments = self.cuda_step_function_feed(step_arguments)
        negotiate_arguments = self.cuda_negotiate_feed(negotiate_arguments)
        if self.env_backend == "pycuda":
            self.cuda_step(*step_arguments, block=block, grid=grid)
            self.cuda_negotiate(*negotiate_arguments, block=block, grid=grid)
        elif self.env_backend == "numba":
            self.cuda_step[grid, block](*step_arguments)
            self.cuda_negotiate[grid, block](*negotiate_arguments)
        else:
            raise ValueError(f"Treaties: runs on numba or pycuda (got {self.env_backend})")

    @staticmethod
    def reset_arguments():
        """Return the arguments of the restart for `EnvWrapper.custom_reset_all_envs`."""
        pairs = [each for name in (*_STATE, *_OBSERVATIONS) for each in (name, f"{name}_at_reset")]
        return [*pairs, ("num_levels", "d"), "_done_", "_timestep_"]


_STATE = ("capital", "emissions", "mitigation_floor", "treaties", "temperature")
_OBSERVATIONS = [f"{Constants.OBSERVATIONS}_{key}" for key in ("features", Constants.ACTION_MASK)]

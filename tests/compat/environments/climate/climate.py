"""A world economy in a warming climate: regions save, mitigate, trade and make treaties.

A Python class, and a subclass that steps in kernels, as users of WarpDrive write them. Every observation is a dict of
features and of the mask of the actions that treaties leave open.
"""

import numpy as np
from gymnasium.spaces import MultiDiscrete
from warp_drive.managers.function_manager import CUDAFunctionFeed
from warp_drive.utils.constants import Constants
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

_FEATURES = "features"
_ACTION_MASK = Constants.ACTION_MASK

SAVINGS, MITIGATION, EXPORT, PROPOSAL, ACCEPTANCE = range(5)
"""Columns of an action: three shares in levels, a mitigation level that the region offers, and whether it joins."""

CARBON_TRANSITION = np.array([[0.88, 0.12, 0.0], [0.047, 0.948, 0.005], [0.0, 0.00075, 0.99925]], np.float32)
"""Row: the box that carbon leaves, column: where it arrives, in a step; air, upper and lower ocean."""
HEAT_TRANSITION = np.array([[0.872, 0.009], [0.025, 0.975]], np.float32)
"""Row: of the air and the ocean after a step, column: of both before it."""


PARAMETERS = {
    "years_per_step": 5,
    "capital_share": 0.3,
    "depreciation": 0.1,
    "risk_aversion": 1.45,
    "abatement_price": 0.08,
    "abatement_power": 2.6,
    "damage_power": 2.0,
    "export_limit": 0.3,
}
"""Numbers that all regions share, in the order in which the kernels take them."""
RANGES = {
    "labour_start": (20, 1400),
    "technology_start": (1, 12),
    "intensity_start": (0.1, 0.8),
    "capital_start": (0.2, 40),
    "labour_growth": (0.98, 1.06),
    "technology_growth": (1.02, 1.12),
    "vulnerability": (0.001, 0.006),
}
"""Ends between which the numbers of each region are drawn."""


class Climate:
    """Regions with capital, labour and technology share one atmosphere. Amounts are in 10^12 $, 10^9 t, 10^6 people."""

    name = "Climate"

    def __init__(
        self,
        num_regions=27,
        episode_length=20,
        num_levels=10,
        treaty_tolerance=2,
        seed=None,
        env_backend="cpu",
        **parameters,
    ):
        assert num_regions > 1
        assert parameters.keys() <= PARAMETERS.keys()
        self.num_agents = num_regions
        self.episode_length = episode_length
        self.num_levels = num_levels
        self.treaty_tolerance = treaty_tolerance
        self.env_backend = env_backend
        for name, value in {**PARAMETERS, **parameters}.items():
            setattr(self, name, np.float32(value))
        random = np.random.RandomState(seed)
        for name, (low, high) in RANGES.items():
            setattr(self, name, random.uniform(low, high, num_regions).astype(np.float32))
        self.action_nvec = [num_levels] * 4 + [2]
        self.action_space = {region: MultiDiscrete(self.action_nvec) for region in range(num_regions)}
        self.observation_space = None  # set by the wrapper

    def reset(self):
        """Start an episode and return the observations by agent."""
        self.timestep = 0
        for name in _REGIONAL:
            setattr(self, name, getattr(self, f"{name}_start", np.zeros(self.num_agents)).astype(np.float32))
        self.mitigation_floor = np.zeros(self.num_agents, np.int32)
        self.treaties = np.zeros((self.num_agents, self.num_agents), np.int32)
        self.carbon = np.array([850.0, 460.0, 1740.0], np.float32)
        self.temperature = np.array([1.0, 0.1], np.float32)
        return self._observations()

    def step(self, actions=None):
        """Take one step with the actions by agent."""
        self.timestep += 1
        chosen = np.array([actions[region] for region in range(self.num_agents)], np.int32)
        rewards = self._trade_and_emit(chosen)
        self._warm()
        self._negotiate(chosen)
        done = {"__all__": self.timestep >= self.episode_length}
        return self._observations(), dict(enumerate(rewards)), done, {}

    def _trade_and_emit(self, chosen):
        """Let the regions produce and consume; returns their rewards."""
        levels = chosen.astype(np.float32) / np.float32(self.num_levels - 1)
        lowest = self.mitigation_floor.astype(np.float32) / np.float32(self.num_levels - 1)
        mitigation = np.maximum(levels[:, MITIGATION], lowest)
        damage = self.vulnerability * self.temperature[0] ** self.damage_power
        cost = self.abatement_price * mitigation**self.abatement_power
        labour_in_thousands = self.labour / 1000
        self.gross_output = (
            self.technology * self.capital**self.capital_share * labour_in_thousands ** (1 - self.capital_share)
        )
        net = self.gross_output * (1 - cost) / (1 + damage)
        invested = levels[:, SAVINGS] * np.float32(0.5) * net
        self.exports = levels[:, EXPORT] * self.export_limit * (net - invested)
        # What all of them export is bought by the regions in proportion to their people.
        imported = self.exports.sum(dtype=np.float32) * self.labour / self.labour.sum(dtype=np.float32)
        self.consumption = net - invested - self.exports + imported
        self.emissions = self.intensity * (1 - mitigation) * self.gross_output
        kept = (1 - self.depreciation) ** self.years_per_step
        self.capital = kept * self.capital + self.years_per_step * invested
        per_person = self.consumption / labour_in_thousands + np.float32(0.01)
        power = 1 - self.risk_aversion
        rewards = ((per_person**power - 1) / power).astype(np.float32)
        self.labour = self.labour * self.labour_growth
        self.technology = self.technology * self.technology_growth
        self.intensity = self.intensity * np.float32(0.97)
        return rewards

    def _warm(self):
        """Move carbon and heat on."""
        carbon = CARBON_TRANSITION.T @ self.carbon
        carbon[0] += self.years_per_step * self.emissions.sum(dtype=np.float32) * np.float32(0.27)
        forcing = np.float32(5.35) * np.log(carbon[0] / np.float32(588))
        temperature = HEAT_TRANSITION @ self.temperature
        temperature[0] += np.float32(0.1) * forcing
        self.carbon, self.temperature = carbon, temperature

    def _negotiate(self, chosen):
        """Bind each region to the best of its treaties: both joined, and offered levels that lie close."""
        joins, offers = chosen[:, ACCEPTANCE] == 1, chosen[:, PROPOSAL]
        is_close = np.abs(offers[:, None] - offers) <= self.treaty_tolerance
        self.treaties = (joins[:, None] & joins & is_close & ~np.eye(self.num_agents, dtype=bool)).astype(np.int32)
        self.mitigation_floor = (self.treaties * np.minimum(offers[:, None], offers)).max(1).astype(np.int32)

    def _observations(self):
        features = np.stack(
            [
                self.capital / 100,
                self.labour / 1000,
                self.technology / 10,
                self.intensity,
                self.gross_output / 100,
                self.consumption / 100,
                self.emissions / 10,
                np.full(self.num_agents, self.temperature[0]),
                np.full(self.num_agents, self.carbon[0] / 1000),
                self.treaties.sum(1) / self.num_agents,
                np.full(self.num_agents, self.timestep / self.episode_length),
            ],
            -1,
        ).astype(np.float32)
        mask = np.ones((self.num_agents, sum(self.action_nvec)), np.int32)
        levels = np.arange(self.num_levels)
        mask[:, self.num_levels : 2 * self.num_levels] = levels >= self.mitigation_floor[:, None]
        return {region: {_FEATURES: features[region], _ACTION_MASK: mask[region]} for region in range(self.num_agents)}


class CUDAClimate(Climate, CUDAEnvironmentContext):
    """The climate in three kernels: the step, the negotiation after it, and a restart of its own."""

    def __init__(self, *args, **kwargs):
        Climate.__init__(self, *args, **kwargs)
        CUDAEnvironmentContext.__init__(self)

    def get_data_dictionary(self):
        """Return the state, restored by resets, and the parameters, which all copies share."""
        feed = DataFeed()
        for name in (*_REGIONAL, "mitigation_floor", "treaties"):
            feed.add_data(
                name=name, data=getattr(self, name), save_copy_and_apply_at_reset=True, log_data_across_episode=True
            )
        feed.add_data(name="carbon", data=self.carbon, save_copy_and_apply_at_reset=True)
        feed.add_data(name="temperature", data=self.temperature, save_copy_and_apply_at_reset=True)
        feed.add_data_list(
            [(name, getattr(self, name)) for name in ("labour_growth", "technology_growth", "vulnerability")]
        )
        feed.add_data_list([(name, getattr(self, name)) for name in (*_SCALARS, "treaty_tolerance")])
        return feed

    def get_tensor_dictionary(self):
        """Return what a trainer may turn while it runs: how much each region's reward counts."""
        feed = DataFeed()
        feed.add_data(
            name="reward_weight", data=np.ones(self.num_agents, np.float32), save_copy_and_apply_at_reset=True
        )
        return feed

    def initialize_step_function_context(
        self, cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
    ):
        """Keep the step kernel as the base class does, look up the others, and fill the constants."""
        is_ready = super().initialize_step_function_context(
            cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
        )
        negotiate = f"{step_function_name}Negotiate"
        cuda_function_manager.initialize_functions([negotiate, "CudaClimateReset"])
        self.cuda_negotiate = cuda_function_manager.get_function(negotiate)
        self.cuda_negotiate_feed = CUDAFunctionFeed(cuda_data_manager)
        constants = {"kCarbonTransition": CARBON_TRANSITION, "kHeatTransition": HEAT_TRANSITION}
        cuda_data_manager.add_shared_constants(constants)
        if self.env_backend == "pycuda":
            cuda_function_manager.initialize_shared_constants(cuda_data_manager, list(constants))
        return is_ready

    def step(self, actions=None):
        """Launch the step and the negotiation."""
        step_arguments = [
            *_REGIONAL,
            "mitigation_floor",
            "carbon",
            "temperature",
            "labour_growth",
            "technology_growth",
            "vulnerability",
            *_SCALARS,
            "reward_weight",
            # CUDA C has them in constant memory, Numba takes them as arrays.
            *([("kCarbonTransition", "s"), ("kHeatTransition", "s")] if self.env_backend == "numba" else []),
            f"{Constants.OBSERVATIONS}_{_FEATURES}",
            Constants.ACTIONS,
            Constants.REWARDS,
            "_done_",
            "_timestep_",
            ("episode_length", "meta"),
        ]
        negotiate_arguments = [
            "treaties",
            "mitigation_floor",
            "num_levels",
            "treaty_tolerance",
            f"{Constants.OBSERVATIONS}_{_FEATURES}",
            f"{Constants.OBSERVATIONS}_{_ACTION_MASK}",
            Constants.ACTIONS,
        ]
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
            raise ValueError(f"Climate: runs on numba or pycuda (got {self.env_backend})")

    @staticmethod
    def reset_arguments():
        """Return the arguments of the restart for `EnvWrapper.custom_reset_all_envs`."""
        restored = [*_REGIONAL, "mitigation_floor", "treaties", "carbon", "temperature"]
        restored += [f"{Constants.OBSERVATIONS}_{key}" for key in (_FEATURES, _ACTION_MASK)]
        pairs = [each for name in restored for each in (name, f"{name}_at_reset")]
        return [*pairs, ("num_levels", "d"), "_done_", "_timestep_"]


_REGIONAL = ("capital", "labour", "technology", "intensity", "gross_output", "exports", "consumption", "emissions")
_SCALARS = ("num_levels", *PARAMETERS)

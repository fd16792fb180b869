"""An epidemic in the states of a federation: states choose how strictly they close, the government what it pays.

One class for all backends, as users of WarpDrive write them: `env_backend` decides whether `step` computes here or
launches kernels. The policies "state" and "federal" have arrays of their own.
"""

import numpy as np
from gymnasium.spaces import Discrete
from warp_drive.managers.function_manager import CUDAFunctionFeed
from warp_drive.utils.constants import Constants
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

_OBSERVATIONS = Constants.OBSERVATIONS
_ACTIONS = Constants.ACTIONS
_REWARDS = Constants.REWARDS

LAG_WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
"""How much of unemployment is due to the closing of this step, the last one, and so on; the kernels have as many."""


COUNTS = {
    "num_stringency_levels": 10,
    "num_subsidy_levels": 20,
    "subsidy_interval": 4,
    "closing_delay": 2,
    "vaccination_start": 20,
}
RATES = {
    "vaccination_share": 0.004,
    "recovery_rate": 0.2,
    "mortality": 0.015,
    "travel_share": 0.05,
    "base_unemployment": 0.04,
    "interest_rate": 0.001,
    "max_subsidy_per_person": 0.4,
}
WEIGHTS = {"health_weight": 0.6, "debt_weight": 0.02}
"""Parameters that all states share, in the order in which the kernels take them."""


class Epidemic(CUDAEnvironmentContext):
    """Susceptible, infected, recovered and dead people of each state, in thousands, and what the states produce.

    Agents 0 to ``num_states - 1`` are the states, the last one is the federal government. Its column of the arrays
    ``(num_envs, num_agents)`` holds the nation's totals. The states' observations are an array ``(num_envs, num_states,
    features)``, or with ``agents_last`` ``(num_envs, features, num_states)``.
    """

    name = "Epidemic"

    def __init__(self, num_states=51, episode_length=60, agents_last=False, seed=None, env_backend="cpu", **parameters):
        super().__init__()
        assert num_states > 0
        assert parameters.keys() <= {*COUNTS, *RATES, *WEIGHTS}
        self.num_states = num_states
        self.num_agents = num_states + 1
        self.episode_length = episode_length
        self.agents_last = agents_last
        self.env_backend = env_backend
        for name, value in {**COUNTS, **RATES, **WEIGHTS, **parameters}.items():
            setattr(self, name, value if name in COUNTS else np.float32(value))
        assert episode_length > self.closing_delay

        self.states = list(range(num_states))
        self.federal = num_states
        self.policy_tag_to_agent_id_map = {"state": self.states, "federal": [self.federal]}
        self.action_space = {state: Discrete(self.num_stringency_levels) for state in self.states}
        self.action_space[self.federal] = Discrete(self.num_subsidy_levels)
        self.observation_space = None  # set by the wrapper

        random = np.random.RandomState(seed)
        self.population = random.uniform(600, 40_000, num_states).astype(np.float32)
        self.transmission = random.uniform(0.35, 0.6, num_states).astype(np.float32)
        self.closing_effect = random.uniform(0.8, 1.6, num_states).astype(np.float32)
        self.job_sensitivity = random.uniform(0.5, 1.5, num_states).astype(np.float32)
        self.first_cases = (self.population * random.uniform(1e-4, 1e-2, num_states)).astype(np.float32)

    # ------------------------------------------------------------ on the CPU

    def reset(self):
        """Start an episode and return the observations by agent."""
        self.timestep = 0
        zeros = np.zeros(self.num_agents, np.float32)
        infected = _with_total(self.first_cases)
        self.state = {
            "susceptible": _with_total(self.population) - infected,
            "infected": infected,
            "recovered": zeros.copy(),
            "deaths": zeros.copy(),
            "vaccinated": zeros.copy(),
            "unemployment": zeros + self.base_unemployment,
            "output": _with_total(self.population * (1 - self.base_unemployment)),
            "debt": zeros.copy(),
        }
        self.stringency = np.zeros((self.episode_length + 1, self.num_states), np.int32)
        self.subsidy_level = np.zeros(1, np.int32)
        return self._observations()

    def step(self, actions=None):
        """Take one step: here with the actions by agent, or in kernels."""
        if self.env_backend == "cpu":
            return self._step_on_cpu(actions)
        block, grid = self.cuda_function_manager.block, self.cuda_function_manager.grid
        step_arguments = self.cuda_step_function_feed(self._step_arguments())
        rewards_arguments = self.cuda_rewards_feed(self._rewards_arguments())
        if self.env_backend == "pycuda":
            self.cuda_step(*step_arguments, block=block, grid=grid)
            self.cuda_rewards(*rewards_arguments, block=block, grid=grid)
        elif self.env_backend == "numba":
            self.cuda_step[grid, block](*step_arguments)
            self.cuda_rewards[grid, block](*rewards_arguments)
        else:
            raise ValueError(f"Epidemic: runs on cpu, numba or pycuda (got {self.env_backend})")
        return None

    def _step_on_cpu(self, actions):
        self.timestep += 1
        self.stringency[self.timestep] = [int(actions[state]) for state in self.states]
        if (self.timestep - 1) % self.subsidy_interval == 0:
            self.subsidy_level[0] = int(actions[self.federal])
        self._spread()
        self._produce()
        done = {"__all__": self.timestep >= self.episode_length}
        return self._observations(), self._rewards(), done, {}

    def _spread(self):
        susceptible, infected = self._of_states("susceptible"), self._of_states("infected")
        closed = self._closed(self.closing_delay)
        contacts = self.transmission * np.exp(-self.closing_effect * closed)
        nation = self.population.sum(dtype=np.float32)
        pressure = (1 - self.travel_share) * infected / self.population
        pressure += self.travel_share * self.state["infected"][self.federal] / nation
        cases = np.minimum(susceptible, contacts * susceptible * pressure)
        resolved = self.recovery_rate * infected
        doses = self.population * self.vaccination_share * (self.timestep >= self.vaccination_start)
        doses = np.minimum(susceptible - cases, doses)
        changes = {
            "susceptible": -cases - doses,
            "infected": cases - resolved,
            "recovered": (1 - self.mortality) * resolved + doses,
            "deaths": self.mortality * resolved,
            "vaccinated": doses,
        }
        for name, change in changes.items():
            self.state[name] = _with_total(self._of_states(name) + change)
        self.new_deaths = changes["deaths"]

    def _produce(self):
        lagged = sum(weight * self._closed(lag) for lag, weight in enumerate(LAG_WEIGHTS))
        # The softplus keeps unemployment above its base, smoothly.
        excess = self.job_sensitivity * np.log1p(np.exp(6 * lagged - 3)) / 6
        unemployment = np.minimum(np.float32(1), self.base_unemployment + excess).astype(np.float32)
        able = self.population - self._of_states("deaths") - self._of_states("infected")
        subsidy = self.population * self.max_subsidy_per_person * self._subsidy_share()
        self.state["unemployment"][: self.num_states] = unemployment
        self.state["unemployment"][self.federal] = (unemployment * self.population).sum() / self.population.sum()
        self.state["output"] = _with_total(able * (1 - unemployment) + subsidy)
        debt = (1 + self.interest_rate) * self._of_states("debt") + subsidy
        self.state["debt"] = _with_total(debt)

    def _rewards(self):
        output = self._of_states("output") / self.population
        health = -1000 * self.new_deaths / self.population
        wealth = np.log(output + np.float32(0.01))
        rewards = self.health_weight * health + (1 - self.health_weight) * wealth
        nation = self.population.sum(dtype=np.float32)
        welfare = (rewards * self.population).sum() / nation
        federal = welfare - self.debt_weight * self.state["debt"][self.federal] / nation
        return {**dict(enumerate(rewards.astype(np.float32))), self.federal: np.float32(federal)}

    def _observations(self):
        features = np.stack(
            [
                *(self._of_states(name) / self.population for name in _COUNTS),
                self._of_states("unemployment"),
                self._of_states("output") / self.population,
                self._closed(0),
                np.full(self.num_states, self._subsidy_share()),
                np.full(self.num_states, self.timestep / self.episode_length),
            ],
            -1,
        ).astype(np.float32)
        nation = self.population.sum(dtype=np.float32)
        totals = [self.state[name][self.federal] / nation for name in ("infected", "deaths", "vaccinated")]
        totals += [self.state["unemployment"][self.federal], self.state["debt"][self.federal] / nation]
        totals += [self._subsidy_share(), self.timestep / self.episode_length]
        federal = np.concatenate([totals, self._of_states("infected") / self.population, self._closed(0)])
        return {**dict(enumerate(features)), self.federal: federal.astype(np.float32)}

    def _of_states(self, name):
        return self.state[name][: self.num_states]

    def _closed(self, lag):
        """Return how strictly each state was closed ``lag`` steps ago, 0 to 1; open before the episode."""
        levels = self.stringency[max(self.timestep - lag, 0)].astype(np.float32)
        return levels / np.float32(self.num_stringency_levels - 1)

    def _subsidy_share(self):
        return self.subsidy_level[0] / np.float32(self.num_subsidy_levels - 1)

    # ------------------------------------------------------------ in kernels

    def get_data_dictionary(self):
        """Return the state, restored by resets, and the parameters, which all copies share."""
        feed = DataFeed()
        for name, value in self.state.items():
            feed.add_data(name, value, save_copy_and_apply_at_reset=True, log_data_across_episode=True)
        feed.add_data("stringency", self.stringency, save_copy_and_apply_at_reset=True)
        feed.add_data_list(
            [
                ("subsidy_level", self.subsidy_level, True),
                ("new_deaths", np.zeros(self.num_states, np.float32), True),
                *((name, getattr(self, name)) for name in (*_OF_STATES, *COUNTS)),
                *({"name": name, "data": getattr(self, name)} for name in (*RATES, *WEIGHTS)),
                ("agents_last", self.agents_last),
            ]
        )
        return feed

    def get_tensor_dictionary(self):
        """Return nothing: the arrays that torch reads are the trainer's."""
        return DataFeed()

    def initialize_step_function_context(
        self, cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
    ):
        """Keep the step kernel as the base class does, look up the second kernel, and fill the constants."""
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
            *self.state,
            "stringency",
            "subsidy_level",
            "new_deaths",
            *_OF_STATES,
            *COUNTS,
            *RATES,
            "agents_last",
            # CUDA C has them in constant memory, Numba takes them as an array.
            *([("kLagWeights", "shared")] if self.env_backend == "numba" else []),
            f"{_OBSERVATIONS}_state",
            f"{_OBSERVATIONS}_federal",
            f"{_ACTIONS}_state",
            f"{_ACTIONS}_federal",
            "_done_",
            "_timestep_",
            ("episode_length", "meta"),
        ]

    def _rewards_arguments(self):
        return [
            "output",
            "debt",
            "new_deaths",
            "population",
            *WEIGHTS,
            f"{_REWARDS}_state",
            f"{_REWARDS}_federal",
        ]


_OF_STATES = ("population", "transmission", "closing_effect", "job_sensitivity")
_COUNTS = ("susceptible", "infected", "recovered", "deaths", "vaccinated")


def _with_total(of_states):
    return np.append(of_states, of_states.sum(dtype=np.float32)).astype(np.float32)

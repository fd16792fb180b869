"""Shared by consistency checker tests: Counter's checkers, and Summing.

Summing has spaces and layouts.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.environments.counter import Counter
from warpdrive_min import CUDAEnvironmentContext, EnvironmentCPUvsGPU, EnvWrapper
from warpdrive_min.dialect.layout import create_and_push_data_placeholders
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete

CONFIGS = {"short": {"episode_length": 3, "limit": 100}, "limit": {"num_agents": 2, "episode_length": 9, "limit": 2}}

SPACES = {"discrete": Discrete(3), "several": MultiDiscrete([2, 5]), "box": Box(-1.0, 2.0, (2,))}

POLICIES = {"one": ["x"], "two": ["z", "y"]}


def checker(backend: str = "cpu", **arguments: object) -> EnvironmentCPUvsGPU:
    """Return a checker of Counter in two scenarios, three copies each."""
    arguments = {"dual_mode_env_class": Counter, "env_configs": CONFIGS, "num_envs": 3, **arguments}
    return EnvironmentCPUvsGPU(gpu_env_backend=backend, **arguments)


def against_counter(wrong: type, **arguments: object) -> EnvironmentCPUvsGPU:
    """Return a checker of a class with a fault."""
    return checker(dual_mode_env_class=None, cpu_env_class=Counter, cuda_env_class=wrong, **arguments)


def report_of(check: EnvironmentCPUvsGPU, *arguments: object, **named: object) -> str:
    """Return the report of a checker with an expected failure."""
    with pytest.raises(AssertionError) as caught:
        check.test_env_reset_and_step(*arguments, **named)
    return str(caught.value)


def draw_config(generator: np.random.Generator) -> dict[str, int]:
    """Draw a config of Counter."""
    return {
        "num_agents": int(generator.integers(1, 4)),
        "episode_length": int(generator.integers(1, 5)),
        "limit": int(generator.integers(1, 6)),
    }


class Summing:
    """Every agent observes its summed actions; the reward is their sum."""

    name = "Summing"

    def __init__(self, space: str = "box", is_dict: bool = False, episode_length: int = 3) -> None:
        self.num_agents, self.episode_length, self.is_dict = 3, episode_length, is_dict
        self.action_space = dict.fromkeys("xyz", SPACES[space])

    def reset(self):
        self.timestep = 0
        n_types = 1 if isinstance(self.action_space["x"], Discrete) else 2
        self.total = {agent: np.zeros(n_types, np.float32) for agent in self.action_space}
        return self.observe()

    def observe(self):
        return {
            agent: {"sum": total, "half": total / 2} if self.is_dict else total for agent, total in self.total.items()
        }

    def step(self, actions=None):
        self.timestep += 1
        self.total = {agent: total + actions[agent] for agent, total in self.total.items()}
        rewards = {agent: total.sum() for agent, total in self.total.items()}
        return self.observe(), rewards, {"__all__": self.timestep == self.episode_length}, {}


class SummingInKernels(Summing, CUDAEnvironmentContext):
    """Summing with kernels from `build`; `Placed` pushes the arrays."""

    kernel_sources = {"numpy": __name__}  # noqa: RUF012  (as in a manual)
    layout = "shared"
    error_of_z = 0.0

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        CUDAEnvironmentContext.__init__(self)

    def get_constants(self):
        return {"LAYOUT": ["dict", "shared", "first", "last"].index(self.layout), "ERROR_OF_Z": self.error_of_z}

    def step(self, actions=None):
        self.cuda_step()


def build(c):
    """Return Summing's NumPy step for an array layout."""

    def count(_timestep_, _done_):
        _timestep_ += 1
        _done_[_timestep_ >= c.EPISODE_LENGTH] = 1

    def shared(sampled_actions, observations, rewards, _timestep_, _done_):
        observations += sampled_actions
        rewards[:] = observations.sum(-1)
        count(_timestep_, _done_)

    def of_dicts(sampled_actions, observations_sum, observations_half, rewards, _timestep_, _done_):
        shared(sampled_actions, observations_sum, rewards, _timestep_, _done_)
        observations_half[:] = observations_sum / 2

    def separate(
        sampled_actions_one,
        sampled_actions_two,
        observations_one,
        observations_two,
        rewards_one,
        rewards_two,
        _timestep_,
        _done_,
    ):
        observations_one += sampled_actions_one
        by_agent = observations_two.swapaxes(1, 2) if c.LAYOUT == 3 else observations_two
        by_agent += sampled_actions_two
        by_agent[:, 0, 1] += c.ERROR_OF_Z
        rewards_one[:], rewards_two[:] = observations_one.sum(-1), by_agent.sum(-1)
        count(_timestep_, _done_)

    return {"step": [of_dicts, shared, separate, separate][c.LAYOUT]}


class Placed(EnvWrapper):
    """A wrapper that pushes placeholders as a trainer would."""

    def reset_all_envs(self):
        is_first = self.reset_on_host
        observations = super().reset_all_envs()
        if is_first:
            layout = self.env.layout
            is_separate = layout in ("first", "last")
            create_and_push_data_placeholders(
                self,
                policy_tag_to_agent_id_map=POLICIES if is_separate else None,
                create_separate_placeholders_for_each_policy=is_separate,
                obs_dim_corresponding_to_num_agents="last" if layout == "last" else "first",
                push_data_batch_placeholders=False,
            )
        return observations


def summing_checker(layout: str = "shared", error_of_z: float = 0.0, **config: object) -> EnvironmentCPUvsGPU:
    """Return a checker of Summing's kernels against its Python class."""
    wrong = type("Wrong", (SummingInKernels,), {"layout": layout, "error_of_z": error_of_z})
    is_separate = layout in ("first", "last")
    return EnvironmentCPUvsGPU(
        Summing,
        wrong,
        env_configs={"sums": config},
        gpu_env_backend="cpu",
        env_wrapper=Placed,
        policy_tag_to_agent_id_map=POLICIES if is_separate else None,
        create_separate_placeholders_for_each_policy=is_separate,
        obs_dim_corresponding_to_num_agents="last" if layout == "last" else "first",
    )

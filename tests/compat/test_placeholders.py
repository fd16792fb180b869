"""Arrays that WarpDrive's trainer pushes, and their actions."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from example_envs.single_agent.classic_control.pendulum.pendulum import CUDAClassicControlPendulumEnv
from example_envs.tag_continuous.tag_continuous import TagContinuous
from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.utils.data_loader import create_and_push_data_placeholders, get_flattened_obs_size, get_obs
from warp_drive.utils.recursive_obs_dict_to_spaces_dict import recursive_obs_dict_to_spaces_dict

from envs.classic_control.cartpole import CartPole
from tests.environments.counter import Counter
from warpdrive_min import CUDASampler, spaces
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete


class Bare(Counter):
    """Counter without observations, actions and rewards; spaces can be replaced."""

    def __init__(self, action_spaces=None, observation=None, **config):
        super().__init__(**config)
        self.action_space = dict(enumerate(action_spaces)) if action_spaces else self.action_space
        self.own_observation = observation

    def get_tensor_dictionary(self):
        return {}

    def reset(self):
        observations = super().reset()
        return (
            observations
            if self.own_observation is None
            else {agent: self.own_observation(agent) for agent in observations}
        )


def start(env: Bare | CartPole, n_envs: int = 2) -> EnvWrapper:
    """Return a started wrapper on the CPU's kernels."""
    wrapper = EnvWrapper(env, num_envs=n_envs)
    wrapper.reset()
    return wrapper


def described(wrapper: EnvWrapper, prefix: str = "") -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the arrays of a prefix."""
    data = wrapper.cuda_data_manager
    return {
        name: (data.get_shape(name), data.get_dtype(name)) for name in data.array_names() if name.startswith(prefix)
    }


def test_shared_arrays_and_batches_have_warpdrives_shapes():
    """Arrays that agents share have WarpDrive's shapes, also in batches."""
    wrapper = start(Bare())
    sampler = CUDASampler(wrapper.cuda_function_manager)
    create_and_push_data_placeholders(wrapper, sampler, training_batch_size_per_env=4)
    got = described(wrapper)
    want = {
        "observations": ((2, 3, 2), "float32"),
        "sampled_actions": ((2, 3, 1), "int32"),
        "rewards": ((2, 3), "float32"),
        "sampled_actions_batch_shared": ((4, 2, 3, 1), "int32"),
        "rewards_batch_shared": ((4, 2, 3), "float32"),
        "done_flags_batch": ((4, 2), "int32"),
        "processed_observations_batch_shared": ((4, 2, 3, 2), "float32"),
        "sampled_actions_draws": ((2,), "int32"),
    }
    assert want.items() <= got.items()
    assert "observations" in wrapper.cuda_data_manager.reset_data_list
    assert wrapper.cuda_data_manager.is_data_on_device_via_torch("rewards")


def test_one_row_of_time_has_its_batch_too():
    """One row of time has its processed batch too.

    WarpDrive leaves processed observations out at T = 1, on which its models fail.
    """
    wrapper = start(Bare())
    create_and_push_data_placeholders(wrapper, {"shared": [0, 1, 2]}, False, "first", 1)  # before 2.7: no sampler
    assert described(wrapper, "processed")["processed_observations_batch_shared"][0] == (1, 2, 3, 2)


def test_separate_arrays_for_each_policy():
    """Each policy gets its own arrays with the right dtypes.

    MultiDiscrete is split by type, Box is float32, tags may have underscores.
    """
    spaces = [MultiDiscrete([3, 5]), Box(-1, 1, (1,)), Box(-1, 1, (1,))]
    wrapper = start(Bare(spaces, observation=lambda agent: np.zeros(4 if agent == 0 else 2)))
    sampler = CUDASampler(wrapper.cuda_function_manager)
    create_and_push_data_placeholders(
        wrapper,
        sampler,
        {"the_first": [0], "rest": (1, 2)},
        create_separate_placeholders_for_each_policy=True,
        training_batch_size_per_env=6,
    )
    got = described(wrapper)
    want = {
        "observations_the_first": ((2, 1, 4), "float32"),
        "observations_rest": ((2, 2, 2), "float32"),
        "sampled_actions_the_first": ((2, 1, 2), "int32"),
        "sampled_actions_0_the_first": ((2, 1, 1), "int32"),
        "sampled_actions_1_the_first": ((2, 1, 1), "int32"),
        "sampled_actions_rest": ((2, 2, 1), "float32"),
        "rewards_rest": ((2, 2), "float32"),
        "sampled_actions_batch_the_first": ((6, 2, 1, 2), "int32"),
        "sampled_actions_batch_rest": ((6, 2, 2, 1), "float32"),
        "processed_observations_batch_the_first": ((6, 2, 1, 4), "float32"),
        "sampled_actions_rest_ou_state": ((2, 2, 1), "float32"),
    }
    assert want.items() <= got.items()
    assert "sampled_actions_1_the_first_draws" in got
    assert "sampled_actions_the_first_draws" not in got


def test_dict_observations_have_an_array_for_each_key():
    """Each key of dict observations has its array.

    Agents last swaps the axes; a mask adds nothing to the processed size.
    """
    wrapper = start(Bare(observation=lambda agent: {"obs": np.full((4, 5), agent), "action_mask": np.ones(2)}))
    create_and_push_data_placeholders(
        wrapper, obs_dim_corresponding_to_num_agents="last", training_batch_size_per_env=2
    )
    got = described(wrapper)
    assert got["observations_obs"] == ((2, 5, 4, 3), "int32")
    assert got["observations_action_mask"] == ((2, 2, 3), "float32")
    assert got["processed_observations_batch_shared"][0] == (2, 2, 3, 20)
    observations = wrapper.cuda_data_manager.pull_data_from_device("observations_obs")
    assert observations[1, 0, 0].tolist() == [0, 1, 2]


def test_observations_describe_the_state_that_was_pushed():
    """Observations describe the pushed state, also with random starts."""
    wrapper = start(Bare(random_start=True), n_envs=3)
    create_and_push_data_placeholders(wrapper, push_data_batch_placeholders=False)
    data = wrapper.cuda_data_manager
    np.testing.assert_array_equal(
        data.pull_data_from_device("observations")[:, :, 1], data.pull_data_from_device("place")
    )


def test_arrays_of_the_environment_stay():
    """Only batches are added to the arrays of our environments."""
    wrapper = start(CartPole())
    observations = wrapper.cuda_data_manager.tensor("observations")
    create_and_push_data_placeholders(wrapper, training_batch_size_per_env=5)
    assert wrapper.cuda_data_manager.tensor("observations") is observations
    assert described(wrapper, "processed")["processed_observations_batch_shared"][0] == (5, 2, 1, 4)
    with pytest.raises(
        ConfigError, match=r"'sampled_actions_batch_shared': exists already.* \(6, 2, 1, 1\) \(got \(5, 2, 1, 1\)"
    ):
        create_and_push_data_placeholders(wrapper, training_batch_size_per_env=6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy_tag_to_agent_id_map": {"a": [0, 1]}}, r"each of the agents \[0, 1, 2\] once \(got \[0, 1\]\)"),
        ({"policy_tag_to_agent_id_map": {"a": [0, 1], "b": [1, 2]}}, r"once \(got \[0, 1, 1, 2\]\)"),
        ({"create_separate_placeholders_for_each_policy": True}, "more than one policy"),
        ({"obs_dim_corresponding_to_num_agents": "middle"}, "'first' or 'last'"),
        ({}, r"training_batch_size_per_env: must be at least 1 \(got None\)"),
    ],
)
def test_rules_are_checked(arguments, message):
    """Each broken rule raises ConfigError before any push."""
    wrapper = start(Bare())
    before = described(wrapper)
    with pytest.raises(ConfigError, match=message):
        create_and_push_data_placeholders(wrapper, **arguments)
    assert described(wrapper) == before


def test_agents_that_share_must_have_one_space():
    """Agents with different action spaces cannot share an array."""
    wrapper = start(Bare([Discrete(2), Discrete(3), Discrete(2)]))
    with pytest.raises(ConfigError, match=r"same spaces .* for 1 and .* for 0"):
        create_and_push_data_placeholders(wrapper, training_batch_size_per_env=1)


def test_wrapper_must_have_started():
    """Placeholders before the first reset are an error."""
    with pytest.raises(ConfigError, match="after its first reset"):
        create_and_push_data_placeholders(EnvWrapper(Bare(), num_envs=2), training_batch_size_per_env=1)


def test_get_obs_stacks_agents_first_or_last():
    """`get_obs` stacks agents on the first or last axis.

    One agent stays first.
    """
    observations = {agent: {"x": np.full(4, agent)} for agent in (5, 6, 7)}
    assert get_obs(observations, [6, 7], key="x").tolist() == [[6] * 4, [7] * 4]
    assert get_obs(observations, [6, 7], "last", key="x").tolist() == [[6, 7]] * 4
    assert get_obs(observations, [6], "last", key="x").shape == (1, 4)


def test_flattened_size_adds_up():
    """Flattened sizes add up, without the mask, for nested spaces."""
    shapes = {"a": np.zeros((2, 3)), "b": np.zeros(5), "action_mask": np.zeros(9)}
    space = recursive_obs_dict_to_spaces_dict(shapes)
    assert get_flattened_obs_size(space["a"]) == 6
    assert get_flattened_obs_size(space) == 11
    assert get_flattened_obs_size(SimpleNamespace(spaces=dict(space))) == 11


def test_spaces_are_gyms_where_gym_was_imported(monkeypatch):
    """Spaces are gym's if gym was imported, else ours."""
    assert type(recursive_obs_dict_to_spaces_dict(np.zeros(3))) is spaces.Box
    monkeypatch.setitem(sys.modules, "gym.spaces", gymnasium.spaces)
    wrapper = EnvWrapper(CUDATagGridWorld(num_taggers=2), num_envs=2, env_backend="cpu")
    assert all(isinstance(space, gymnasium.spaces.Discrete) and space.n == 5 for space in action_spaces(wrapper))
    assert {type(space) for space in wrapper.env.observation_space.values()} == {gymnasium.spaces.Box}
    assert get_flattened_obs_size(wrapper.env.observation_space[0]) == len(wrapper.env.reset()[0])
    continuous = EnvWrapper(TagContinuous(num_taggers=1, num_runners=1), num_envs=2, env_backend="cpu")
    assert all(isinstance(space, gymnasium.spaces.MultiDiscrete) for space in action_spaces(continuous))
    pendulum = EnvWrapper(CUDAClassicControlPendulumEnv(), num_envs=2, env_backend="cpu")
    assert isinstance(pendulum.env.action_space[0], gymnasium.spaces.Box)
    assert pendulum.env.action_dtype is np.float32  # its kernels read no integers
    nested = recursive_obs_dict_to_spaces_dict({"a": np.zeros(2, np.int32), "b": {"c": np.zeros(1, bool)}})
    assert isinstance(nested["b"], gymnasium.spaces.Dict)
    assert nested["a"].dtype == np.int32
    theirs = wrapper.env.action_space
    again = EnvWrapper(wrapper.env, num_envs=3, env_backend="cpu")
    assert again.env.action_space is theirs


def action_spaces(wrapper):
    return list(wrapper.env.action_space.values())

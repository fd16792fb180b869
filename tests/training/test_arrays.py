"""Arrays of a policy's agents, and policies with shared arrays."""

from __future__ import annotations

import pytest
import torch

from envs import Covid19Economy
from tests.environments.clock import Clock
from tests.training.builders import refused
from warpdrive_min import CUDASampler, EnvWrapper
from warpdrive_min.dialect.layout import WarpDriveLayout
from warpdrive_min.spaces import Discrete
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import PolicyConfig
from warpdrive_min.training.loop.arrays import SharedLayout, saved_layout
from warpdrive_min.training.loop.policies import PolicyGroup, action_samplers

SHARING = "training: policies whose actions share an array"
SPLIT = {"odd": [1], "even": [2, 0]}


def start(**config):
    """Return a started wrapper of three agents."""
    wrapper = EnvWrapper(Clock(num_agents=3, **config), num_envs=2)
    wrapper.reset()
    return wrapper


def arrays_of(wrapper, policies):
    """Return the arrays of the policies' agents, which all share."""
    return SharedLayout().arrays(wrapper, policies)


def test_rows_are_placed_on_the_first_axis():
    """Numbers of agents alone, such as log_std, are placed by row.

    `test_rollout` has rows of environments and agents in every arrangement.
    """
    column = torch.zeros(3, 1)
    arrays_of(start(), SPLIT)["even"].place(torch.tensor([[1.0], [2.0]]), column, axis=0)
    assert column.tolist() == [[2], [0], [1]]


def test_agents_of_a_role_share_arrays():
    """Agents of a role share arrays; no policy has two roles.

    Governors share a set, the government has its own.
    """
    wrapper = EnvWrapper(Covid19Economy(episode_length=5), num_envs=2)
    wrapper.reset()
    policies = {"east": range(1, 51, 2), "government": [51], "west": range(0, 51, 2)}
    east, government, west = arrays_of(wrapper, policies).values()
    assert [each.suffix for each in (east, government, west)] == ["_governor", "_government", "_governor"]
    assert (east.rows.tolist(), government.rows) == (list(policies["east"]), None)
    assert (east.n_features, government.n_features, west.mask.shape) == (22, 215, (2, 51, 11))
    assert government.actions is not east.actions
    assert east.actions.data_ptr() == west.actions.data_ptr()
    by_policy = WarpDriveLayout(separate=True).arrays(wrapper, wrapper.env.roles)
    assert [each.suffix for each in by_policy.values()] == ["_governor", "_government"]
    wrapper.env.action_space[51] = wrapper.env.action_space[0]
    with refused("policy 'one'", list(range(52))):
        arrays_of(wrapper, {"one": range(52)})


def samplers(wrapper, part="model"):
    """Return two policies' samplers; ``part`` names one's network."""
    parts = {"odd": "model", "even": part}
    groups = [
        PolicyGroup(name, PolicyConfig(), each, {parts[name]: None}) for name, each in arrays_of(wrapper, SPLIT).items()
    ]
    return action_samplers(wrapper, CUDASampler(wrapper.cuda_function_manager), groups)


def test_agents_of_a_policy_have_the_same_actions():
    """A policy's agents need equal action spaces.

    Others raise with the policy's name; separate policies may differ on own arrays.
    """
    wrapper = start()
    wrapper.env.action_space = {0: Discrete(3), 1: Discrete(2), 2: Discrete(3)}
    with refused("policy 'shared'", got=dict(enumerate(ActionSpace((n,), 1) for n in (3, 2, 3)))):
        arrays_of(wrapper, {"shared": [0, 1, 2]})
    assert arrays_of(wrapper, SPLIT)["odd"].space.categories == (2,)
    with refused(SHARING, {"odd": ActionSpace((2,), 1), "even": ActionSpace((3,), 1)}):
        samplers(wrapper)


def test_policies_at_one_array_explore_in_one_way():
    """Policies that share an array must explore in the same way."""
    with refused(SHARING, "DDPG for even"):
        samplers(start(), "actor")


def test_missing_observations_are_named():
    """A policy without its observations array raises, naming it."""
    with refused("training"):
        arrays_of(start(policies={"even": [0, 2], "odd": [1]}), SPLIT)


@pytest.mark.parametrize("saved", [[False, "first"], [False, "last"], [True, "first"], [True, "last"]])
def test_layouts_are_those_that_checkpoints_name(saved):
    """A layout is found by its entry in a checkpoint.

    Only the core's is its own.
    """
    layout = saved_layout(saved)
    assert list(layout.saved) == saved
    assert (type(layout) is SharedLayout) == (saved == [False, "first"])

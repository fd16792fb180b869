"""ContinuousMountainCar against worked examples, published values and Gymnasium.

What it shares with MountainCar is tested in `test_mountain_car.py`, for both.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from envs.classic_control._common import valley
from envs.classic_control.continuous_mountain_car import ContinuousMountainCar
from tests.support import BACKENDS_HERE
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box

BOTTOM = -math.pi / 6  # m: there cos(3 x) is 0, so nothing but the motor pushes


def started(states, backend="cpu", **config):
    """Return a started wrapper, its copies at ``states``, one (position, velocity) each."""
    wrapper = EnvWrapper(ContinuousMountainCar(**config), num_envs=len(states), env_backend=backend)
    wrapper.reset()
    place(wrapper, states)
    return wrapper


def place(wrapper, states):
    """Put the copies at these states."""
    wrapper.cuda_data_manager.tensor("state")[:, 0].copy_(torch.as_tensor(np.asarray(states, np.float32)))


def pull(wrapper, name):
    return wrapper.cuda_data_manager.pull_data_from_device(name)


def step(wrapper, actions):
    """Step with one action for each copy."""
    target = wrapper.cuda_data_manager.tensor("sampled_actions")
    target.copy_(torch.as_tensor(np.reshape(actions, target.shape)))
    wrapper.step()


def test_spaces_and_action_array_are_continuous():
    """The action space is a box of one number, and the array of actions holds float32."""
    wrapper = started([(0, 0)] * 2)
    assert wrapper.env.action_space == {0: Box(-1, 1, (1,))}
    actions = wrapper.cuda_data_manager.tensor("sampled_actions")
    assert actions.shape == (2, 1, 1)
    assert actions.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_push_is_clipped_and_its_cost_is_not(backend):
    """Beyond 1 the push stays the same while the cost grows with the square of the action."""
    wrapper = started([(BOTTOM, 0)] * 5, backend)
    step(wrapper, [-3, -1, 0.5, 1, 2])
    want = 0.0015 * np.array([-1, -1, 0.5, 1, 1])
    np.testing.assert_allclose(pull(wrapper, "state")[:, 0, 1], want, atol=1e-8)
    np.testing.assert_allclose(pull(wrapper, "rewards")[:, 0], [-0.9, -0.1, -0.025, -0.1, -0.4], rtol=1e-6)
    np.testing.assert_array_equal(pull(wrapper, "_done_"), 0)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_goal_pays_once_less_the_cost_of_the_action(backend):
    """Who reaches the goal gets 100, less the cost of the action; who is cut off gets nothing for it."""
    wrapper = started([(0.44, 0.03), (BOTTOM, 0)], backend, episode_length=1)
    step(wrapper, [1.5, 0])
    np.testing.assert_allclose(pull(wrapper, "rewards")[:, 0], [100 - 0.225, 0], rtol=1e-6)
    assert pull(wrapper, "terminated").tolist() == [1, 0]
    assert pull(wrapper, "truncated").tolist() == [0, 1]


def test_episode_of_gymnasium_is_reproduced():
    """From Gymnasium's start for seed 54231, 50 published steps end at the published observation and return."""
    env = ContinuousMountainCar(reset_pool_size=1, seed=54231)
    np.testing.assert_allclose(env.reset()[0], [-0.572537, 0], atol=1e-6)
    total = 0.0
    for number in range(1, 51):
        observations, rewards, dones, info = env.step({0: [math.sin(0.3 * number)]})
        total += rewards[0]
    assert (dones, info) == ({"__all__": False}, {})
    np.testing.assert_allclose(total, -2.600995, atol=1e-5)
    np.testing.assert_allclose(observations[0], [-0.573851, -0.001124], atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "host"])
def test_step_agrees_with_gymnasium_from_the_same_state(backend):
    """10,000 steps from all over the valley, with actions inside and outside the box, are Gymnasium's."""
    gymnasium = pytest.importorskip("gymnasium")
    oracle = gymnasium.make("MountainCarContinuous-v0").unwrapped
    generator = np.random.default_rng(0)
    n_walls = n_arrived = n_doubtful = 0
    wrapper = started([(0, 0)] * 100, backend)
    for number in range(100):
        if number % 5 == 0:
            place(wrapper, generator.uniform([-1.2, -0.07], [0.6, 0.07], (100, 2)))
        before, actions = pull(wrapper, "state")[:, 0], generator.uniform(-2, 2, (100, 1)).astype(np.float32)
        step(wrapper, actions)
        got, rewards, ended = pull(wrapper, "observations")[:, 0], pull(wrapper, "rewards"), pull(wrapper, "terminated")
        for env in range(100):
            oracle.state = tuple(before[env].tolist())
            want, reward, terminated, _, _ = oracle.step(actions[env])
            np.testing.assert_allclose(got[env], want, atol=1e-5)
            is_doubtful = abs(want[0] - 0.45) < valley.HAIR
            if not is_doubtful:
                assert terminated == ended[env]
                np.testing.assert_allclose(rewards[env, 0], reward, atol=1e-5)  # 100 is held to 4e-6
            n_walls += got[env, 0] == np.float32(-1.2)
            n_arrived += terminated
            n_doubtful += is_doubtful
    assert n_walls > 50
    assert n_arrived > 500
    assert n_doubtful < 10


def test_config_names_the_broken_rule_of_the_actions():
    """A box of actions without room is an error that names key, rule and value."""
    with pytest.raises(ConfigError, match=r"^continuous_mountain_car\.max_action: must be above min_action = 1\.5"):
        ContinuousMountainCar(min_action=1.5)

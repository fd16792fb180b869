"""Uniform draws of continuous actions, and the random policy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.agreement import assert_same_bits
from tests.core.builders import N_AGENTS, N_ENVS, N_TYPES, draw, sampler_of
from tests.support import managers, on_every_backend, on_every_other_backend, push
from warpdrive_min import rng
from warpdrive_min.errors import ConfigError
from warpdrive_min.policies import random_policy
from warpdrive_min.spaces import Box, Discrete


def policy_of(backend: str, spaces: list[object], n_types: int, n_envs: int = N_ENVS, seed: int = 0):
    """Return data and a random policy for these action spaces."""
    data, functions = managers(backend, len(spaces), n_envs)
    push(data, "sampled_actions", np.full((n_envs, len(spaces), n_types), np.nan, np.float32))
    wrapper = SimpleNamespace(
        cuda_data_manager=data,
        cuda_function_manager=functions,
        env=SimpleNamespace(action_space=dict(enumerate(spaces))),
        n_envs=n_envs,
        n_agents=len(spaces),
    )
    return data, random_policy(wrapper, seed)


@on_every_backend
def test_random_policy_is_a_weighted_mean_of_the_bounds_by_the_documented_words(backend):
    """A random action lies between its bounds, weighted by Philox words.

    Draw d of type j of J uses word dJ + j; agents and types have own bounds.
    """
    bounds = np.array([[[-1, 3], [0, 1], [5, 6]], [[-1, 0], [-10, 10], [3, 3]], [[-2, 2]] * 3], np.float32)
    # Gymnasium's Box holds arrays.
    spaces = [SimpleNamespace(low=each[:, 0], high=each[:, 1], shape=(N_TYPES,)) for each in bounds]
    data, act = policy_of(backend, spaces, N_TYPES, seed=9)
    for d in range(3):
        act()
        got = data.pull_data_from_device("sampled_actions")
        for env, agent, j in np.ndindex(*got.shape):
            number, (low, high) = d * N_TYPES + j, bounds[agent, j].astype(np.float64)
            word = rng.philox(number // 4, env, agent, rng.STREAM_ACTIONS, 9, 0)[number % 4]
            assert got[env, agent, j] == pytest.approx(low + (high - low) * float(rng.uniform(word)), abs=2e-6)


@on_every_other_backend
def test_random_policy_is_bit_identical_on_every_backend(backend):
    """The random policy is bit-identical on every backend.

    Bounds may be so far apart that their difference overflows.
    """
    spaces = [Box(-3e38, 3e38, (2,)), Box(-0.1, 0.7, (2,)), Box(1e-30, 2e-30, (2,))]
    runs = []
    for name, n_envs in ((backend, 2), ("cpu", 4)):
        data, act = policy_of(name, spaces, 2, n_envs, seed=10)
        seen = []
        for _ in range(5):
            act()
            seen.append(data.pull_data_from_device("sampled_actions")[:2])
        runs.append(np.stack(seen))
    assert_same_bits(*runs)
    assert np.isfinite(runs[0]).all()
    assert np.abs(runs[0][:, :, 0]).max() > 1.5e38


def test_random_policy_of_a_scalar_box_draws_one_type():
    """A space of shape () is one action type."""
    data, act = policy_of("cpu", [Box(0.0, 1.0, ())], 1)
    act()
    assert ((data.tensor("sampled_actions") >= 0) & (data.tensor("sampled_actions") <= 1)).all()


def test_uniform_draws_leave_the_noise():
    """Uniform draws count as draws, but leave the noise unchanged."""
    data, sampler = sampler_of("cpu")
    draw(data, sampler, 1)
    state = data.pull_data_from_device("sampled_actions_ou_state")
    bound = torch.ones((N_AGENTS, N_TYPES))
    sampler.sample_uniform(data, -bound, bound)
    assert_same_bits(data.pull_data_from_device("sampled_actions_ou_state"), state)
    assert data.pull_data_from_device("sampled_actions_draws").tolist() == [2, 2]


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ([Box(-np.inf, 1.0, (1,))], "needs finite bounds"),
        ([Box(0.0, np.inf, (1,))], "needs finite bounds"),
        ([Box(0.0, 1.0, (1,)), Box(0.0, 1.0, (2,))], "one kind and shape"),
        ([Box(0.0, 1.0, ()), Discrete(2)], "one kind and shape"),
    ],
)
def test_random_policy_needs_bounded_boxes_of_one_shape(spaces, message):
    """Unbounded boxes are refused: they have no uniform distribution."""
    with pytest.raises(ConfigError, match=rf"{message}.*got \[Box"):
        policy_of("cpu", spaces, 1)

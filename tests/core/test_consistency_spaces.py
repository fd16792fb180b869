"""Spaces, policies and layouts of the consistency checker."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from tests.core.consistency_support import SPACES, Summing, report_of, summing_checker
from warpdrive_min.agreement import generate_random_actions
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete

# ------------------------------------------------------------------ spaces, policies and layouts


@pytest.mark.parametrize("space", SPACES)
def test_every_kind_of_action_is_drawn_and_written(space, monkeypatch):
    """Each kind of action reaches both sides, and varies."""
    sums = []
    step = Summing.step
    monkeypatch.setattr(Summing, "step", lambda self, actions: (step(self, actions), sums.append(self.total["y"]))[0])
    assert summing_checker(space=space).test_env_reset_and_step(seed=0) < 1e-6
    assert len(np.unique(sums)) > 4


@pytest.mark.parametrize("layout", ["dict", "first", "last"])
def test_arrays_of_each_policy_and_entry_are_compared(layout):
    """Arrays of each policy and entry agree, in both layouts."""
    assert summing_checker(layout, is_dict=layout == "dict").test_env_reset_and_step(seed=0) < 1e-6


@pytest.mark.parametrize("layout", ["first", "last"])
def test_fault_in_an_array_of_a_policy_names_the_agent(layout):
    """A fault in a policy's array names the agent and component."""
    report = report_of(summing_checker(layout, error_of_z=0.5), seed=0)
    assert report.startswith("scenario 'sums', step 1: observations_two of environment ")
    assert re.search(r"environment \d, agent 'z', component 1: want .*, error 0.5 ", report)
    assert "3 of 12 elements of observations_two differ" in report


# ------------------------------------------------------------------ random actions


def test_random_actions_lie_in_their_spaces():
    """Random actions cover their spaces, and a seed repeats them."""
    spaces = {"a": Discrete(3), "b": MultiDiscrete([2, 5]), "c": Box(-1.0, 2.0, (4,))}
    env, generator = SimpleNamespace(action_space=spaces), np.random.default_rng(0)
    draws = [generate_random_actions(env, generator) for _ in range(200)]
    assert {int(each["a"]) for each in draws} == {0, 1, 2}
    b = np.stack([each["b"] for each in draws])
    assert (b.min(0).tolist(), b.max(0).tolist(), b.dtype) == ([0, 0], [1, 4], np.int32)
    c = np.stack([each["c"] for each in draws])
    assert -1 <= c.min() < -0.9 < 1.9 < c.max() <= 2
    assert c.dtype == np.float32
    np.testing.assert_array_equal(generate_random_actions(env, 5)["c"], generate_random_actions(env, 5)["c"])


def test_random_actions_need_bounds():
    """Random actions of an unbounded box raise."""
    env = SimpleNamespace(action_space={0: Box(-np.inf, 1.0, (2,))})
    with pytest.raises(ConfigError, match=r"needs finite bounds .*\(got .*Box.*use a bounded Box"):
        generate_random_actions(env, 0)

"""Seats: which agents a policy has, and which policies may share an array of actions."""

from __future__ import annotations

import pytest
import torch

from tests.environments.clock import Clock
from warpdrive_min import CUDASampler, EnvWrapper
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Discrete
from warpdrive_min.training.seats import seats, tables

SPLIT = {"odd": [1], "even": [2, 0]}


def start(**config):
    """Return a started wrapper of three agents."""
    wrapper = EnvWrapper(Clock(num_agents=3, **config), num_envs=2)
    wrapper.reset()
    return wrapper


def test_seat_reads_and_writes_its_agents_rows():
    """Rows go out in the order of the policy's list and back to where they belong, on either axis."""
    odd, even = seats(start(), SPLIT).values()
    assert (odd.n_agents, even.n_agents, even.n_features, even.suffix) == (1, 2, 2, "")
    seen = torch.zeros(2, 2, 2)
    even.observe(seen)
    assert seen[..., 1].tolist() == [[2, 0]] * 2
    array = torch.tensor([[10.0, 11, 12], [20, 21, 22]])
    out = torch.zeros(2, 2)
    even.pick(array, out)
    assert out.tolist() == [[12, 10], [22, 20]]
    even.place(-out, array)
    odd.place(torch.tensor([[5.0], [6.0]]), array)
    assert array.tolist() == [[-10, 5, -12], [-20, 6, -22]]
    column = torch.zeros(3, 1)
    even.place(torch.tensor([[1.0], [2.0]]), column, axis=0)
    assert column.tolist() == [[2], [0], [1]]


def test_seat_of_everybody_in_order_picks_nothing():
    """It needs no index; in another order it does."""
    wrapper = start()
    assert seats(wrapper, {"shared": [0, 1, 2]})["shared"].rows is None
    assert seats(wrapper, {"shared": [0, 2, 1]})["shared"].rows.tolist() == [0, 2, 1]


def test_seat_with_arrays_of_its_own_has_all_of_their_rows():
    """In arrays of its own a policy's agents lie in the order of its list."""
    wrapper = start(policies={"even": [0, 2], "odd": [1]})
    found = seats(wrapper, {"even": [0, 2], "odd": [1]}, separate=True)
    assert [(seat.rows, seat.suffix) for seat in found.values()] == [(None, "_even"), (None, "_odd")]


def test_agents_of_a_policy_have_the_same_actions():
    """Others are refused by the policy's name; a policy each is allowed."""
    wrapper = start()
    wrapper.env.action_space = {0: Discrete(3), 1: Discrete(2), 2: Discrete(3)}
    with pytest.raises(ConfigError, match=r"policy 'shared': its agents must have the same actions .*; split it"):
        seats(wrapper, {"shared": [0, 1, 2]})
    taken = seats(wrapper, SPLIT)
    assert taken["odd"].space.categories == (2,)
    with pytest.raises(ConfigError, match="share an array must have one action space"):
        tables(wrapper, CUDASampler(wrapper.cuda_function_manager), taken)


def test_policies_at_one_array_explore_in_one_way():
    """DDPG's noise and drawn actions cannot meet in one array."""
    wrapper = start()
    sampler = CUDASampler(wrapper.cuda_function_manager)
    with pytest.raises(ConfigError, match=r"must all be DDPG or none .got DDPG for even only.; use create_separate"):
        tables(wrapper, sampler, seats(wrapper, SPLIT), frozenset({"even"}))


def test_missing_observations_are_named():
    """Without its array a policy cannot see."""
    wrapper = start(policies={"even": [0, 2], "odd": [1]})
    with pytest.raises(ConfigError, match="needs the array 'observations'; known are"):
        seats(wrapper, SPLIT)

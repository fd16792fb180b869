"""Spaces: ours, and Gymnasium's by their attributes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Dict, Discrete, MultiDiscrete, action_bounds, category_counts, space_of


def test_shapes_are_those_of_one_action():
    """A discrete action is a scalar, a multi-discrete one a vector."""
    assert Discrete(3).shape == ()
    assert MultiDiscrete([3, 4]).shape == (2,)
    assert MultiDiscrete(np.array([3, 4])) == MultiDiscrete((3, 4))


@pytest.mark.parametrize("make", [lambda: Discrete(0), lambda: MultiDiscrete([]), lambda: MultiDiscrete([3, 0])])
def test_space_without_a_choice_raises(make):
    """An action needs at least one choice of each type."""
    with pytest.raises(ConfigError, match="at least 1"):
        make()


def test_category_counts_reads_our_spaces_and_gymnasiums():
    """Spaces with ``n`` or ``nvec`` are discrete, ours or Gymnasium's."""
    assert category_counts(Discrete(3)) == (3,)
    assert category_counts(MultiDiscrete([3, 4])) == (3, 4)
    assert category_counts(SimpleNamespace(n=np.int64(5))) == (5,)
    assert category_counts(SimpleNamespace(nvec=np.array([2, 6]))) == (2, 6)


def test_category_counts_refuses_a_continuous_space():
    """A box has no categories; the error has a remedy."""
    with pytest.raises(ConfigError, match=r"Discrete or MultiDiscrete .got Box.; a Box"):
        category_counts(Box(-1, 1, (2,)))


def test_space_of_takes_shape_and_dtype_and_goes_into_mappings():
    """A space has its observation's shape and dtype, dicts included."""
    got = space_of({"near": np.zeros((2, 3), np.float32), "far": {"map": [1, 2]}})
    assert isinstance(got, Dict)
    assert got["near"] == Box(-1e20, 1e20, (2, 3), np.dtype(np.float32))
    assert got.spaces["far"]["map"].shape == (2,)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.float16])
def test_space_of_bounds_fit_the_dtype(dtype):
    """Bounds are the largest halving of 1e20 that fits the dtype."""
    box = space_of(np.zeros(2, dtype))
    largest = float((np.finfo if dtype is np.float16 else np.iinfo)(dtype).max)
    assert box.high <= largest < 2 * box.high
    assert box.low == -box.high
    assert np.log2(1e20 / box.high) % 1 == 0


@pytest.mark.parametrize(("dtype", "high"), [(np.uint8, 255), (bool, 1)])
def test_space_of_unsigned_numbers_holds_them_all(dtype, high):
    """Unsigned numbers have bounds from 0 to their largest."""
    assert space_of(np.zeros((2, 3), dtype)) == Box(0, high, (2, 3), np.dtype(dtype))


def test_action_bounds_are_those_of_every_agent_and_type():
    """Action bounds belong to each agent and type.

    Choices count from 0; a box has its own bounds, and agents may differ in them.
    """
    discrete = action_bounds([Discrete(3), Discrete(2)])
    np.testing.assert_array_equal(discrete, [[[0], [0]], [[2], [1]]])
    np.testing.assert_array_equal(action_bounds([MultiDiscrete([4, 2])]), [[[0, 0]], [[3, 1]]])
    boxes = action_bounds([Box(-1, 1, (2,)), Box(-3, 0.5, (2,))])
    np.testing.assert_array_equal(boxes, [[[-1, -1], [-3, -3]], [[1, 1], [0.5, 0.5]]])


def test_action_bounds_refuse_agents_of_different_shapes():
    """Agents with action spaces of different shapes are refused.

    One array holds the actions of all agents.
    """
    with pytest.raises(ConfigError, match="one kind and shape for all agents"):
        action_bounds([Discrete(2), MultiDiscrete([2, 2])])

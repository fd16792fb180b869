"""Action spaces of policies: supported and refused ones."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete
from warpdrive_min.training.actions import ActionSpace


@pytest.mark.parametrize(
    "spaces", [(Discrete, MultiDiscrete), (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete)]
)
def test_discrete_spaces_have_a_logit_for_each_choice(spaces):
    """A discrete space has a logit for each choice.

    5 choices have 5 outputs, types of 3 and 4 have 7, as in Gymnasium.
    """
    one, several = spaces[0](5), spaces[1]([3, 4])
    assert ActionSpace.of(one) == ActionSpace((5,), 1)
    assert ActionSpace.of(one).n_outputs == 5
    assert ActionSpace.of(several) == ActionSpace((3, 4), 2)
    assert ActionSpace.of(several).n_outputs == 7
    assert not ActionSpace.of(several).is_continuous


def test_box_is_flattened_with_bounds_of_each_type():
    """A box is flattened, with bounds for each type.

    Shape (2, 3) has six types; scalar bounds repeat, arrays stay in order.
    """
    got = ActionSpace.of(Box(-2.0, 2.0, (2, 3)))
    assert got == ActionSpace((), 6, (-2.0,) * 6, (2.0,) * 6)
    assert got.is_continuous
    assert got.n_outputs == 6
    low, high = np.array([[-1, -2], [-3, -4]], np.float32), np.array([[1, 2], [3, np.inf]], np.float32)
    got = ActionSpace.of(gymnasium.spaces.Box(low, high))
    assert got.low == (-1, -2, -3, -4)
    assert got.high == (1, 2, 3, math.inf)


def test_box_of_one_number_has_one_type():
    """An action of shape () is one number."""
    assert ActionSpace.of(Box(0.0, 1.0, ())) == ActionSpace((), 1, (0.0,), (1.0,))


def test_equal_spaces_are_one_key():
    """Agents are grouped by their space, so equal ones hash alike."""
    assert len({ActionSpace.of(Discrete(3)), ActionSpace.of(gymnasium.spaces.Discrete(3)), ActionSpace((3,), 1)}) == 1


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ActionSpace((), 0), "at least one"),
        (lambda: ActionSpace((), 1), "n_types lower and upper bounds"),
        (lambda: ActionSpace((3, 4), 1), "n_types categories"),
        (lambda: ActionSpace((3,), 1, (0.0,), (1.0,)), "n_types categories, or"),
        (lambda: ActionSpace((), 2, (0.0,), (1.0,)), "n_types lower"),
        (lambda: ActionSpace((), 1, (0.0,), (1.0, 2.0)), "n_types lower"),
        (lambda: ActionSpace((3, 0), 2), "at least one choice .got .3, 0."),
        (lambda: ActionSpace((), 1, (1.0,), (1.0,)), "low must be below high"),
        (lambda: ActionSpace((), 1, (math.nan,), (1.0,)), "low must be below high"),
        (lambda: ActionSpace.of(gymnasium.spaces.Text(3)), "must be Discrete or MultiDiscrete .got Text"),
    ],
)
def test_space_that_says_too_little_or_too_much_is_refused(make, match):
    """Spaces must have choices or bounds, one for each type."""
    with pytest.raises(ConfigError, match=match):
        make()

"""Differences and tolerances of the consistency checker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdrive_min.agreement import Tolerance, difference
from warpdrive_min.errors import ConfigError

# ------------------------------------------------------------------ difference


def test_difference_is_the_largest_and_says_where():
    """The difference is the largest error, with index and values."""
    got = difference(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.5, 2.0], [3.0, 2.0]]))
    assert (got.error, got.index, got.want, got.got) == (2.0, (1, 1), 4.0, 2.0)
    assert got.ulps == 2 / 2**-21
    assert str(got) == "at [1, 1]: want 4, got 2, error 2 (50 %, 4.19e+06 ulps)"


def test_difference_of_angles_is_taken_around_the_circle():
    """Differences of angles are taken around the circle.

    A period of 0 means none.
    """
    want, got = np.array([[0.01, 0.01]]), np.array([[6.27, 6.27]])
    found = difference(want, got, period=(2 * np.pi, 0))
    assert (found.index, found.error) == ((0, 1), pytest.approx(6.26))
    assert difference(want, got, period=2 * np.pi).error == pytest.approx(2 * np.pi - 6.26)


def test_difference_counts_nan_as_infinite():
    """A NaN on either side never agrees."""
    for want, got in ((np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan)):
        assert difference(np.array([want, 0]), np.array([got, 5.0])).error == np.inf
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).error == 0


def test_difference_of_equal_infinities_is_none():
    """Equal infinities agree; opposite ones differ by infinity."""
    inf = np.array([np.inf])
    assert difference(inf, inf).error == 0
    assert difference(inf, -inf).error == difference(inf, -inf, period=1.0).error == np.inf


# ------------------------------------------------------------------ tolerance


def agrees(want: float, got: float, tolerance: Tolerance, period: float = 0.0) -> bool:
    """Return true if two single values agree."""
    return tolerance.compare(np.array([want]), np.array([got]), period).n_wrong == 0


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6) | st.floats(-0.02, 0.02), st.floats(0.001, 50))
def test_tolerance_is_the_rule_of_warp_drive(want, error, percent):
    """Values agree exactly if they agree by WarpDrive's formula."""
    got = want + error
    distance = abs(got - want)
    rule = distance < percent / 100 or 100 * distance / abs(1e-10 + want) < percent
    assert agrees(want, got, Tolerance(percent)) is (rule or got == want)


def test_tolerance_takes_an_absolute_bound():
    """An absolute bound replaces the relative one."""
    assert agrees(0, 0.4, Tolerance(absolute=0.5))
    assert not agrees(0, 0.009, Tolerance(absolute=0.001))
    assert agrees(100, 100.9, Tolerance(absolute=0.001))


@given(st.integers(1, 254), st.integers(0, 2**22), st.integers(1, 1000), st.sampled_from([1, -1]))
def test_tolerance_counts_units_in_the_last_place(exponent, fraction, n_ulps, sign):
    """A tolerance in ulps counts floats in the reference's binade."""
    bits = (exponent << 23) + fraction
    want, got = sign * np.array([bits, bits + n_ulps], np.int32).view(np.float32)
    assert agrees(want, got, Tolerance(0, ulps=n_ulps))
    assert not agrees(want, got, Tolerance(0, ulps=n_ulps - 1))


def test_tolerance_in_units_needs_another_bound_around_zero():
    """Next to zero, a tolerance in ulps needs an absolute bound.

    A float next to 0 is a billion units away from it.
    """
    assert not agrees(0.0, 1e-9, Tolerance(0, ulps=1000))
    assert agrees(0.0, 1e-9, Tolerance(0, absolute=1e-8, ulps=1000))


def test_tolerance_goes_around_the_circle():
    """Angles on both sides of 0 agree; plain numbers do not."""
    turn = 2 * np.pi
    want, got = np.float32(1e-7), np.float32(turn - 1e-7)
    assert agrees(want, got, Tolerance(0, ulps=1), turn)
    assert agrees(want, got, Tolerance(), turn)
    assert not agrees(want, got, Tolerance())
    assert not agrees(want, np.float32(turn - 0.02), Tolerance(), turn)


def test_comparison_counts_all_and_keeps_the_five_worst():
    """A comparison counts all wrong elements, and has the five worst."""
    want, got = np.full((3, 4), 2.0), np.full((3, 4), 2.0)
    got.flat[:10] += np.arange(1, 11)
    found = Tolerance().compare(want, got)
    assert (found.n_elements, found.n_wrong, found.relative_error) == (12, 10, 5.0)
    assert [(each.index, each.error) for each in found.worst] == [
        ((2, 1), 10),
        ((2, 0), 9),
        ((1, 3), 8),
        ((1, 2), 7),
        ((1, 1), 6),
    ]
    assert Tolerance().compare(np.zeros((0, 3)), np.zeros((0, 3))).n_wrong == 0


@pytest.mark.parametrize("bound", [{"relative_pct": -1}, {"absolute": -0.1}, {"ulps": float("nan")}])
def test_tolerance_is_checked(bound):
    """A negative or NaN tolerance raises.

    It would silently let nothing pass.
    """
    (name,) = bound
    with pytest.raises(ConfigError, match=f"{name} must be 0 or more"):
        Tolerance(**bound)


@pytest.mark.parametrize(
    ("want", "got", "says"),
    [
        (np.int32([14]), np.int32([3]), "want 14, got 3, error 11 (78.6 %)"),
        (np.int32([0]), np.int32([9]), "want 0, got 9, error 9"),
        (np.float32([2]), np.float32([1]), "want 2, got 1, error 1 (50 %, 4.19e+06 ulps)"),
    ],
)
def test_errors_have_the_units_of_their_arrays(want, got, says):
    """Reports give integers no ulps, and 0 no percentage."""
    assert Tolerance(0).compare(want, got).first.values == says

"""Schedules: constant, or linear between points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdrive_min.errors import ConfigError
from warpdrive_min.training.config import ParamScheduler, is_number, is_schedule


def test_schedule_is_a_straight_line_between_its_points():
    """A schedule is linear between its points.

    2 until 100, 1 at 200, 0 from 400: 1.75 at 125, 0.25 at 350.
    """
    schedule = ParamScheduler([[100, 2.0], [200, 1], [400, 0.0]])
    got = [schedule.get_param_value(timestep) for timestep in (0, 100, 125, 200, 350, 400, 10**12)]
    assert got == [2.0, 2.0, 1.75, 1.0, 0.25, 0.0, 0.0]
    assert (schedule.type, schedule.values) == ("piecewise_linear", (2.0, 1, 0.0))


def test_number_is_a_schedule_that_does_not_change():
    """A number is a constant schedule, like a single point."""
    for constant in (0.5, np.float32(0.5), [[1_000, 0.5]]):
        assert [ParamScheduler(constant).get_param_value(timestep) for timestep in (0, 10**9)] == [0.5, 0.5]
    assert ParamScheduler(0.5).type == "constant"


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        ([[0, 1.0], [50, 0.5], [100, 0.0]], 100),
        ([[0, 1.0], [50, 0], [100, 0.0]], 50),
        ([[0, 1.0], [50, 1.0], [50, 0.0]], 50),
        ([[0, 0.0], [50, 1.0]], None),
        ([[0, 0.0]], None),
        (0.0, None),
        (0.5, None),
    ],
    ids=str,
)
def test_schedule_that_falls_to_zero_has_its_timestep(schedule, first):
    """A rate that is always 0 does not fall to it."""
    assert ParamScheduler(schedule).zero_from == first


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(-10, 10)), min_size=1).map(
        lambda points: [list(point) for point in sorted(points)]
    ),
    st.integers(0, 2 * 10**6),
)
def test_schedule_stays_between_its_values(points, timestep):
    """A schedule's values lie between its points' values.

    Outside its points they are the ends'.
    """
    schedule = ParamScheduler(points)
    got = schedule.get_param_value(timestep)
    assert min(schedule.values) - 1e-9 <= got <= max(schedule.values) + 1e-9
    assert schedule.get_param_value(2 * 10**6) == points[-1][1]
    if timestep < points[0][0]:
        assert got == points[0][1]


@pytest.mark.parametrize(
    "schedule",
    [True, None, "1", math.nan, math.inf, [], [1.0], [[1]], [[1, 2, 3]], [(1, 2)], [[2, 1], [1, 1]], [[1, "2"]], {}],
    ids=str,
)
def test_what_is_no_schedule_is_refused(schedule):
    """Infinite numbers and unordered points are refused."""
    assert not is_schedule(schedule)
    assert not is_number(schedule)
    with pytest.raises(ConfigError, match=r"schedule: must be a number, or a list of \[timestep, value\]"):
        ParamScheduler(schedule)


def test_time_is_not_negative():
    """A negative timestep is an error."""
    with pytest.raises(ConfigError, match=r"must not be negative \(got -1\)"):
        ParamScheduler(1.0).get_param_value(-1)

"""Errors name the subject and the rule, and keep these parts."""

import pickle
import re

import numpy as np
import pytest

from warpdrive_min.errors import ConfigError, DataError, require, require_int


def test_broken_rule_keeps_its_parts() -> None:
    """An error keeps type, fields and text, also after pickling."""
    with pytest.raises(ConfigError) as caught:
        require(0 >= 1, "trainer.num_envs", "must be at least 1", 0, "give 1")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.what, error.rule, error.got, error.do) == ("trainer.num_envs", "must be at least 1", 0, "give 1")
        assert str(error) == "trainer.num_envs: must be at least 1 (got 0); give 1"


def test_text_leaves_out_what_is_not_given() -> None:
    """An error's text omits missing parts, and quotes text values."""
    with pytest.raises(DataError, match=r"^x: must be there$"):
        require([], "x", "must be there", error=DataError)
    assert (
        str(ConfigError.of("x", "must be a number", "1", who="run config"))
        == "run config x: must be a number (got '1')"
    )


@pytest.mark.parametrize(
    "value",
    ["4", None, True, False, 2.0, "", [4], 0, -1, 2**31, 10**5_000, float("nan")],
    ids=lambda each: repr(type(each)),
)
def test_argument_that_is_no_count_is_named(value):
    """The error of a wrong count has name, rule and value."""
    with pytest.raises(ConfigError) as caught:
        require_int("num_envs", value)
    said = str(caught.value)
    assert re.match(r"num_envs: must be (an integer|at least 1|at most 2147483647) \(got ", said)
    assert "\n" not in said
    assert len(said) < 1_200


@pytest.mark.parametrize("value", [1, 2**31 - 1, np.int64(7), np.uint8(3)], ids=str)
def test_count_of_python_or_numpy_is_one(value):
    """Counts from Python or NumPy are returned as Python ints."""
    assert require_int("num_envs", value) == value
    assert type(require_int("num_envs", value)) is int


@pytest.mark.parametrize(
    "got",
    [10**5_000, "x" * 10_000, "a\nb", ValueError("a\n  b\nc"), [[1] * 5_000]],
    ids=lambda each: type(each).__name__,
)
def test_value_is_shown_in_one_line(got):
    """An error shows any value in one line."""
    said = str(ConfigError.of("x", "must be y", got))
    assert "\n" not in said
    assert len(said) < 1_200

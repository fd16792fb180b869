"""Errors say what broke which rule, and keep the parts of that sentence."""

import pickle

import pytest

from warpdrive_min.errors import ConfigError, DataError, require


def test_broken_rule_keeps_its_parts() -> None:
    """Type, fields and text; also on the other side of a pickle."""
    with pytest.raises(ConfigError) as caught:
        require(0 >= 1, "trainer.num_envs", "must be at least 1", 0, "give 1")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.what, error.rule, error.got, error.do) == ("trainer.num_envs", "must be at least 1", 0, "give 1")
        assert str(error) == "trainer.num_envs: must be at least 1 (got 0); give 1"


def test_text_leaves_out_what_is_not_given() -> None:
    """Neither a value nor advice; another type; text in quotes."""
    with pytest.raises(DataError, match=r"^x: must be there$"):
        require([], "x", "must be there", error=DataError)
    assert (
        str(ConfigError.of("x", "must be a number", "1", who="run config"))
        == "run config x: must be a number (got '1')"
    )

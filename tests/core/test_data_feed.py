"""The data feed: entries and their attributes."""

from __future__ import annotations

import numpy as np
import pytest

from warpdrive_min import DataFeed
from warpdrive_min.errors import DataError


def attributes(save: bool = False, log: bool = False, **more: object) -> dict[str, object]:
    """Return the attributes of an entry."""
    return {"save_copy_and_apply_at_reset": save, "log_data_across_episode": log, **more}


def test_add_data_keeps_value_flags_and_further_attributes():
    """An entry has the value, its flags and all further attributes."""
    feed, value = DataFeed(), np.arange(3)
    feed.add_data("x", value, save_copy_and_apply_at_reset=True, per_env=True, period=2.0)
    assert feed["x"]["data"] is value
    assert feed["x"]["attributes"] == attributes(save=True, per_env=True, period=2.0)


def test_add_data_replaces_a_name():
    """The last entry of a name counts, as in WarpDrive."""
    feed = DataFeed()
    feed.add_data("x", 1)
    feed.add_data("x", 2)
    assert feed == {"x": {"data": 2, "attributes": attributes()}}


def test_add_data_list_takes_tuples_and_dicts():
    """`add_data_list` accepts tuples and dicts of `add_data`'s arguments."""
    feed = DataFeed()
    feed.add_data_list(
        [("a", 1), ("b", 2, True), ("c", 3, False, True), {"name": "d", "data": 4, "log_data_across_episode": True}]
    )
    assert {name: entry["data"] for name, entry in feed.items()} == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert [entry["attributes"] for entry in feed.values()] == [
        attributes(),
        attributes(save=True),
        attributes(log=True),
        attributes(log=True),
    ]


def test_add_data_list_takes_a_flag_that_is_no_bool_as_unset():
    """A flag that is no bool is not set, as in WarpDrive."""
    feed = DataFeed()
    feed.add_data_list([("a", 1, 1, "yes")])
    assert feed["a"]["attributes"] == attributes()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (("a", 1), "must get a list .got .tuple"),
        ([("a",)], "must be .name, data"),
        ([3], "must be .name, data"),
        ([{"name": "a"}], "needs 'name' and 'data' .got .'name'"),
    ],
)
def test_add_data_list_refuses_other_items(argument, message):
    """`add_data_list` refuses other items, and the error has the value."""
    with pytest.raises(DataError, match=message):
        DataFeed().add_data_list(argument)


def test_add_pool_for_reset_names_its_target():
    """A pool names the array that it refills."""
    feed = DataFeed()
    feed.add_pool_for_reset("x_reset_pool", [[1], [2]], reset_target="x")
    assert feed["x_reset_pool"]["attributes"] == attributes(is_reset_pool=True, reset_target="x")

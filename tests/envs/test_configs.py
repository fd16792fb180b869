"""Rules of the environments' configs."""

from __future__ import annotations

from typing import Any

import pytest

from envs import ENVS
from tests.envs.builders import SINGLE
from warpdrive_min.errors import ConfigError

BROKEN: list[tuple[str, dict[str, Any], str, Any]] = [
    *((name, {"episode_length": 0}, "episode_length", 0) for name in ENVS),
    *((name, {"reset_pool_size": -2}, "reset_pool_size", -2) for name in SINGLE),
    ("cartpole", {"pole_mass": 0.0}, "pole_mass", 0.0),
    ("acrobot", {"link_moi": 0.0}, "link_moi", 0.0),
    ("pendulum", {"length": 0.0}, "length", 0.0),
    *(
        case
        for car in ("mountain_car", "continuous_mountain_car")
        for case in (
            (car, {"max_speed": -0.07}, "max_speed", -0.07),
            (car, {"max_position": -2.0}, "max_position", -2.0),
            (car, {"min_start": -0.4}, "max_start", -0.4),
            (car, {"min_start": -1.5}, "min_start", -1.5),
        )
    ),
    ("continuous_mountain_car", {"min_action": 1.5}, "max_action", 1.0),
    ("tag_gridworld", {"num_taggers": 0}, "num_taggers", 0),
    ("tag_gridworld", {"grid_length": 10.5}, "grid_length", 10.5),
    ("tag_gridworld", {"grid_length": 40_000}, "grid_length", 40_000),
    ("tag_gridworld", {"tag_penalty_for_runner": -2.0}, "tag_penalty_for_runner", -2.0),
    ("tag_gridworld", {"reset_pool_size": 1}, "reset_pool_size", 1),
    ("tag_gridworld", {"reset_pool_size": 5, "grid_length": 1}, "grid_length", 1),
    ("tag_gridworld", {"seed": -1}, "seed", -1),
    ("tag_gridworld", {"starting_location_x": [1, 2]}, "starting_location_x", 2),
    ("tag_gridworld", {"num_taggers": 1, "starting_location_y": [0, 11]}, "starting_location_y", [0, 11]),
    (
        "tag_gridworld",
        {"num_taggers": 1, "starting_location_y": [0, 1], "reset_pool_size": 2},
        "starting_location_y",
        [0, 1],
    ),
    ("tag_continuous", {"num_runners": 0}, "num_runners", 0),
    ("tag_continuous", {"num_runners": 2_000_000}, "num_runners", 2_000_000),
    ("tag_continuous", {"grid_length": -1.0}, "grid_length", -1.0),
    ("tag_continuous", {"num_turn_levels": -1}, "num_turn_levels", -1),
    ("tag_continuous", {"edge_hit_penalty": 0.5}, "edge_hit_penalty", 0.5),
    ("tag_continuous", {"tagging_distance": 1.5}, "tagging_distance", 1.5),
    ("tag_continuous", {"start": "same"}, "start", "same"),
    ("tag_continuous", {"neighbor_search": "tree"}, "neighbor_search", "tree"),
    ("tag_continuous", {"seed": 2**32}, "seed", 2**32),
    (
        "tag_continuous",
        {"num_other_agents_observed": 11, "use_full_observation": False},
        "num_other_agents_observed",
        11,
    ),
    ("tag_continuous", {"starting_directions": [0.0]}, "starting_directions", 1),
    ("tag_continuous", {"grid_length": 1e-38}, "grid_length", 1e-38),
    ("tag_continuous", {"num_runners": 1, "starting_location_x": [1.0, -0.5]}, "starting_location_x", -0.5),
    ("tag_continuous", {"num_runners": 1, "starting_location_y": [1e30, 2.0]}, "starting_location_y", 1e30),
    ("covid19_economy", {"stringency_days": 0}, "stringency_days", 0),
    ("covid19_economy", {"num_subsidy_levels": 0}, "num_subsidy_levels", 0),
    ("covid19_economy", {"daily_vaccinations_per_million": 2e6}, "daily_vaccinations_per_million", 2e6),
    ("covid19_economy", {"risk_aversion": 0.0}, "risk_aversion", 0.0),
    ("covid19_economy", {"start_spread": 1.0}, "start_spread", 1.0),
    ("rice", {"num_regions": 28}, "num_regions", 28),
    ("rice", {"num_levels": 1}, "num_levels", 1),
    ("rice", {"reset_pool_size": 1}, "reset_pool_size", 1),
    ("rice", {"capital_spread": 1.0}, "capital_spread", 1.0),
    ("rice", {"parameters": {"sigma": 1.0}}, "parameters", "sigma"),
    ("rice", {"parameters": {"years": 0.0}}, "parameters", {"years": 0.0}),
]
"""Configs that break a rule, with field and reported value."""


@pytest.mark.parametrize(("name", "config", "field", "value"), BROKEN)
def test_broken_rule_names_environment_field_and_value(name, config, field, value):
    """A broken rule raises ConfigError with environment, field and value."""
    with pytest.raises(ConfigError) as caught:
        ENVS[name](**config)
    assert (caught.value.what, caught.value.got) == (f"{name}.{field}", value)

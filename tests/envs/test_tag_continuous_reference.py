"""Tag Continuous's reference: worked examples and WarpDrive's own values."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from envs.tag_continuous import TagContinuous
from tests.envs.builders import got, put, started
from warpdrive_min import EnvWrapper

tag = functools.partial(started, "tag_continuous", auto_reset=False)

GOLDEN = {
    "num_taggers": 2,
    "num_runners": 6,
    "grid_length": 5.0,
    "episode_length": 60,
    "seed": 7,
    "start": "fixed",
    "min_acceleration": -0.3,
    "max_acceleration": 0.3,
    "min_turn": -2.356,
    "max_turn": 2.356,
    "num_acceleration_levels": 5,
    "num_turn_levels": 5,
    "skill_level_runner": 1.0,
    "skill_level_tagger": 1.2,
    "num_other_agents_observed": 3,
    "tagging_distance": 0.1,
    "tag_reward_for_tagger": 10.0,
    "tag_penalty_for_runner": -10.0,
    "step_penalty_for_tagger": -0.01,
    "step_reward_for_runner": 0.01,
    "edge_hit_penalty": -0.1,
    "end_of_game_reward_for_runner": 1.0,
}
EXITS = [-13.46, -9.63, 28.36, -11.07, -9.92, 28.76, -13.56, -9.93]
STAYS = [-12.9, -8.4, 68.1, -62.7, -48.4, 108.4, -13.0, -38.4]
EXITS_X = [5, 3.7936, 4.759, 1.34219, 3.07782, 3.2979, 5, 2.88374]
STAYS_X = [5, 3.47885, 1.99536, 1.34219, 3.38271, 5, 5, 2.87795]


@pytest.mark.parametrize(
    ("full", "exits", "steps", "sums", "returns", "x"),
    [
        (False, True, 54, (50.15160, 52.08267, 38.42802), EXITS, EXITS_X),
        (False, False, 60, (50.15160, 59.29384, 68.98507), STAYS, STAYS_X),
        (True, True, 54, (135.29254, 126.90139, 95.04971), EXITS, EXITS_X),
        (True, False, 60, (135.29254, 158.67095, 166.34494), STAYS, STAYS_X),
    ],
)
def test_episode_of_warpdrive_is_reproduced(full, exits, steps, sums, returns, x):
    """WarpDrive's start and actions give its length, observations and returns."""
    wrapper = tag(**GOLDEN, use_full_observation=full, runner_exits_game_after_tagged=exits)
    total, absolute = np.zeros(8), []
    while not got(wrapper, "_done_") and len(absolute) < 60:
        step, agent = len(absolute) + 1, np.arange(8)
        put(wrapper, sampled_actions=np.stack([(agent + step) % 6, (2 * agent + 3 * step) % 6], 1))
        wrapper.step()
        total += got(wrapper, "rewards")
        absolute.append(np.abs(got(wrapper, "observations")).sum(dtype=float))
    assert len(absolute) == steps
    np.testing.assert_allclose([absolute[0], absolute[9], absolute[-1]], sums, atol=1e-4)
    np.testing.assert_allclose(total, returns, atol=1e-4)
    np.testing.assert_allclose(got(wrapper, "loc_x"), x, atol=1e-4)


def test_seed_draws_the_start_of_warpdrive():
    """A seed gives WarpDrive's start, independent of global generators."""
    np.random.seed(1)  # noqa: NPY002
    env = TagContinuous(**GOLDEN)
    assert (list(env.taggers), list(env.runners)) == ([2, 5], [0, 1, 3, 4, 6, 7])
    data = tag(2, **GOLDEN).cuda_data_manager
    x = [2.69248, 2.5056, 0.36026, 1.34219, 2.49941, 3.39615, 4.0187, 1.90471]
    y = [0.32968, 1.44073, 4.54797, 1.06693, 2.26062, 4.65603, 0.1245, 3.00274]
    np.testing.assert_allclose(data.tensor("loc_x"), [x, x], atol=1e-5)
    np.testing.assert_allclose(data.tensor("loc_y"), [y, y], atol=1e-5)
    direction = np.array([0, 2, 0, 1, 2, 2, 0, 2]) * np.pi / 2
    np.testing.assert_allclose(data.tensor("direction"), [direction, direction], rtol=1e-6)


# ------------------------------------------------------------------ worked by hand

POINTS = {
    "grid_length": 10.0,
    "tagging_distance": 0.1,  # a reach of 1
    "tag_reward_for_tagger": 10.0,
    "tag_penalty_for_runner": -5.0,
    "step_penalty_for_tagger": -0.25,
    "step_reward_for_runner": 0.5,
    "end_of_game_reward_for_runner": 2.0,
    "edge_hit_penalty": -0.125,
    "use_full_observation": False,
}


def chase(taggers: list[tuple[float, float]], runners: list[tuple[float, float]], **config: object) -> EnvWrapper:
    """Place taggers and runners, each by ascending id, at points."""
    counts = {"num_taggers": len(taggers), "num_runners": len(runners), "num_other_agents_observed": 1}
    wrapper = tag(**{**POINTS, **counts, **config})
    points = np.zeros((len(taggers) + len(runners), 2), np.float32)
    points[list(wrapper.env.taggers)], points[list(wrapper.env.runners)] = taggers, runners
    put(wrapper, loc_x=points[:, 0], loc_y=points[:, 1])
    return wrapper


def by_role(wrapper: EnvWrapper, name: str) -> tuple[list[float], list[float]]:
    """Return values of taggers and of runners, by ascending id."""
    values = got(wrapper, name)
    return values[list(wrapper.env.taggers)].tolist(), values[list(wrapper.env.runners)].tolist()


def test_simultaneous_tags_all_pay_and_count():
    """Each simultaneous tag pays the tagger and costs a runner.

    A tagger next to three runners is paid three times, each runner once.
    """
    wrapper = chase([(5, 5), (1, 1)], [(5, 5.5), (5.5, 5), (4.5, 5), (9, 9)])
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([30 - 0.25, -0.25], [-4.5, -4.5, -4.5, 0.5])
    assert by_role(wrapper, "still_in_the_game") == ([1, 1], [0, 0, 0, 1])
    assert got(wrapper, "num_runners") == 1
    assert (got(wrapper, "terminated"), got(wrapper, "truncated"), got(wrapper, "_done_")) == (0, 0, 0)
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([-0.25, -0.25], [0, 0, 0, 0.5])


def test_last_runner_tagged_terminates():
    """The episode terminates with the last runner's tag.

    At the time limit it is no truncation.
    """
    for episode_length in (1, 5):
        wrapper = chase([(5, 5)], [(5, 5.5)], episode_length=episode_length)
        wrapper.step()
        assert (got(wrapper, "terminated"), got(wrapper, "truncated"), got(wrapper, "_done_")) == (1, 0, 1)


def test_nearest_tagger_tags_and_the_lower_id_among_equals():
    """The nearer tagger tags, or the lower id at equal distances."""
    wrapper = chase([(4.5, 5), (5.25, 5)], [(5, 5)])
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([-0.25, 9.75], [-4.5])
    wrapper = chase([(5.5, 5), (4.5, 5)], [(5, 5)])
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([9.75, -0.25], [-4.5])


def test_reach_is_strict():
    """A runner exactly at the reach of 1 is not tagged."""
    wrapper = chase([(5, 5)], [(6, 5), (5, 5.999)])
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([9.75], [0.5, -4.5])


@pytest.mark.parametrize(("exits", "tagged_reward"), [(True, -4.5), (False, -2.5)])
def test_runner_tagged_in_the_last_step_gets_no_bonus_if_it_left(exits, tagged_reward):
    """Only runners left in the game get the final bonus.

    A runner that is tagged in the last step and leaves gets none.
    """
    wrapper = chase([(5, 5)], [(5, 5.5), (9, 9)], episode_length=1, runner_exits_game_after_tagged=exits)
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([9.75], [tagged_reward, 2.5])
    assert (got(wrapper, "terminated"), got(wrapper, "truncated"), got(wrapper, "_done_")) == (0, 1, 1)
    assert got(wrapper, "num_runners") == (1 if exits else 2)


def test_agent_stops_at_the_edge_and_pays():
    """An agent stops at the edge and pays; sliding is free."""
    wrapper = chase([(1, 1)], [(9.75, 5), (5, 0.25), (10, 8)])
    runners = list(wrapper.env.runners)
    speed, direction = np.zeros(4, np.float32), np.zeros(4, np.float32)
    speed[runners] = 0.5
    direction[runners] = [0, 3 * np.pi / 2, np.pi / 2]
    put(wrapper, speed=speed, direction=direction)
    wrapper.step()
    assert by_role(wrapper, "rewards") == ([-0.25], [0.375, 0.375, 0.5])
    np.testing.assert_allclose(by_role(wrapper, "loc_x")[1], [10, 5, 10], atol=1e-6)
    np.testing.assert_allclose(by_role(wrapper, "loc_y")[1], [5, 0, 8.5], atol=1e-6)


@pytest.mark.parametrize(
    ("place", "direction", "penalty", "is_in_doubt"),
    [
        ((9.5, 5), 0, -0.125, True),
        ((9.5, 5), 0, 0.0, False),
        ((9.499, 5), 0, -0.125, False),
        ((9.75, 5), 0, -0.125, False),
        ((10, 8), np.pi / 2, -0.125, False),
    ],
    ids=["ends on the edge", "edges are free", "ends before it", "hits it", "goes along it"],
)
def test_agent_that_ends_on_the_edge_is_in_doubt(place, direction, penalty, is_in_doubt):
    """A step that ends exactly on the edge is in doubt.

    Rounding decides whether it hits the edge, and pays.
    """
    wrapper = chase([(1, 1)], [place], edge_hit_penalty=penalty)
    (runner,) = wrapper.env.runners
    speed, directions = np.zeros(2, np.float32), np.zeros(2, np.float32)
    speed[runner], directions[runner] = 0.5, direction
    put(wrapper, speed=speed, direction=directions)
    data = wrapper.cuda_data_manager
    before = {name: data.tensor(name).numpy().copy() for name in data.array_names()}
    wrapper.step()
    after = {name: data.tensor(name).numpy() for name in before}
    assert wrapper.env.rounding_decides(before, after)[0].item() is is_in_doubt


def test_direction_wraps_in_single_precision():
    """Directions wrap at a full turn in float32.

    3/4 and 1/4 turn give 0 in float32; a quarter back is 3 pi / 2.
    """
    wrapper = chase([(1, 1)], [(5, 5), (6, 6)], num_turn_levels=2)
    put(wrapper, direction=np.float32([3 * np.pi / 2, 3 * np.pi / 2, 0]), sampled_actions=[[0, 2], [0, 1], [0, 1]])
    wrapper.step()
    quarter, full = np.float32(np.pi / 2), np.float32(2 * np.pi)
    want = [0, np.float32(3 * np.pi / 2) - quarter, full - quarter]
    np.testing.assert_array_equal(got(wrapper, "direction"), want)


def test_acceleration_adds_up_and_ends_at_the_bounds():
    """Acceleration adds up, and becomes 0 at the speed limits."""
    wrapper = chase([(5, 5)], [(1, 1)], num_acceleration_levels=2, max_acceleration=0.375, min_acceleration=-0.5)
    runner = next(iter(wrapper.env.runners))
    put(wrapper, sampled_actions=[2, 0])
    wrapper.step()
    assert (got(wrapper, "speed")[runner], got(wrapper, "acceleration")[runner]) == (0.375, 0.375)
    put(wrapper, sampled_actions=[0, 0])
    wrapper.step()
    assert (got(wrapper, "speed")[runner], got(wrapper, "acceleration")[runner]) == (0.75, 0.375)
    wrapper.step()
    assert (got(wrapper, "speed")[runner], got(wrapper, "acceleration")[runner]) == (1.0, 0.0)
    put(wrapper, sampled_actions=[1, 0])
    for _ in range(2):
        wrapper.step()
    assert (got(wrapper, "speed")[runner], got(wrapper, "acceleration")[runner]) == (0.0, 0.0)


def test_skill_bounds_the_speed():
    """Top speed is the maximum times the role's skill."""
    wrapper = chase([(5, 5)], [(1, 1)], skill_level_tagger=1.5, skill_level_runner=0.5)
    put(wrapper, speed=1.5)
    wrapper.step()
    assert by_role(wrapper, "speed") == ([1.5], [0.5])


# ------------------------------------------------------------------ observations


def test_observation_shows_others_relative_to_oneself():
    """Observations show other agents' features minus the agent's own.

    They are in diagonals, top speeds and turns.
    """
    wrapper = chase([(2, 2)], [(5, 6)], episode_length=8, max_speed=2.0, use_full_observation=True)
    tagger, runner = next(iter(wrapper.env.taggers)), next(iter(wrapper.env.runners))
    speed, acceleration, direction = np.zeros(2), np.zeros(2), np.zeros(2)
    speed[runner], acceleration[runner], direction[runner] = 0.5, 0.25, np.pi / 2
    put(wrapper, speed=speed, acceleration=acceleration, direction=direction)
    wrapper.step()  # the runner is now at (5, 6.75)
    diagonal = 10 * math.sqrt(2)
    relative = np.array([3 / diagonal, 4.75 / diagonal, 0.75 / 2, 0.25 / 2, 0.25])
    np.testing.assert_allclose(got(wrapper, "observations")[tagger], [*relative, 0, 1, 1 / 8], atol=1e-6)
    np.testing.assert_allclose(got(wrapper, "observations")[runner], [*-relative, 1, 1, 1 / 8], atol=1e-6)


def test_nearest_neighbours_at_equal_distances_are_ordered_by_id():
    """Neighbours are sorted by distance, then by id.

    Six others, four equally near: the nearest first, then the lowest ids.
    """
    config = {**POINTS, "num_taggers": 1, "num_runners": 6, "num_other_agents_observed": 3, "start": "fixed"}
    direction = np.arange(7) / 8  # tells who is seen
    x, y = [5, 6, 5, 4, 5, 5.5, 9], [5, 5, 6, 5, 4, 5, 9]
    wrapper = tag(**config, starting_location_x=x, starting_location_y=y, starting_directions=direction)
    seen = got(wrapper, "observations")[0, 12:15] * 2 * np.pi * 8
    np.testing.assert_allclose(seen, [5, 1, 2], atol=1e-5)


def test_agents_on_one_point_see_the_lowest_ids():
    """All distances are 0: each agent sees the lowest other ids."""
    config = {**POINTS, "num_taggers": 1, "num_runners": 4, "num_other_agents_observed": 2, "start": "fixed"}
    direction = np.arange(5) / 8
    wrapper = tag(**config, starting_location_x=[5] * 5, starting_location_y=[5] * 5, starting_directions=direction)
    seen = np.rint(got(wrapper, "observations")[:, 8:10] * 2 * np.pi * 8 + np.arange(5)[:, None])
    np.testing.assert_array_equal(seen, [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]])


def test_who_is_out_of_the_game_sees_and_shows_nothing():
    """A tagged runner observes zeros, and nobody observes it."""
    wrapper = chase([(5, 5)], [(5, 5.5), (9, 9)], num_other_agents_observed=2)
    (tagger,), (out, other) = list(wrapper.env.taggers), list(wrapper.env.runners)
    wrapper.step()
    flags = got(wrapper, "observations")[:, 12:14]
    np.testing.assert_array_equal(flags[[tagger, out, other]], 1)  # flags of before the tag
    wrapper.step()
    observations = got(wrapper, "observations")
    np.testing.assert_array_equal(observations[out], 0)
    np.testing.assert_array_equal(observations[[tagger, other]][:, 12:14], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(observations[[tagger, other]][:, 1:14:2], 0)
    assert (observations[[tagger, other], -1] == np.float32(2 / 100)).all()


def test_who_is_out_of_the_game_still_sees_types_and_flags_of_all():
    """With full observation, a tagged runner sees types and flags."""
    wrapper = chase([(5, 5)], [(5, 5.5), (9, 9)], use_full_observation=True)
    (tagger,), (out, other) = list(wrapper.env.taggers), list(wrapper.env.runners)
    for _ in range(2):
        wrapper.step()
    others = [agent for agent in range(3) if agent != out]
    want = np.zeros(15)
    want[10:12] = [agent == tagger for agent in others]
    want[12:14] = 1
    np.testing.assert_array_equal(got(wrapper, "observations")[out], want)
    others = [agent for agent in range(3) if agent != other]
    np.testing.assert_array_equal(got(wrapper, "observations")[other][12:14], [agent != out for agent in others])


# ------------------------------------------------------------------ starts


def test_random_starts_differ_by_environment_and_episode():
    """Starts fill the square evenly, in four directions, without repeats."""
    wrapper = tag(n_envs=500, num_taggers=2, num_runners=3, grid_length=4.0)
    data = wrapper.cuda_data_manager
    starts = []
    for _ in range(2):
        wrapper.reset()
        starts.append([data.pull_data_from_device(name) for name in ("loc_x", "loc_y", "direction")])
    x, y, direction = (np.concatenate(values) for values in zip(*starts, strict=True))
    assert len(np.unique(np.stack([x, y], -1).reshape(-1, 2), axis=0)) == 5000
    for values in (x, y):
        assert 0 <= values.min() < 0.01
        assert 3.99 < values.max() < 4
        np.testing.assert_allclose(values.mean(), 2, atol=4 * 4 / np.sqrt(12 * 5000))  # four standard errors
    values, counts = np.unique(direction, return_counts=True)
    np.testing.assert_allclose(values, np.arange(4) * np.pi / 2, rtol=1e-6)
    np.testing.assert_allclose(counts / 5000, 0.25, atol=4 * np.sqrt(3 / 16 / 5000))


def test_given_starts_are_the_same_everywhere():
    """Given coordinates are the start everywhere; others stay random."""
    wrapper = tag(n_envs=3, num_taggers=1, num_runners=2, starting_location_x=[1, 2, 3])
    data = wrapper.cuda_data_manager
    np.testing.assert_array_equal(data.tensor("loc_x"), [[1, 2, 3]] * 3)
    assert len(np.unique(data.tensor("loc_y"))) == 9


# ------------------------------------------------------------------ config


def test_actions_begin_with_no_change():
    """Action 0 changes nothing; the others are evenly spaced."""
    config = TagContinuous(num_acceleration_levels=3, num_turn_levels=0).config
    np.testing.assert_array_equal(config.acceleration_actions, [0, -1, 0, 1])
    np.testing.assert_array_equal(config.turn_actions, [0])


def test_sizes_follow_from_the_config():
    """Features, bytes and operations by hand, for 2 agents."""
    env = TagContinuous(num_taggers=1, num_runners=1)
    assert env.config.n_features == 8
    assert env.bytes_per_step == 4 * (2 * (16 + 8) + 7)
    assert env.ops_per_step == 2 * (66 + 10) + 6

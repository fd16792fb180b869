"""Tag GridWorld as a game: returns of scripted players.

The page states them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench.workloads.setups.trainers import shipped
from tests.envs.builders import put, read, started

MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
SIDES = MOVES[1:]
N_TAGGERS = 4

Player = Callable[[np.ndarray, int, int, np.random.Generator], np.ndarray]
"""Function from cells, last cell, step and generator to actions."""


def toward(start: np.ndarray, target: np.ndarray) -> int:
    """Return the action along the longer axis."""
    way = target - start
    axis = int(abs(way[1]) > abs(way[0]))
    return 0 if not way.any() else 1 + 2 * axis + int(way[axis] < 0)


def chase(cells: np.ndarray, last: int, step: int, rng: np.random.Generator) -> np.ndarray:
    """Move each tagger straight to the runner."""
    return np.array([toward(cell, cells[-1]) for cell in cells[:-1]])


def surround(cells: np.ndarray, last: int, step: int, rng: np.random.Generator) -> np.ndarray:
    """Move each tagger to its side of the runner, then close in.

    Once near, taggers cover the reachable cells.
    """
    taggers, runner = cells[:-1], cells[-1]
    away = np.abs(taggers - runner).sum(1).max()
    if away > 2:
        radius = np.clip(away // 2, 1, 6)
        return np.array(
            [toward(cell, np.clip(runner + side * radius, 0, last)) for cell, side in zip(taggers, SIDES, strict=True)]
        )
    free = [cell for cell in rng.permutation(runner + MOVES) if (cell >= 0).all() and (cell <= last).all()]
    actions = np.zeros(N_TAGGERS, int)
    for tagger in rng.permutation(N_TAGGERS):
        near = [k for k, cell in enumerate(free) if np.abs(cell - taggers[tagger]).sum() <= 1]
        actions[tagger] = toward(taggers[tagger], free.pop(near[0]) if near else runner)
    return actions


def evade(cells: np.ndarray, last: int, step: int, rng: np.random.Generator) -> np.ndarray:
    """Move to a central cell that few taggers can reach."""
    there = cells[-1] + MOVES
    distance = np.abs(there[:, None] - cells[:-1]).sum(-1)
    worth = 3.0 * np.minimum(distance.min(1), 4) - 30 * (distance <= 1).sum(1) + 0.1 * distance.sum(1)
    worth += 2 * rng.random(5) - 0.3 * np.abs(there - last / 2).sum(1)
    worth[(there < 0).any(1) | (there > last).any(1)] = -np.inf
    return worth.argmax(keepdims=True)


def always(*actions: int) -> Player:
    """Return a player that repeats these actions."""
    return lambda cells, last, step, rng: np.array(actions)[step % len(actions)]


def play(config: dict[str, Any], taggers: Player, runner: Player, n_envs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return returns ``(n_envs, 2)``, of taggers and runner, and lengths."""
    wrapper, rng = started("tag_gridworld", n_envs, backend="cpu", auto_reset=False, **config), np.random.default_rng(0)
    returns, steps = np.zeros((n_envs, 2)), np.zeros(n_envs, int)
    playing = np.ones(n_envs, bool)
    for step in range(config["episode_length"]):
        cells = np.stack([read(wrapper, "loc_x"), read(wrapper, "loc_y")], axis=-1)
        actions = np.zeros((n_envs, N_TAGGERS + 1, 1), np.int32)
        for env in np.flatnonzero(playing):
            actions[env, :-1, 0] = taggers(cells[env], config["grid_length"], step, rng)
            actions[env, -1, 0] = runner(cells[env], config["grid_length"], step, rng)[0]
        put(wrapper, sampled_actions=actions)
        wrapper.step()
        rewards = read(wrapper, "rewards")
        returns[playing] += np.stack([rewards[:, :-1].sum(1), rewards[:, -1]], axis=1)[playing]
        steps += playing
        playing &= read(wrapper, "_done_") == 0
    return returns, steps


STAY, RIGHT, LEFT = (always(np.full(N_TAGGERS, action)) for action in (0, 1, 2))


@pytest.mark.parametrize(
    ("settings", "taggers", "runner", "want", "n_steps"),
    [
        pytest.param("_ppo", chase, always([1], [3]), (39.64, -4.91), 10, id="the runner comes: the earliest tag"),
        pytest.param("_ppo", chase, STAY, (39.24, -4.81), 20, id="the runner stays"),
        pytest.param("_ppo", STAY, STAY, (-4.0, 1.0), 100, id="no tag, no wall"),
        pytest.param("_ppo", RIGHT, LEFT, (-40.0, -9.0), 100, id="all at the wall"),
        pytest.param("", chase, always([1], [3]), (38.04, -4.51), 50, id="large: the earliest tag"),
        pytest.param("", chase, STAY, (36.04, -4.01), 100, id="large: in the last step at the earliest"),
    ],
)
def test_returns_of_simple_players_are_those_of_the_page(settings, taggers, runner, want, n_steps):
    """Simple players' returns are those of the page.

    By hand: taggers get 10, a step costs 0.01, a wall 0.1, a tag 5.
    """
    returns, steps = play(dict(shipped("tag_gridworld", settings).env), taggers, runner)
    np.testing.assert_allclose(returns[0], want, atol=1e-4)
    assert steps[0] == n_steps


def test_taggers_catch_a_runner_that_evades_only_together():
    """Taggers catch an evading runner only together.

    Straight chases never catch it; four sides do in nine of ten episodes.
    """
    config = dict(shipped("tag_gridworld", "_ppo").env)
    alone, _ = play(config, chase, evade, n_envs=8)
    np.testing.assert_allclose(alone, np.tile([-4.0, 1.0], (8, 1)), atol=1e-4)
    together, steps = play(config, surround, evade, n_envs=40)
    is_tagged = together[:, 1] < 0
    assert is_tagged.mean() >= 0.9
    assert steps[is_tagged].mean() < 50
    # Without walls one return follows from the other: 40 - 0.04 k and -5 + 0.01 k.
    np.testing.assert_allclose(together[is_tagged, 0], 20 - 4 * together[is_tagged, 1], atol=1e-3)

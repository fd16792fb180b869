"""Tag Continuous in vectorised NumPy; arrays are ``(n_envs, n_agents)``.

The nearest others are searched among all agents, in parts whose distances fit the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from warpdrive_min.envs import TagContinuous as Environment
from warpdrive_min.errors import require

from .batch import Array, Batch, Flags, Floats, Indices

PAIRS_AT_ONCE: Final = 2**17
"""Agent pairs whose distances are in memory at a time."""
AGENTS_PER_ROUND: Final = 25
"""Ratio of all to observed agents above which minima beat a partition."""
NOBODY: Final = 0xFFFF
"""Id of no agent."""
INFINITE: Final = int(np.float32(np.inf).view(np.uint32))
"""Bits of an infinite distance."""


class TagContinuous(Batch):
    """Tag Continuous.

    Raises:
        ConfigError: All others are observed, or starts are given.
    """

    def __init__(self, config: Any, n_envs: int, seed: int) -> None:
        super().__init__(config, n_envs, seed)
        is_random = config.start == "random" and not (
            config.starting_location_x or config.starting_location_y or config.starting_directions
        )
        require(is_random, "plain TagContinuous", "draws all starts", config.start)
        full = config.use_full_observation
        require(not full, "plain TagContinuous", "observes the nearest others", f"use_full_observation={full}")
        shape = n_envs, config.n_agents
        self.is_tagger: Flags = Environment(**config.model_dump()).agent_types == 1
        self.taggers, self.runners = np.flatnonzero(self.is_tagger), np.flatnonzero(~self.is_tagger)
        by_role = np.where(self.is_tagger, config.skill_level_tagger, config.skill_level_runner)
        self.top_speed = (config.max_speed * by_role).astype(np.float32)
        self.step_rewards = np.where(
            self.is_tagger, config.step_penalty_for_tagger, config.step_reward_for_runner
        ).astype(np.float32)
        self.n_choices = np.array([len(config.acceleration_actions), len(config.turn_actions)], np.float32)
        self.x, self.y, self.speed, self.acceleration, self.direction = np.zeros((5, *shape), np.float32)
        self.in_game = np.ones(shape, bool)
        self.rewards = np.zeros(shape, np.float32)
        self.show(np.zeros((*shape, config.n_features), np.float32))
        self.restart(np.arange(n_envs))

    def draw(self) -> Array:
        """Draw acceleration and turn of every agent, ``(n_envs, n_agents, 2)``."""
        drawn = self.generator.random((*self.rewards.shape, 2), np.float32)
        return (drawn * self.n_choices).astype(np.intp)

    def as_sampled(self, actions: Array) -> Array:
        """Return the actions unchanged."""
        return actions

    def arrays(self) -> Mapping[str, Array]:
        """Return views, and the counted number of runners."""
        return {
            "loc_x": self.x,
            "loc_y": self.y,
            "speed": self.speed,
            "direction": self.direction,
            "acceleration": self.acceleration,
            "still_in_the_game": self.in_game,
            "num_runners": self.in_game[:, self.runners].sum(1),
            "_timestep_": self.timestep,
            "observations": self.observations,
            "final_observations": self.final_observations,
            "rewards": self.rewards,
        }

    def keep_last(self, envs: Indices) -> None:
        """Copy rows of observations."""
        self.final_observations[envs] = self.observations[envs]

    def restart(self, envs: Indices) -> None:
        """Draw positions and directions, and write their observations."""
        c = self.config
        x, y, quarter = self.generator.random((3, envs.size, c.n_agents), np.float32)
        self.x[envs], self.y[envs] = x * c.grid_length, y * c.grid_length
        self.direction[envs] = np.floor(4 * quarter) * (math.pi / 2)
        self.speed[envs] = self.acceleration[envs] = 0
        self.in_game[envs] = True
        for part in parts(envs.size, c.n_agents**2):
            self.observations[envs[part]] = self.seen(envs[part])

    def advance(self, actions: Array) -> None:
        """Move all agents, observe, tag, and assign rewards."""
        c, in_game = self.config, self.in_game
        hits_edge = self.move(actions)
        for part in parts(self.n_envs, c.n_agents**2):
            self.observations[part] = self.seen(part)
        np.multiply(hits_edge, c.edge_hit_penalty, out=self.rewards, dtype=np.float32)
        self.rewards += self.step_rewards
        was_in_game = in_game.copy()
        for part in parts(self.n_envs, self.taggers.size * self.runners.size):
            env, runner, tagger = self.tags(part)
            self.rewards[part][env, runner] += c.tag_penalty_for_runner
            np.add.at(self.rewards[part], (env, tagger), np.float32(c.tag_reward_for_tagger))
            if c.runner_exits_game_after_tagged:
                in_game[part][env, runner] = False
        runs = in_game & ~self.is_tagger
        late = np.flatnonzero(self.timestep >= c.episode_length)
        self.rewards[late] += np.where(runs[late], np.float32(c.end_of_game_reward_for_runner), np.float32(0))
        self.rewards *= was_in_game
        np.logical_not(runs.any(1), out=self.terminated)

    def move(self, actions: Array) -> Flags:
        """Move agents in the game in place; return those at the edge."""
        c, in_game, direction, speed = self.config, self.in_game, self.direction, self.speed
        direction += c.turn_actions.take(actions[..., 1])
        direction -= np.floor(direction * (1 / math.tau)) * math.tau
        direction *= in_game
        self.acceleration += c.acceleration_actions.take(actions[..., 0])
        speed += self.acceleration
        np.clip(speed, 0, self.top_speed, out=speed)
        speed *= in_game
        self.acceleration *= (speed > 0) & (speed < self.top_speed)
        hits_edge = np.zeros_like(in_game)
        for place, share in ((self.x, np.cos(direction)), (self.y, np.sin(direction))):
            share *= speed
            share += place
            np.clip(share, 0, c.grid_length, out=place)
            hits_edge |= place != share
        return hits_edge

    def tags(self, envs: slice) -> tuple[Indices, Indices, Indices]:
        """Return environment, runner and tagger of each tag."""
        x, y = self.x[envs], self.y[envs]
        distance = squared(x[:, self.taggers, None], x[:, None, self.runners])
        distance += squared(y[:, self.taggers, None], y[:, None, self.runners])
        reach = np.float32(self.config.reach)
        env, runner = np.nonzero((distance.min(1) < reach * reach) & self.in_game[envs, self.runners])
        return env, self.runners[runner], self.taggers[distance[env, :, runner].argmin(1)]

    def seen(self, envs: slice | Indices) -> Floats:
        """Return observations of some environments, ``(n, n_agents, n_features)``."""
        c, in_game, n_observed = self.config, self.in_game[envs], self.config.n_observed
        x, y = self.x[envs], self.y[envs]
        others = nearest(x, y, in_game, n_observed)
        is_agent = others != NOBODY
        at = np.where(is_agent, others, 0) + c.n_agents * np.arange(len(x))[:, None, None]
        seen = np.empty((*x.shape, c.n_features), np.float32)
        features = [seen[..., first : first + n_observed] for first in range(0, 7 * n_observed, n_observed)]
        per_length, per_speed = 1 / (c.grid_length * math.sqrt(2)), 1 / (c.max_speed + 1e-10)
        relative = (
            (x, per_length),
            (y, per_length),
            (self.speed[envs], per_speed),
            (self.acceleration[envs], per_speed),
            (self.direction[envs], 1 / math.tau),
        )
        for feature, (values, scale) in zip(features, relative, strict=False):
            scaled = values * np.float32(scale)
            np.subtract(scaled.take(at), scaled[:, :, None], out=feature)
            feature *= is_agent
        np.logical_and(is_agent, self.is_tagger.take(others, mode="clip"), out=features[5], dtype=bool)
        features[6][:] = is_agent
        np.multiply(in_game, (self.timestep[envs] / np.float32(c.episode_length))[:, None], out=seen[..., -1])
        return seen


def squared(one: Floats, other: Floats) -> Floats:
    """Return the squares of the differences."""
    away: Floats = one - other
    away *= away
    return away


def nearest(x: Floats, y: Floats, in_game: Flags, n: int) -> Array:
    """Return the nearest others' ids, ``(n_envs, n_agents, n)``, or `NOBODY`."""
    n_envs, n_agents = x.shape
    ids = np.empty((n_envs, n_agents, n), np.intp)
    agent = np.arange(n_agents)
    for selves in parts(n_agents, n_agents * n_envs):
        distance = squared(x[:, None], x[:, selves, None])
        distance += squared(y[:, None], y[:, selves, None])
        distance[:, agent[selves] - selves.start, agent[selves]] = np.inf
        if not in_game.all():
            np.copyto(distance, np.inf, where=~in_game[:, None])
        smallest = by_minima if n_agents >= AGENTS_PER_ROUND * n else by_partition
        ids[:, selves] = smallest(distance, n)
    ids[~in_game] = NOBODY
    return ids


def by_minima(distance: Floats, n: int) -> Array:
    """Return the indices of the n smallest values, by n minima."""
    rows = distance.reshape(-1, distance.shape[-1])
    row, places = np.arange(len(rows)), np.empty((len(rows), n), np.intp)
    for rank in range(n):
        place = rows.argmin(1)
        places[:, rank] = np.where(np.isinf(rows[row, place]), NOBODY, place)
        rows[row, place] = np.inf
    return places.reshape(*distance.shape[:-1], n)


def by_partition(distance: Floats, n: int) -> Array:
    """Return the same indices by partitioning integers: distance bits, then index."""
    keys = np.left_shift(distance.view(np.uint32), np.uint64(16), dtype=np.uint64)
    keys |= np.arange(distance.shape[-1], dtype=np.uint64)
    keys.partition(n - 1, axis=-1)
    smallest = np.sort(keys[..., :n], axis=-1).view(np.intp)
    return np.where(smallest >> 16 < INFINITE, smallest & NOBODY, NOBODY)


def parts(n: int, n_others: int) -> Iterator[slice]:
    """Divide ``n`` into parts whose pairs with ``n_others`` fit the cache."""
    at_once = max(1, PAIRS_AT_ONCE // n_others)
    return (slice(first, first + at_once) for first in range(0, n, at_once))

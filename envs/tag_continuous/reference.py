"""Tag Continuous in NumPy, over all environments at once: the oracle, and backend `cpu`.

Phases: `move`, `tag`, `score`, `observe`, `start`. Arrays are ``(n_envs, n_agents)`` unless said otherwise; floats are
float32 throughout, in the same order of operations as in the other two languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.maths_numpy import maths, wrap
from warpdrive_min.rng import STREAM_START, below, philox, uniform

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]

NOBODY: Final = 0xFFFF
"""Stands for an agent's id where there is no agent."""
PAIRS_AT_ONCE: Final = 2**17
"""Pairs of agents whose distances are in memory at a time: 1 MB of keys stays in the second-level cache."""
ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants ``c``."""

    def step(
        loc_x: Floats,
        loc_y: Floats,
        speed: Floats,
        direction: Floats,
        acceleration: Floats,
        edge_hit_reward_penalty: Floats,
        still_in_the_game: Ints,
        num_runners: Ints,
        agent_types: Ints,
        tagger_ids: Ints,
        skill_levels: Floats,
        step_rewards: Floats,
        acceleration_actions: Floats,
        turn_actions: Floats,
        start_x: Floats,
        start_y: Floats,
        start_direction: Floats,
        sampled_actions: Ints,
        rewards: Floats,
        observations: Floats,
        final_observations: Floats,
        terminated: Ints,
        truncated: Ints,
        _done_: Ints,
        _timestep_: Ints,
        _episode_: Ints,
        _reset_seed_: Ints,
        n_envs: int,
    ) -> None:
        in_game = still_in_the_game != 0
        crowd = (loc_x, loc_y, speed, direction, acceleration)
        _timestep_ += 1
        out_of_time = _timestep_ >= c.EPISODE_LENGTH

        push = acceleration_actions[sampled_actions[..., 0]]
        turn = turn_actions[sampled_actions[..., 1]]
        edge_hit_reward_penalty[:] = move(c, *crowd, in_game, push, turn, c.MAX_SPEED * skill_levels)
        tagged_by = tag(c, loc_x, loc_y, in_game & (agent_types == 0), tagger_ids)
        stays = in_game & (tagged_by == NOBODY) if c.RUNNER_EXITS else in_game
        survives = stays & (agent_types == 0) & out_of_time[:, None]
        rewards[:] = score(c, edge_hit_reward_penalty + step_rewards, in_game, tagged_by, tagger_ids, survives)
        num_runners -= (in_game & ~stays).sum(1, dtype=np.int32)
        still_in_the_game[:] = stays

        nobody_left = num_runners == 0
        terminated[:] = nobody_left
        truncated[:] = out_of_time & ~nobody_left
        _done_[:] = nobody_left | out_of_time
        observations[:] = observe(c, *crowd, in_game, agent_types, _timestep_)
        if c.AUTO_RESET and _done_.any():
            ended = np.flatnonzero(_done_)
            final_observations[ended] = observations[ended]
            restart(
                ended, *crowd, edge_hit_reward_penalty, still_in_the_game, num_runners, agent_types,
                start_x, start_y, start_direction, observations, _timestep_, _episode_, _reset_seed_,
            )  # fmt: skip

    def reset(
        loc_x: Floats,
        loc_y: Floats,
        speed: Floats,
        direction: Floats,
        acceleration: Floats,
        edge_hit_reward_penalty: Floats,
        still_in_the_game: Ints,
        num_runners: Ints,
        agent_types: Ints,
        start_x: Floats,
        start_y: Floats,
        start_direction: Floats,
        observations: Floats,
        _done_: Ints,
        _timestep_: Ints,
        _episode_: Ints,
        _reset_seed_: Ints,
        force: int,
        n_envs: int,
    ) -> None:
        ended = np.flatnonzero((_done_ != 0) | (force != 0))
        _done_[ended] = 0
        restart(
            ended, loc_x, loc_y, speed, direction, acceleration, edge_hit_reward_penalty, still_in_the_game,
            num_runners, agent_types, start_x, start_y, start_direction, observations,
            _timestep_, _episode_, _reset_seed_,
        )  # fmt: skip

    def restart(
        envs: NDArray[np.intp],
        loc_x: Floats,
        loc_y: Floats,
        speed: Floats,
        direction: Floats,
        acceleration: Floats,
        edge_hit_reward_penalty: Floats,
        still_in_the_game: Ints,
        num_runners: Ints,
        agent_types: Ints,
        start_x: Floats,
        start_y: Floats,
        start_direction: Floats,
        observations: Floats,
        _timestep_: Ints,
        _episode_: Ints,
        _reset_seed_: Ints,
    ) -> None:
        drawn = start(c, envs, _episode_[envs], _reset_seed_, start_x, start_y, start_direction)
        loc_x[envs], loc_y[envs], direction[envs] = drawn
        for stopped in (speed, acceleration, edge_hit_reward_penalty):
            stopped[envs] = 0
        still_in_the_game[envs] = 1
        num_runners[envs] = c.N_AGENTS - c.N_TAGGERS
        _timestep_[envs] = 0
        _episode_[envs] += 1
        x, y, moves, heading, pushes = (part[envs] for part in (loc_x, loc_y, speed, direction, acceleration))
        in_game = still_in_the_game[envs] != 0
        observations[envs] = observe(c, x, y, moves, heading, pushes, in_game, agent_types, _timestep_[envs])

    return {"step": step, "reset": reset}


def move(
    c: Any,
    x: Floats,
    y: Floats,
    speed: Floats,
    direction: Floats,
    acceleration: Floats,
    in_game: Flags,
    push: Floats,
    turn: Floats,
    top_speed: Floats,
) -> Floats:
    """Turn, accelerate and move the agents in the game, in place; who has left it stands still.

    Returns: The penalty of those who ran into the edge.
    """
    sin, cos = maths(c.EXACT)
    pushed = acceleration + push
    direction[:] = np.where(in_game, wrap(direction + turn, c.TWO_PI), ZERO)
    speed[:] = np.where(in_game, np.clip(speed + pushed, ZERO, top_speed), ZERO)
    acceleration[:] = np.where((speed <= 0) | (speed >= top_speed), ZERO, pushed)
    new_x = x + speed * cos(direction)
    new_y = y + speed * sin(direction)
    np.clip(new_x, ZERO, c.GRID_LENGTH, out=x)
    np.clip(new_y, ZERO, c.GRID_LENGTH, out=y)
    return np.where((x != new_x) | (y != new_y), c.EDGE_HIT_PENALTY, ZERO)


def tag(c: Any, x: Floats, y: Floats, can_be_tagged: Flags, tagger_ids: Ints) -> Ints:
    """Return who tags each agent: the nearest tagger in reach, the lowest id among equals, else `NOBODY`."""
    tagged_by = np.full(x.shape, NOBODY)
    for part in parts(c.N_AGENTS, len(tagger_ids) * len(x)):
        dx = x[:, tagger_ids, None] - x[:, None, part]
        dy = y[:, tagger_ids, None] - y[:, None, part]
        distance = dx * dx + dy * dy  # squared, (n_envs, n_taggers, agents of the part)
        is_tagged = can_be_tagged[:, part] & (distance.min(1) < c.REACH_SQUARED)
        tagged_by[:, part][is_tagged] = tagger_ids[distance.argmin(1)][is_tagged]
    return tagged_by


def parts(n: int, n_others: int) -> Iterator[slice]:
    """Divide ``n`` so that the pairs of a part with ``n_others`` fit the cache."""
    at_once = max(1, PAIRS_AT_ONCE // n_others)
    return (slice(first, first + at_once) for first in range(0, n, at_once))


def score(c: Any, moved: Floats, in_game: Flags, tagged_by: Ints, tagger_ids: Ints, survives: Flags) -> Floats:
    """Return the rewards: those of the move, of tags (every one pays and counts) and of surviving the episode."""
    n_catches = np.zeros_like(moved)
    env, runner = np.nonzero(tagged_by != NOBODY)
    np.add.at(n_catches, (env, tagged_by[env, runner]), ONE)
    tagged = moved + np.where(tagged_by != NOBODY, c.TAG_PENALTY, ZERO)
    caught = tagged + c.TAG_REWARD * n_catches
    return np.where(in_game, caught + np.where(survives, c.END_OF_GAME_REWARD, ZERO), ZERO)


def observe(
    c: Any,
    x: Floats,
    y: Floats,
    speed: Floats,
    direction: Floats,
    acceleration: Floats,
    in_game: Flags,
    agent_types: Ints,
    timestep: Ints,
) -> Floats:
    """Return what every agent sees, ``(n_envs, n_agents, n_features)``: the others by feature, then time."""
    if c.USE_FULL_OBSERVATION:
        rank, self = np.arange(c.N_OBSERVED), np.arange(c.N_AGENTS)[:, None]
        others = np.broadcast_to(rank + (rank >= self), (len(x), c.N_AGENTS, c.N_OBSERVED))
    else:
        others = nearest(c, x, y, in_game)
    is_agent = others != NOBODY
    sees = is_agent & in_game[:, :, None]
    at = np.where(is_agent, others, 0) + c.N_AGENTS * np.arange(len(x))[:, None, None]

    seen = np.empty((*x.shape, c.N_FEATURES), np.float32)
    blocks = [seen[..., i * c.N_OBSERVED : (i + 1) * c.N_OBSERVED] for i in range(7)]
    relative = (
        (x, c.INV_DIAGONAL),
        (y, c.INV_DIAGONAL),
        (speed, c.INV_MAX_SPEED),
        (acceleration, c.INV_MAX_SPEED),
        (direction, c.INV_TWO_PI),
    )
    for block, (values, scale) in zip(blocks, relative, strict=False):
        block[:] = np.where(sees, (values.take(at) - values[:, :, None]) * scale, ZERO)
    blocks[5][:] = is_agent & np.broadcast_to(agent_types == 1, x.shape).take(at)
    blocks[6][:] = is_agent & in_game.take(at)
    seen[..., -1] = np.where(in_game, (timestep.astype(np.float32) / np.float32(c.EPISODE_LENGTH))[:, None], ZERO)
    return seen


def nearest(c: Any, x: Floats, y: Floats, in_game: Flags) -> NDArray[np.int64]:
    """Return the ids of the nearest others in the game, ``(n_envs, n_agents, n_observed)``, padded with `NOBODY`.

    Squared distance and id go into one integer key: a float that is not negative sorts like its bits, so the keys are
    distinct and any selection of the smallest is the stable one.
    """
    ids = np.empty((*x.shape, c.N_OBSERVED), np.int64)
    agent = np.arange(c.N_AGENTS, dtype=np.uint64)
    for envs in parts(len(x), c.N_AGENTS**2):
        for selves in parts(c.N_AGENTS, c.N_AGENTS):
            dx = x[envs, None, :] - x[envs, selves, None]
            dy = y[envs, None, :] - y[envs, selves, None]
            keys = (dx * dx + dy * dy).view(np.uint32).astype(np.uint64)
            keys <<= np.uint64(16)
            keys |= agent
            itself = agent == agent[selves, None]
            keys[itself | ~in_game[envs, None, :] | ~in_game[envs, selves, None]] = NOBODY | 0xFFFFFFFF << 16
            keys.partition(c.N_OBSERVED - 1, axis=2)
            ids[envs, selves] = np.sort(keys[..., : c.N_OBSERVED], axis=2) & np.uint64(0xFFFF)
    return ids


def start(
    c: Any, envs: NDArray[np.intp], episode: Ints, reset_seed: Ints, x: Floats, y: Floats, direction: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the positions and directions, drawn or given, with which an episode of the environments starts."""
    agent = np.arange(c.N_AGENTS)
    word_x, word_y, word_direction, _ = philox(episode[:, None], envs[:, None], agent, STREAM_START, *reset_seed)
    quarters = below(word_direction, 4).astype(np.float32)
    return (
        c.GRID_LENGTH * uniform(word_x) if c.RANDOM_X else x,
        c.GRID_LENGTH * uniform(word_y) if c.RANDOM_Y else y,
        quarters * c.HALF_PI if c.RANDOM_DIRECTION else direction,
    )

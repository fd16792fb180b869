"""Tag Continuous in NumPy, batched: the reference, and backend `cpu`.

Phases: `move`, `tag`, `score`, `observe`, `start`. Arrays are ``(n_envs, n_agents)`` unless stated. Floats are float32
throughout, in the same order of operations as in the other two languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.arrays import Clock, Results, rows
from warpdrive_min.kernels.maths_numpy import maths, wrap
from warpdrive_min.rng import STREAM_START, below, philox, uniform

from .arrays import Actions, Agents, Roles, Starts
from .crowds import CROWD, Crowd

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]

NOBODY: Final = 0x7FFFFFFF
"""Id of no agent."""
ID_BITS: Final = np.uint64(32)
"""Bits of the id in the lower part of a key; the squared distance is above."""
FARTHEST: Final = np.uint64(0xFFFFFFFF << 32 | NOBODY)
"""Key larger than those of all agents."""
PAIRS_AT_ONCE: Final = 2**17
"""Number of pairs in memory at a time: 1 MB of keys fits the L2 cache."""
ZERO: Final = np.float32(0)
ONE: Final = np.float32(1)


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants ``c``."""

    def step(agents: Agents, roles: Roles, actions: Actions, starts: Starts, clock: Clock, results: Results) -> None:
        in_game, is_runner = agents.still_in_the_game != 0, roles.agent_types == 0
        clock.timestep[:] += 1
        out_of_time = clock.timestep >= c.EPISODE_LENGTH

        move(c, agents, roles, actions)
        tagged_by = tag(c, agents, in_game & is_runner, roles.tagger_ids)
        stays = in_game & (tagged_by == NOBODY) if c.RUNNER_EXITS else in_game
        survives = stays & is_runner & out_of_time[:, None]
        of_the_move = agents.edge_hit_reward_penalty + roles.step_rewards
        results.rewards[:] = score(c, of_the_move, in_game, tagged_by, survives)
        results.observations[:] = observe(c, agents, roles.agent_types, clock.timestep)
        agents.num_runners[:] -= (in_game & ~stays).sum(1, dtype=np.int32)
        agents.still_in_the_game[:] = stays

        nobody_left = agents.num_runners == 0
        results.terminated[:] = nobody_left
        results.truncated[:] = out_of_time & ~nobody_left
        clock.done[:] = nobody_left | out_of_time
        if c.AUTO_RESET and clock.done.any():
            ended = np.flatnonzero(clock.done)
            results.final_observations[ended] = results.observations[ended]
            restart(ended, agents, roles, starts, clock, results)

    def reset(agents: Agents, roles: Roles, starts: Starts, clock: Clock, results: Results, force: int) -> None:
        ended = np.flatnonzero((clock.done != 0) | (force != 0))
        clock.done[ended] = 0
        restart(ended, agents, roles, starts, clock, results)

    def restart(
        envs: NDArray[np.intp], agents: Agents, roles: Roles, starts: Starts, clock: Clock, results: Results
    ) -> None:
        agents.loc_x[envs], agents.loc_y[envs], agents.direction[envs] = start(c, envs, starts, clock)
        for stopped in (agents.speed, agents.acceleration, agents.edge_hit_reward_penalty):
            stopped[envs] = 0
        agents.still_in_the_game[envs] = 1
        agents.num_runners[envs] = c.N_AGENTS - c.N_TAGGERS
        clock.timestep[envs] = 0
        clock.episode[envs] += 1
        results.observations[envs] = observe(c, rows(agents, envs), roles.agent_types, clock.timestep[envs])

    return {"step": step, "reset": reset}


def move(c: Any, agents: Agents, roles: Roles, actions: Actions) -> None:
    """Turn, accelerate and move the agents in the game, in place."""
    sin, cos = maths(c.EXACT)
    in_game, top_speed = agents.still_in_the_game != 0, c.MAX_SPEED * roles.skill_levels
    push = agents.acceleration + actions.acceleration_actions[actions.sampled_actions[..., 0]]
    turned = wrap(agents.direction + actions.turn_actions[actions.sampled_actions[..., 1]], c.TWO_PI)
    agents.direction[:] = np.where(in_game, turned, ZERO)
    agents.speed[:] = np.where(in_game, np.clip(agents.speed + push, ZERO, top_speed), ZERO)
    agents.acceleration[:] = np.where((agents.speed <= 0) | (agents.speed >= top_speed), ZERO, push)
    new_x = agents.loc_x + agents.speed * cos(agents.direction)
    new_y = agents.loc_y + agents.speed * sin(agents.direction)
    np.clip(new_x, ZERO, c.GRID_LENGTH, out=agents.loc_x)
    np.clip(new_y, ZERO, c.GRID_LENGTH, out=agents.loc_y)
    hits_edge = (agents.loc_x != new_x) | (agents.loc_y != new_y)
    agents.edge_hit_reward_penalty[:] = np.where(hits_edge, c.EDGE_HIT_PENALTY, ZERO)


def tag(c: Any, agents: Agents, can_be_tagged: Flags, tagger_ids: Ints) -> Ints:
    """Return each agent's tagger, or `NOBODY`.

    That is the nearest in reach, the lowest id among equals.
    """
    x, y = agents.loc_x, agents.loc_y
    tagged_by = np.full(x.shape, NOBODY)
    if c.N_AGENTS > CROWD:
        is_tagger = np.isin(np.arange(c.N_AGENTS), tagger_ids)
        keys = np.array([Crowd(*env, is_tagger).nearest(1, key_of, FARTHEST)[:, 0] for env in zip(x, y, strict=True)])
        is_tagged = can_be_tagged & ((keys >> ID_BITS).astype(np.uint32).view(np.float32) < c.REACH_SQUARED)
        return np.where(is_tagged, ids_of(keys), NOBODY)
    for part in parts(c.N_AGENTS, len(tagger_ids) * len(x)):
        dx = x[:, tagger_ids, None] - x[:, None, part]
        dy = y[:, tagger_ids, None] - y[:, None, part]
        distance = dx * dx + dy * dy  # squared, (n_envs, n_taggers, agents of the part)
        is_tagged = can_be_tagged[:, part] & (distance.min(1) < c.REACH_SQUARED)
        tagged_by[:, part][is_tagged] = tagger_ids[distance.argmin(1)][is_tagged]
    return tagged_by


def parts(n: int, n_others: int) -> Iterator[slice]:
    """Split ``n`` so that a part's pairs with ``n_others`` fit the cache."""
    at_once = max(1, PAIRS_AT_ONCE // n_others)
    return (slice(first, first + at_once) for first in range(0, n, at_once))


def score(c: Any, of_the_move: Floats, in_game: Flags, tagged_by: Ints, survives: Flags) -> Floats:
    """Return the rewards of moves, tags and survival; every tag counts."""
    n_catches = np.zeros_like(of_the_move)
    env, runner = np.nonzero(tagged_by != NOBODY)
    np.add.at(n_catches, (env, tagged_by[env, runner]), ONE)
    tagged = of_the_move + np.where(tagged_by != NOBODY, c.TAG_PENALTY, ZERO)
    caught = tagged + c.TAG_REWARD * n_catches
    return np.where(in_game, caught + np.where(survives, c.END_OF_GAME_REWARD, ZERO), ZERO)


def observe(c: Any, agents: Agents, agent_types: Ints, timestep: Ints) -> Floats:
    """Return the observations, ``(n_envs, n_agents, n_features)``: others, then time."""
    x, y, in_game = agents.loc_x, agents.loc_y, agents.still_in_the_game != 0
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
        (agents.speed, c.INV_MAX_SPEED),
        (agents.acceleration, c.INV_MAX_SPEED),
        (agents.direction, c.INV_TWO_PI),
    )
    for block, (values, scale) in zip(blocks, relative, strict=False):
        block[:] = np.where(sees, (values.take(at) - values[:, :, None]) * scale, ZERO)
    blocks[5][:] = is_agent & np.broadcast_to(agent_types == 1, x.shape).take(at)
    blocks[6][:] = is_agent & in_game.take(at)
    seen[..., -1] = np.where(in_game, (timestep.astype(np.float32) / np.float32(c.EPISODE_LENGTH))[:, None], ZERO)
    return seen


def nearest(c: Any, x: Floats, y: Floats, in_game: Flags) -> NDArray[np.int64]:
    """Return ids of the nearest agents in the game, padded with `NOBODY`.

    Shape ``(n_envs, n_agents, n_observed)``. In a crowd only nearby cells are searched. Squared distance and id form
    one integer key: a non-negative float sorts like its bits. So keys are distinct, and any selection of the smallest
    is stable.
    """
    ids = np.empty((*x.shape, c.N_OBSERVED), np.int64)
    if c.N_AGENTS > CROWD:
        for env, (env_x, env_y, plays) in enumerate(zip(x, y, in_game, strict=True)):
            found = Crowd(env_x, env_y, plays).nearest(c.N_OBSERVED, key_of, FARTHEST)
            ids[env] = np.where(plays[:, None], ids_of(found), NOBODY)
        return ids
    agent = np.arange(c.N_AGENTS, dtype=np.uint64)
    for envs in parts(len(x), c.N_AGENTS**2):
        for selves in parts(c.N_AGENTS, c.N_AGENTS):
            dx = x[envs, None, :] - x[envs, selves, None]
            dy = y[envs, None, :] - y[envs, selves, None]
            keys = key_of(dx, dy, agent)
            itself = agent == agent[selves, None]
            keys[itself | ~in_game[envs, None, :] | ~in_game[envs, selves, None]] = FARTHEST
            keys.partition(c.N_OBSERVED - 1, axis=2)
            ids[envs, selves] = ids_of(np.sort(keys[..., : c.N_OBSERVED], axis=2))
    return ids


def key_of(dx: Floats, dy: Floats, ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Combine squared distance and id in one integer."""
    keys = (dx * dx + dy * dy).view(np.uint32).astype(np.uint64)
    keys <<= ID_BITS
    keys |= ids.astype(np.uint64, copy=False)
    return keys


def ids_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the ids in keys."""
    return (keys & np.uint64(NOBODY)).astype(np.int64)


def start(c: Any, envs: NDArray[np.intp], starts: Starts, clock: Clock) -> tuple[Floats, Floats, Floats]:
    """Return positions and directions, drawn or given, at the episodes' start."""
    episode, agent = clock.episode[envs, None], np.arange(c.N_AGENTS)
    word_x, word_y, word_direction, _ = philox(episode, envs[:, None], agent, STREAM_START, *clock.reset_seed)
    quarters = below(word_direction, 4).astype(np.float32)
    return (
        c.GRID_LENGTH * uniform(word_x) if c.RANDOM_X else starts.start_x,
        c.GRID_LENGTH * uniform(word_y) if c.RANDOM_Y else starts.start_y,
        quarters * c.HALF_PI if c.RANDOM_DIRECTION else starts.start_direction,
    )

"""Step of one agent, for kernel_numba.py and spread_numba.py; mirrors agent.cuh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32

from warpdrive_min.kernels.core_numba import below, clip, philox, sincos_of, uniform, wrap
from warpdrive_min.rng import STREAM_START

X, Y, SPEED, ACCELERATION, DIRECTION, TYPE, IN_GAME, TIME = range(8)
NOBODY: Final = 0xFFFF
ZERO, ONE = np.float32(0), np.float32(1)
TOO_FAR: Final = np.float32(1e35)
"""Squared distance larger than any neighbour's."""
SHARED_BYTES: Final = 48 * 1024
MAX_SLOTS: Final = 16
"""Number of neighbours per search."""


class Agent(NamedTuple):
    """Device functions for one agent."""

    move: Callable[..., Any]
    start: Callable[..., Any]
    score: Callable[..., Any]
    scale_of: Callable[..., Any]


def agent_functions(c: Any) -> Agent:
    """Close the device functions over the constants."""
    sincos = sincos_of(c.EXACT)
    grid_length, max_speed, two_pi, half_pi = c.GRID_LENGTH, c.MAX_SPEED, c.TWO_PI, c.HALF_PI
    random_x, random_y, random_direction = c.RANDOM_X, c.RANDOM_Y, c.RANDOM_DIRECTION
    tag_reward, tag_penalty, end_reward = c.TAG_REWARD, c.TAG_PENALTY, c.END_OF_GAME_REWARD
    edge_penalty, runner_exits = c.EDGE_HIT_PENALTY, c.RUNNER_EXITS
    inv_diagonal, inv_max_speed, inv_two_pi = c.INV_DIAGONAL, c.INV_MAX_SPEED, c.INV_TWO_PI

    @cuda.jit(device=True)
    def is_outside(position):
        return position < ZERO or position > grid_length

    @cuda.jit(device=True)
    def move(env, agent, agents, roles, actions):
        """Turn, accelerate and move, if in the game; return this flag and the new state."""
        plays = agents.still_in_the_game[env, agent] != 0
        x, y, speed = agents.loc_x[env, agent], agents.loc_y[env, agent], agents.speed[env, agent]
        acceleration, direction = agents.acceleration[env, agent], agents.direction[env, agent]
        thrust = actions.acceleration_actions[actions.sampled_actions[env, agent, 0]]
        turn = actions.turn_actions[actions.sampled_actions[env, agent, 1]]
        top_speed = max_speed * roles.skill_levels[agent]
        push = acceleration + thrust
        turned = wrap(direction + turn, two_pi)
        heading = turned if plays else ZERO
        pace = clip(speed + push, ZERO, top_speed) if plays else ZERO
        kept_push = ZERO if pace <= ZERO or pace >= top_speed else push
        sine, cosine = sincos(heading)
        new_x, new_y = x + pace * cosine, y + pace * sine
        hits_edge = is_outside(new_x) or is_outside(new_y)
        x, y = clip(new_x, ZERO, grid_length), clip(new_y, ZERO, grid_length)
        agents.loc_x[env, agent] = x
        agents.loc_y[env, agent] = y
        agents.speed[env, agent] = pace
        agents.direction[env, agent] = heading
        agents.acceleration[env, agent] = kept_push
        agents.edge_hit_reward_penalty[env, agent] = edge_penalty if hits_edge else ZERO
        return plays, x, y, pace, kept_push, heading

    @cuda.jit(device=True)
    def start(env, agent, agents, starts, clock):
        """Set an agent to its start; return position and direction."""
        words = philox(clock.episode[env], env, agent, STREAM_START, clock.reset_seed[0], clock.reset_seed[1])
        x = grid_length * uniform(words[0]) if random_x else starts.start_x[agent]
        y = grid_length * uniform(words[1]) if random_y else starts.start_y[agent]
        heading = float32(below(words[2], 4)) * half_pi if random_direction else starts.start_direction[agent]
        agents.loc_x[env, agent] = x
        agents.loc_y[env, agent] = y
        agents.direction[env, agent] = heading
        agents.speed[env, agent] = ZERO
        agents.acceleration[env, agent] = ZERO
        agents.edge_hit_reward_penalty[env, agent] = ZERO
        agents.still_in_the_game[env, agent] = 1
        return x, y, heading

    @cuda.jit(device=True)
    def score(env, agent, agents, roles, results, plays, tags, is_tagged, n_catches, out_of_time):
        """Write an agent's reward, and whether it stays in the game."""
        stays = plays and not (runner_exits and is_tagged)
        of_the_move = agents.edge_hit_reward_penalty[env, agent] + roles.step_rewards[agent]
        tagged = of_the_move + (tag_penalty if is_tagged else ZERO)
        caught = tagged + tag_reward * float32(n_catches)
        survives = stays and not tags and out_of_time
        results.rewards[env, agent] = caught + (end_reward if survives else ZERO) if plays else ZERO
        agents.still_in_the_game[env, agent] = stays

    @cuda.jit(device=True)
    def scale_of(kind):
        """Return the scale of a relative feature in an observation."""
        return inv_diagonal if kind <= Y else inv_max_speed if kind <= ACCELERATION else inv_two_pi

    return Agent(move, start, score, scale_of)

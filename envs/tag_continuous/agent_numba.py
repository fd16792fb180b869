"""What one agent does, however agents are laid out: shared by kernel_numba.py and crowd_numba.py, as agent.cuh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32

from warpdrive_min.kernels.core_numba import below, clip, maths, philox, uniform, wrap
from warpdrive_min.rng import STREAM_START

X, Y, SPEED, ACCELERATION, DIRECTION, TYPE, IN_GAME, TIME = range(8)
NOBODY: Final = 0xFFFF
ZERO, ONE = np.float32(0), np.float32(1)
TOO_FAR: Final = np.float32(1e35)
"""Squared distance that no neighbour has."""
SHARED_BYTES: Final = 48 * 1024
MAX_SLOTS: Final = 16
"""Neighbours that are searched at a time."""


class Agent(NamedTuple):
    """Device functions on one agent."""

    moved: Callable[..., Any]
    started: Callable[..., Any]
    reward: Callable[..., Any]
    scale_of: Callable[..., Any]


def agent_functions(c: Any) -> Agent:
    """Close the device functions over the constants."""
    sin, cos = maths(c.EXACT)
    grid_length, max_speed, two_pi, half_pi = c.GRID_LENGTH, c.MAX_SPEED, c.TWO_PI, c.HALF_PI
    random_x, random_y, random_direction = c.RANDOM_X, c.RANDOM_Y, c.RANDOM_DIRECTION
    tag_reward, tag_penalty, end_reward = c.TAG_REWARD, c.TAG_PENALTY, c.END_OF_GAME_REWARD
    inv_diagonal, inv_max_speed, inv_two_pi = c.INV_DIAGONAL, c.INV_MAX_SPEED, c.INV_TWO_PI

    @cuda.jit(device=True)
    def is_outside(position):
        return position < ZERO or position > grid_length

    @cuda.jit(device=True)
    def moved(x, y, speed, acceleration, direction, in_game, thrust, turn, skill):
        """Turn, accelerate and move; who has left the game stands still. Returns the agent and if it hits the edge."""
        top_speed = max_speed * skill
        push = acceleration + thrust
        turned = wrap(direction + turn, two_pi)
        heading = turned if in_game else ZERO
        pace = clip(speed + push, ZERO, top_speed) if in_game else ZERO
        kept_push = ZERO if pace <= ZERO or pace >= top_speed else push
        new_x, new_y = x + pace * cos(heading), y + pace * sin(heading)
        hits_edge = is_outside(new_x) or is_outside(new_y)
        return clip(new_x, ZERO, grid_length), clip(new_y, ZERO, grid_length), pace, kept_push, heading, hits_edge

    @cuda.jit(device=True)
    def started(episode, env, agent, seed, start_x, start_y, start_direction):
        """Return position and direction at the start of an episode."""
        words = philox(episode, env, agent, STREAM_START, seed[0], seed[1])
        x = grid_length * uniform(words[0]) if random_x else start_x[agent]
        y = grid_length * uniform(words[1]) if random_y else start_y[agent]
        heading = float32(below(words[2], 4)) * half_pi if random_direction else start_direction[agent]
        return x, y, heading

    @cuda.jit(device=True)
    def reward(in_game, is_tagged, n_catches, survives, of_the_move):
        tagged = of_the_move + (tag_penalty if is_tagged else ZERO)
        caught = tagged + tag_reward * float32(n_catches)
        return caught + (end_reward if survives else ZERO) if in_game else ZERO

    @cuda.jit(device=True)
    def scale_of(kind):
        """Return the unit in which an observation gives a feature of another agent relative to one's own."""
        return inv_diagonal if kind <= Y else inv_max_speed if kind <= ACCELERATION else inv_two_pi

    return Agent(moved, started, reward, scale_of)

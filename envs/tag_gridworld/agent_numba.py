"""Step and observation of one agent, for both Numba kernels.

Used by kernel_numba.py and spread_numba.py; mirrors agent.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from warpdrive_min.kernels.core_numba import pool_row

ZERO, ONE = np.float32(0), np.float32(1)
FAR: Final = 0x7FFFFFFF
"""Upper bound of squared distances."""


class Agent(NamedTuple):
    """Device functions for one agent."""

    move: Callable[..., Any]
    start: Callable[..., Any]
    squared_distance: Callable[..., Any]
    reward: Callable[..., Any]
    seen: Callable[..., Any]


def agent_functions(c: Any) -> Agent:
    """Close the device functions over the constants."""
    n_agents, n_features, n_starts, full = c.N_AGENTS, c.N_FEATURES, c.N_STARTS, c.USE_FULL_OBSERVATION
    grid_length, side = c.GRID_LENGTH, np.float32(c.GRID_LENGTH)
    wall_hit, tag_reward, tag_penalty = -c.WALL_HIT_PENALTY, c.TAG_REWARD, -c.TAG_PENALTY
    step_reward, step_penalty = c.STEP_COST, -c.STEP_COST
    runner = n_agents - 1

    @cuda.jit(device=True)
    def move(env, agent, positions, sampled_actions, rewards):
        """Move an agent by a cell, and write the wall's cost as a temporary reward."""
        x, y, action = positions.loc_x[env, agent], positions.loc_y[env, agent], sampled_actions[env, agent, 0]
        new_x = x + (1 if action == 1 else 0) - (1 if action == 2 else 0)
        new_y = y + (1 if action == 3 else 0) - (1 if action == 4 else 0)
        hits_wall = new_x < 0 or new_x > grid_length or new_y < 0 or new_y > grid_length
        positions.loc_x[env, agent] = min(max(new_x, 0), grid_length)
        positions.loc_y[env, agent] = min(max(new_y, 0), grid_length)
        rewards[env, agent] = wall_hit if hits_wall else ZERO

    @cuda.jit(device=True)
    def start(env, agent, positions, starts, clock):
        """Set an agent to its start of an episode."""
        row = pool_row(clock.episode[env], env, clock.reset_seed[0], clock.reset_seed[1], n_starts)
        positions.loc_x[env, agent] = starts.loc_x_reset_pool[row, agent]
        positions.loc_y[env, agent] = starts.loc_y_reset_pool[row, agent]

    @cuda.jit(device=True)
    def squared_distance(positions, env, tagger):
        dx = positions.loc_x[env, tagger] - positions.loc_x[env, runner]
        dy = positions.loc_y[env, tagger] - positions.loc_y[env, runner]
        return int32(dx * dx + dy * dy)

    @cuda.jit(device=True)
    def reward(agent, is_tagged):
        for_tagger = tag_reward if is_tagged else step_penalty
        for_runner = tag_penalty if is_tagged else step_reward
        return for_runner if agent == runner else for_tagger

    @cuda.jit(device=True)
    def share(cell):
        return float32(cell) / side

    @cuda.jit(device=True)
    def seen(progress, nearest, env, positions, self, column):
        """Return one entry of the observation of ``self``.

        With partial observations, ``nearest`` is the tagger nearest to the runner.
        """
        loc_x, loc_y = positions
        if column == n_features - 1:
            return progress
        if full:
            if column < 2 * n_agents:
                return share(loc_x[env, column] if column < n_agents else loc_y[env, column - n_agents])
            return ONE if column == 2 * n_agents + runner or column == 3 * n_agents + self else ZERO
        if column == 4:
            return ONE if self == runner else ZERO
        agent = self if column < 2 else nearest if self == runner else runner
        return share(loc_x[env, agent] if column % 2 == 0 else loc_y[env, agent])

    return Agent(move, start, squared_distance, reward, seen)

"""Tag GridWorld in NumPy, batched: the reference, and backend `cpu`.

Phases: `move`, `approach`, `score`, `observe`, `start`. Arrays are ``(n_envs, n_agents)`` unless stated. All values are
integers except rewards (one float32 addition) and observations (one float32 division).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.rng import pool_row

from .arrays import Positions, Starts

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants ``c``."""

    def step(positions: Positions, starts: Starts, sampled_actions: Ints, clock: Clock, results: Results) -> None:
        hits_wall = move(c, *positions, sampled_actions[..., 0])
        distance, nearest = approach(*positions)
        is_tagged = distance == 0
        results.rewards[:] = score(c, hits_wall, is_tagged)
        clock.timestep[:] += 1
        results.terminated[:] = is_tagged
        results.truncated[:] = (clock.timestep >= c.EPISODE_LENGTH) & ~is_tagged
        clock.done[:] = results.terminated | results.truncated
        observe(c, *positions, nearest, clock.timestep, results.observations)
        if c.AUTO_RESET and clock.done.any():
            ended = np.flatnonzero(clock.done)
            results.final_observations[ended] = results.observations[ended]
            restart(ended, positions, starts, clock, results)

    def reset(positions: Positions, starts: Starts, clock: Clock, results: Results, force: int) -> None:
        ended = np.flatnonzero((clock.done != 0) | (force != 0))
        clock.done[ended] = 0
        restart(ended, positions, starts, clock, results)

    def restart(envs: NDArray[np.intp], positions: Positions, starts: Starts, clock: Clock, results: Results) -> None:
        low, high = clock.reset_seed
        row = pool_row(clock.episode[envs], envs, low, high, c.N_STARTS)  # row 0 if only one start exists
        for cells, pool in zip(positions, starts, strict=True):
            cells[envs] = pool[row]
        clock.timestep[envs] = 0
        clock.episode[envs] += 1
        x, y = (cells[envs] for cells in positions)
        seen = np.empty((len(envs), *results.observations.shape[1:]), np.float32)
        observe(c, x, y, approach(x, y)[1], clock.timestep[envs], seen)
        results.observations[envs] = seen

    return {"step": step, "reset": reset}


def move(c: Any, x: Ints, y: Ints, action: Ints) -> Flags:
    """Move every agent by at most one cell, in place; return wall hits."""
    new_x = x + (action == 1) - (action == 2)
    new_y = y + (action == 3) - (action == 4)
    np.clip(new_x, 0, c.GRID_LENGTH, out=x)
    np.clip(new_y, 0, c.GRID_LENGTH, out=y)
    hits_wall: Flags = (x != new_x) | (y != new_y)
    return hits_wall


def approach(x: Ints, y: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Return the runner's smallest squared distance to a tagger, and its id.

    The lowest id wins among equals.
    """
    dx, dy = x[:, :-1] - x[:, -1:], y[:, :-1] - y[:, -1:]
    distance = dx * dx + dy * dy
    return distance.min(1), distance.argmin(1)


def score(c: Any, hits_wall: Flags, is_tagged: Flags) -> Floats:
    """Return the rewards: for the wall, and for a tag or a step without one."""
    for_taggers = np.where(is_tagged, c.TAG_REWARD, -c.STEP_COST)
    for_runner = np.where(is_tagged, -c.TAG_PENALTY, c.STEP_COST)
    rewards = np.where(hits_wall, -c.WALL_HIT_PENALTY, np.float32(0))
    rewards[:, :-1] += for_taggers[:, None]
    rewards[:, -1] += for_runner
    return rewards


def observe(c: Any, x: Ints, y: Ints, nearest: NDArray[np.intp], timestep: Ints, seen: Floats) -> None:
    """Write the observations, ``(n_envs, n_agents, n_features)``."""
    x_share, y_share = (cells.astype(np.float32) / np.float32(c.GRID_LENGTH) for cells in (x, y))
    n, agent, runner = c.N_AGENTS, np.arange(c.N_AGENTS), c.N_AGENTS - 1
    seen[..., -1] = (timestep.astype(np.float32) / np.float32(c.EPISODE_LENGTH))[:, None]
    if c.USE_FULL_OBSERVATION:
        seen[..., :n] = x_share[:, None]
        seen[..., n : 2 * n] = y_share[:, None]
        seen[..., 2 * n : 3 * n] = agent == runner
        seen[..., 3 * n : 4 * n] = 0
        seen[:, agent, 3 * n + agent] = 1
    else:
        env = np.arange(len(x))
        for column, share in enumerate((x_share, y_share)):
            seen[..., column] = share
            seen[:, :runner, 2 + column] = share[:, runner, None]
            seen[:, runner, 2 + column] = share[env, nearest]
        seen[..., 4] = agent == runner

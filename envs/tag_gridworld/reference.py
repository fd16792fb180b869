"""Tag GridWorld in NumPy, over all environments at once: the oracle, and backend `cpu`.

Phases: `move`, `approach`, `score`, `observe`, `start`. Arrays are ``(n_envs, n_agents)`` unless said otherwise. All is
integer but the rewards, one float32 addition, and the observations, one float32 division.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.rng import pool_row

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants ``c``."""

    def step(
        loc_x: Ints,
        loc_y: Ints,
        loc_x_reset_pool: Ints,
        loc_y_reset_pool: Ints,
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
        hits_wall = move(c, loc_x, loc_y, sampled_actions[..., 0])
        distance, nearest = approach(loc_x, loc_y)
        is_tagged = distance == 0
        rewards[:] = score(c, hits_wall, is_tagged)
        _timestep_ += 1
        terminated[:] = is_tagged
        truncated[:] = (_timestep_ >= c.EPISODE_LENGTH) & ~is_tagged
        _done_[:] = terminated | truncated
        observe(c, loc_x, loc_y, nearest, _timestep_, observations)
        if c.AUTO_RESET and _done_.any():
            ended = np.flatnonzero(_done_)
            final_observations[ended] = observations[ended]
            restart(
                ended, loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, observations, _timestep_, _episode_,
                _reset_seed_,
            )  # fmt: skip

    def reset(
        loc_x: Ints,
        loc_y: Ints,
        loc_x_reset_pool: Ints,
        loc_y_reset_pool: Ints,
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
            ended, loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, observations, _timestep_, _episode_, _reset_seed_
        )

    def restart(
        envs: NDArray[np.intp],
        loc_x: Ints,
        loc_y: Ints,
        loc_x_reset_pool: Ints,
        loc_y_reset_pool: Ints,
        observations: Floats,
        _timestep_: Ints,
        _episode_: Ints,
        _reset_seed_: Ints,
    ) -> None:
        low, high = _reset_seed_
        row = pool_row(_episode_[envs], envs, low, high, c.N_STARTS)  # row 0 where there is one start
        loc_x[envs], loc_y[envs] = loc_x_reset_pool[row], loc_y_reset_pool[row]
        _timestep_[envs] = 0
        _episode_[envs] += 1
        x, y = loc_x[envs], loc_y[envs]
        seen = np.empty((len(envs), *observations.shape[1:]), np.float32)
        observe(c, x, y, approach(x, y)[1], _timestep_[envs], seen)
        observations[envs] = seen

    return {"step": step, "reset": reset}


def move(c: Any, x: Ints, y: Ints, action: Ints) -> Flags:
    """Move every agent by one cell or none, in place; returns who hit the wall."""
    new_x = x + (action == 1) - (action == 2)
    new_y = y + (action == 3) - (action == 4)
    np.clip(new_x, 0, c.GRID_LENGTH, out=x)
    np.clip(new_y, 0, c.GRID_LENGTH, out=y)
    hits_wall: Flags = (x != new_x) | (y != new_y)
    return hits_wall


def approach(x: Ints, y: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Return the squared distance of the runner to the nearest tagger and that tagger, the lowest id among equals."""
    dx, dy = x[:, :-1] - x[:, -1:], y[:, :-1] - y[:, -1:]
    distance = dx * dx + dy * dy
    return distance.min(1), distance.argmin(1)


def score(c: Any, hits_wall: Flags, is_tagged: Flags) -> Floats:
    """Return the rewards: of the wall, and of a tag or a step without one."""
    for_taggers = np.where(is_tagged, c.TAG_REWARD, -c.STEP_COST)
    for_runner = np.where(is_tagged, -c.TAG_PENALTY, c.STEP_COST)
    rewards = np.where(hits_wall, -c.WALL_HIT_PENALTY, np.float32(0))
    rewards[:, :-1] += for_taggers[:, None]
    rewards[:, -1] += for_runner
    return rewards


def observe(c: Any, x: Ints, y: Ints, nearest: NDArray[np.intp], timestep: Ints, seen: Floats) -> None:
    """Write what every agent sees, ``seen`` ``(n_envs, n_agents, n_features)``."""
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

"""Kernels of environments of one agent in NumPy, around what an action leads to and where episodes start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.rng import STREAM_START, philox, pool_row, uniform


def kernels(
    c: Any,
    outcome: Callable[[Any, Any], Any],
    observe: Callable[[Any], Any],
    draw_start: Callable[[Any], Any],
) -> dict[str, Callable[..., None]]:
    """Return the kernels ``step`` and ``reset`` of an environment.

    A state and an observation are sequences of their components, each of them ``(n,)`` for as many environments.

    Args:
        c: The constants.
        outcome: Returns what actions ``(n_envs,)`` lead to from a state, ``(n_state, n_envs)``: a state, what is seen
            of it, the reward, and whether the dynamics end the episode.
        observe: Returns what is seen of a state.
        draw_start: Returns a state from the four words of an episode.
    """

    def step(
        state: Any,
        sampled_actions: Any,
        observations: Any,
        final_observations: Any,
        rewards: Any,
        _timestep_: Any,
        _done_: Any,
        terminated: Any,
        truncated: Any,
        _episode_: Any,
        _reset_seed_: Any,
        state_reset_pool: Any,
    ) -> None:
        """Step every environment; with AUTO_RESET, go on to the next episode where one ended."""
        moved, seen, reward, is_terminal = outcome(np.ascontiguousarray(state[:, 0].T), sampled_actions[:, 0, 0])
        store(state, EVERY, moved)
        store(observations, EVERY, seen)
        rewards[:, 0] = reward
        _timestep_ += 1
        terminated[:] = is_terminal
        truncated[:] = (_timestep_ >= c.EPISODE_LENGTH) & (terminated == 0)
        _done_[:] = terminated | truncated
        if c.AUTO_RESET and _done_.any():
            envs = np.flatnonzero(_done_)
            final_observations[envs] = observations[envs]
            restart(envs, state, observations, _timestep_, _episode_, _reset_seed_, state_reset_pool)

    def reset(
        state: Any,
        observations: Any,
        _timestep_: Any,
        _done_: Any,
        _episode_: Any,
        _reset_seed_: Any,
        state_reset_pool: Any,
        force: int,
    ) -> None:
        """Restart the finished environments, or all."""
        envs = np.flatnonzero(_done_ | force)
        restart(envs, state, observations, _timestep_, _episode_, _reset_seed_, state_reset_pool)
        _done_[envs] = 0

    def restart(
        envs: Any,
        state: Any,
        observations: Any,
        _timestep_: Any,
        _episode_: Any,
        _reset_seed_: Any,
        state_reset_pool: Any,
    ) -> None:
        """Put the named environments at the start of their next episode: a row of the pool, or one that is drawn."""
        episode, (low, high) = _episode_[envs], _reset_seed_
        if c.RESET_POOL_SIZE >= 2:
            state[envs] = state_reset_pool[pool_row(episode, envs, low, high, c.RESET_POOL_SIZE)]
        elif c.RESET_POOL_SIZE == 1:
            state[envs] = state_reset_pool[0]
        else:
            store(state, envs, draw_start(philox(episode, envs, 0, STREAM_START, low, high)))
        store(observations, envs, observe(state[envs, 0].T))
        _episode_[envs] += 1
        _timestep_[envs] = 0

    return {"step": step, "reset": reset}


def store(to: Any, envs: Any, components: Any) -> None:
    """Write components to the rows of the named environments."""
    for index, component in enumerate(components):
        to[envs, 0, index] = component


def symmetric(word: Any, limit: Any) -> Any:
    """Return numbers uniform within plus or minus a limit."""
    return (uniform(word) * TWO - ONE) * limit


EVERY = slice(None)
ONE, TWO = np.float32(1), np.float32(2)

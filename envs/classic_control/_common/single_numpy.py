"""NumPy kernels of single-agent environments, for given dynamics and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.rng import STREAM_START, philox, pool_row, uniform


def kernels(
    c: Any,
    outcome: Callable[[Any, Any], Any],
    observe: Callable[[Any], Any],
    draw_start: Callable[[Any], Any],
) -> dict[str, Callable[..., None]]:
    """Return the kernels ``step`` and ``reset`` of an environment.

    States and observations are sequences of components, each ``(n,)`` for n environments.

    Args:
        c: Constants.
        outcome: Function of a state ``(n_state, n_envs)`` and actions ``(n_envs,)``; returns the next state,
            observation, reward and termination.
        observe: Function of a state; returns its observation.
        draw_start: Function of an episode's four random words; returns a state.
    """

    def step(state: Any, state_reset_pool: Any, sampled_actions: Any, clock: Clock, results: Results) -> None:
        """Step every environment; with AUTO_RESET, restart those that ended."""
        moved, seen, reward, is_terminal = outcome(np.ascontiguousarray(state[:, 0].T), sampled_actions[:, 0, 0])
        store(state, EVERY, moved)
        store(results.observations, EVERY, seen)
        results.rewards[:, 0] = reward
        clock.timestep[:] += 1
        results.terminated[:] = is_terminal
        results.truncated[:] = (clock.timestep >= c.EPISODE_LENGTH) & (results.terminated == 0)
        clock.done[:] = results.terminated | results.truncated
        if c.AUTO_RESET and clock.done.any():
            envs = np.flatnonzero(clock.done)
            results.final_observations[envs] = results.observations[envs]
            restart(envs, state, state_reset_pool, clock, results)

    def reset(state: Any, state_reset_pool: Any, clock: Clock, results: Results, force: int) -> None:
        """Restart the finished environments, or all."""
        envs = np.flatnonzero(clock.done | force)
        restart(envs, state, state_reset_pool, clock, results)
        clock.done[envs] = 0

    def restart(envs: Any, state: Any, pool: Any, clock: Clock, results: Results) -> None:
        """Restart environments from a row of the pool, or a drawn state."""
        episode, (low, high) = clock.episode[envs], clock.reset_seed
        if c.RESET_POOL_SIZE >= 2:
            state[envs] = pool[pool_row(episode, envs, low, high, c.RESET_POOL_SIZE)]
        elif c.RESET_POOL_SIZE == 1:
            state[envs] = pool[0]
        else:
            store(state, envs, draw_start(philox(episode, envs, 0, STREAM_START, low, high)))
        store(results.observations, envs, observe(state[envs, 0].T))
        clock.episode[envs] += 1
        clock.timestep[envs] = 0

    return {"step": step, "reset": reset}


def store(to: Any, envs: Any, components: Any) -> None:
    """Write components to the rows of the given environments."""
    for index, component in enumerate(components):
        to[envs, 0, index] = component


def symmetric(word: Any, limit: Any) -> Any:
    """Return uniform numbers within plus or minus a limit."""
    return (uniform(word) * TWO - ONE) * limit


def whole(state: Any) -> Any:
    """Return the state as its observation."""
    return state


def within(limit: Any) -> Callable[..., Any]:
    """Return a function that draws a state of four components within +-limit."""
    return lambda words: [symmetric(word, limit) for word in words]


EVERY = slice(None)
ONE, TWO = np.float32(1), np.float32(2)

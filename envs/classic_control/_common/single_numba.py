"""Numba kernels of single-agent environments, for given dynamics and starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import (
    any_near,
    conclude,
    env_at,
    load_row,
    natural,
    philox,
    pool_row,
    store_row,
    uniform,
    word,
)
from warpdrive_min.kernels.rollout_numba import drawing
from warpdrive_min.rng import STREAM_START

ONE, TWO = np.float32(1), np.float32(2)
STEPS_AHEAD: Final = np.int32(8)
"""Steps between draws of the next starts; a warp draws together."""
LINE: Final = 64
"""Bytes that memory writes faster as one unit: adjacent rows of last observations."""
NO_WORDS = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))


class Rows(NamedTuple):
    """Outputs of a rollout and given actions, with a row per step and environment.

    If only the last step is kept, the outputs are its arrays.
    """

    sampled_actions: Any
    rewards: Any
    terminated_rows: Any
    truncated_rows: Any
    done_rows: Any
    observations: Any
    final_observations: Any


class Last(NamedTuple):
    """Arrays of the last step."""

    last_sampled_actions: Any
    last_rewards: Any
    terminated: Any
    truncated: Any
    done: Any
    last_observations: Any


class Outputs(NamedTuple):
    """Outputs of each step, or of the last one."""

    sampled_actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    done: Any
    observations: Any


class Episodes(NamedTuple):
    """Episode arrays of a rollout: `_timestep_`, `_episode_` and `_reset_seed_`."""

    timestep: int32[:]
    episode: int32[:]
    reset_seed: int32[:]


def kernels(
    c: Any,
    n_state: int,
    outcome: Callable[..., Any],
    observe: Callable[..., Any],
    draw_start: Callable[..., Any],
) -> dict[str, Any]:
    """Return the kernels ``step`` and ``reset``, or also ``rollout``.

    ``rollout`` exists if the constants have rollout sizes.

    Args:
        c: Constants.
        n_state: Components of the state.
        outcome: Device function of state and action; returns the next state, observation, reward and termination.
        observe: Device function of a state; returns its observation.
        draw_start: Device function of an episode's four random words; returns a state.
    """
    threads, envs_per_block = c.THREADS, c.ENVS_PER_BLOCK
    episode_length, auto_reset, pool_size = c.EPISODE_LENGTH, c.AUTO_RESET, c.RESET_POOL_SIZE

    @cuda.jit
    def step(
        state: float32[:, :, :],
        state_reset_pool: float32[:, :, :],
        sampled_actions,  # int32 or float32, by the action space
        clock: Clock,
        results: Results,
        n_envs: int32,
    ):
        """Step every environment; with AUTO_RESET, restart those that ended."""
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            _, env = env_at(each, envs_per_block)
            if env < n_envs:
                s, seen, reward, is_terminal = outcome(load_row(state, env, n_state), sampled_actions[env, 0, 0])
                timestep = clock.timestep[env] + 1
                out_of_time = timestep >= episode_length
                results.rewards[env, 0] = reward
                conclude(env, is_terminal, out_of_time, clock, results)
                if auto_reset and (is_terminal or out_of_time):
                    store_row(results.final_observations, env, seen)
                    episode = clock.episode[env]
                    s = start(env, episode, clock.reset_seed, state_reset_pool)
                    seen = observe(s)
                    clock.episode[env] = episode + 1
                    timestep = 0
                clock.timestep[env] = timestep
                store_row(state, env, s)
                store_row(results.observations, env, seen)

    @cuda.jit
    def reset(
        state: float32[:, :, :],
        state_reset_pool: float32[:, :, :],
        clock: Clock,
        results: Results,
        force: int32,
        n_envs: int32,
    ):
        """Restart the finished environments, or all."""
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            _, env = env_at(each, envs_per_block)
            if env < n_envs and (force != 0 or clock.done[env] != 0):
                episode = clock.episode[env]
                s = start(env, episode, clock.reset_seed, state_reset_pool)
                store_row(state, env, s)
                store_row(results.observations, env, observe(s))
                clock.episode[env] = episode + 1
                clock.timestep[env] = 0
                clock.done[env] = 0

    @cuda.jit(device=True)
    def start(env, episode, seed, pool):
        """Return the start of an episode: a row of the pool, or a drawn state."""
        if pool_size >= 1:
            row = pool_row(episode, env, seed[0], seed[1], pool_size) if pool_size >= 2 else 0
            return load_row(pool, row, n_state)
        return draw_start(philox(episode, env, 0, STREAM_START, seed[0], seed[1]))

    if not hasattr(c, "RANDOM"):
        return {"step": step, "reset": reset}

    keep_all, is_random = c.KEEP_ALL, c.RANDOM
    choose = drawing(c).choose if is_random else None
    neighbours = LINE // math.gcd(LINE, 4 * c.N_FEATURES)
    no_action = np.int32(0) if c.CATEGORIES else np.float32(0)

    @cuda.jit(device=True)
    def play(state, pool, rows, last, episodes, draws, seed, stream, n_steps, n_envs):
        """Take several steps of an environment with its state in registers.

        A block's extra threads repeat the last environment and write the same values: a warp acts as one unit.
        """
        env = natural(min(cuda.blockIdx.x * envs_per_block + cuda.threadIdx.x, n_envs - 1))
        kept = Outputs(
            rows.sampled_actions,
            rows.rewards,
            rows.terminated_rows,
            rows.truncated_rows,
            rows.done_rows,
            rows.observations,
        )
        s = load_row(state, env, n_state)
        timestep, episode = episodes.timestep[env], episodes.episode[env]
        reset_seed = episodes.reset_seed[0], episodes.reset_seed[1]
        action, reward, is_terminal, out_of_time = no_action, float32(0), False, False
        words, seen = NO_WORDS, observe(s)
        is_drawn, drawn = False, s
        if is_random:
            first, seed_low, seed_high = draws[env], seed[0], seed[1]
        cuda.syncthreads()  # before overwriting the state that others start from
        for begin in range(int32(0), n_steps, STEPS_AHEAD):
            if keep_all:
                cuda.syncthreads()  # warps write one contiguous piece of memory at about the same time
            if not is_drawn:
                is_drawn, drawn = True, start(env, episode, reset_seed, pool)
            for k in range(begin, min(int32(begin + STEPS_AHEAD), n_steps)):
                row = uint64(uint32(k)) * uint64(uint32(n_envs)) + uint64(uint32(env))
                if is_random:
                    number = uint32(first + k)
                    if k == 0 or number & uint32(3) == 0:
                        words = philox(number >> uint32(2), env, 0, stream, seed_low, seed_high)
                    action = choose(word(words, number & uint32(3)), 0, 0)
                else:
                    action = rows.sampled_actions[row, 0, 0]
                s, led_to, reward, is_terminal = outcome(s, action)
                timestep = int32(timestep + 1)
                out_of_time = timestep >= episode_length
                is_done, seen = is_terminal or out_of_time, led_to
                if is_done:
                    if not keep_all:
                        store_row(rows.final_observations, env, led_to)
                    s = drawn if is_drawn else start(env, episode, reset_seed, pool)
                    is_drawn, seen = False, observe(s)
                    episode = int32(episode + 1)
                    timestep = int32(0)
                if keep_all:
                    put(kept, row, action, seen, reward, is_terminal, out_of_time)
                    if any_near(is_done, neighbours):
                        store_row(rows.final_observations, row, led_to)
        put(Outputs(*last), env, action, seen, reward, is_terminal, out_of_time)
        store_row(state, env, s)
        episodes.timestep[env] = timestep
        episodes.episode[env] = episode
        if is_random:
            draws[env] = first + n_steps

    @cuda.jit(device=True)
    def put(outputs, row, action, seen, reward, is_terminal, out_of_time):
        """Write the results of a step, except an episode's last observation."""
        outputs.sampled_actions[row, 0, 0] = action
        outputs.rewards[row, 0] = reward
        conclude(row, is_terminal, out_of_time, outputs, outputs)
        store_row(outputs.observations, row, seen)

    @cuda.jit
    def with_drawn_actions(
        state: float32[:, :, :],
        state_reset_pool: float32[:, :, :],
        rows: Rows,
        last: Last,
        episodes: Episodes,
        draws: int32[:],
        seed: int32[:],
        stream: int32,
        n_steps: int32,
        n_envs: int32,
    ):
        play(state, state_reset_pool, rows, last, episodes, draws, seed, stream, n_steps, n_envs)

    @cuda.jit
    def with_given_actions(
        state: float32[:, :, :],
        state_reset_pool: float32[:, :, :],
        rows: Rows,
        last: Last,
        episodes: Episodes,
        n_steps: int32,
        n_envs: int32,
    ):
        play(state, state_reset_pool, rows, last, episodes, None, None, 0, n_steps, n_envs)

    rollout = with_drawn_actions if is_random else with_given_actions
    return {"step": step, "reset": reset, "rollout": rollout}


@cuda.jit(device=True)
def symmetric(word, limit):
    """Return a uniform float32 within plus or minus a limit."""
    return (uniform(word) * TWO - ONE) * limit


@cuda.jit(device=True)
def whole(state):
    """Return the state as its observation."""
    return state


def within(limit: Any) -> Callable[..., Any]:
    """Return a function that draws a state of four components within +-limit."""

    @cuda.jit(device=True)
    def draw_start(words):
        return (
            symmetric(words[0], limit),
            symmetric(words[1], limit),
            symmetric(words[2], limit),
            symmetric(words[3], limit),
        )

    return draw_start

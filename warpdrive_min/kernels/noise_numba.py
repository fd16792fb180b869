"""Continuous actions in Numba: the rules of `noise.cu`."""

# ruff: noqa: N806  (constants keep their names in all languages)

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from warpdrive_min.kernels.arguments import Gaussian, Noise, Uniform
from warpdrive_min.kernels.core_numba import between, exp, log, maths, philox, uniform, word

ONE, TWO_PI = np.float32(1), np.float32(2 * math.pi)
HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2 * math.pi))
HALF_LOG_TWO_PI_E = np.float32(0.5 * math.log(2 * math.pi * math.e))

cos = maths(exact=True).cos


@cuda.jit(device=True)
def normal(first, second):
    """Return a standard normal from two random words (Box-Muller).

    Its magnitude is at most 5.77.
    """
    radius = float32(math.sqrt(float32(-2) * log(ONE - uniform(first))))
    return radius * cos(TWO_PI * uniform(second))


@cuda.jit(device=True)
def number(draws, n_types, action_type):
    """Return draws * n_types + action_type, wrapped to uint32."""
    return uint32((int64(draws) * int64(n_types) + int64(action_type)) & int64(0xFFFFFFFF))


def build(c: Any) -> dict[str, Any]:
    """Return the kernels ``noise``, ``gaussian`` and ``uniform_actions``."""
    N_AGENTS, N_TYPES, ENVS_PER_BLOCK, THREADS = c.N_AGENTS, c.N_TYPES, c.ENVS_PER_BLOCK, c.THREADS
    ARGMAX, LOG_PROB, ENTROPY = c.ARGMAX, c.LOG_PROB, c.ENTROPY

    @cuda.jit(device=True)
    def count(draws, n_envs):
        cuda.syncthreads()
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            env = cuda.blockIdx.x * ENVS_PER_BLOCK + local
            if env < n_envs:
                draws[env] += 1

    @cuda.jit(device=True)
    def next_normal(words, n_draws, action_type, env, agent, stream, seed):
        """Return an action type's normal, and the words for the next.

        Two types of an agent share a block.
        """
        index = number(n_draws, 2 * N_TYPES, 2 * action_type)
        is_upper = index & uint32(2) != 0  # the pair is the upper half of its block
        if action_type == 0 or not is_upper:
            words = philox(index >> uint32(2), env, agent, stream, seed[0], seed[1])
        return normal(words[2], words[3]) if is_upper else normal(words[0], words[1]), words

    @cuda.jit
    def noise(given: Noise, n_envs: int32) -> None:
        decay = ONE - float32(given.damping) * given.damping_factor[0]
        deviation, amplitude = (
            float32(given.stddev) * given.stddev_factor[0],
            float32(given.scale) * given.scale_factor[0],
        )
        for item in range(cuda.threadIdx.x, ENVS_PER_BLOCK * N_AGENTS, THREADS):
            env, agent = cuda.blockIdx.x * ENVS_PER_BLOCK + item // N_AGENTS, item % N_AGENTS
            if env < n_envs:
                words = (uint32(0), uint32(0), uint32(0), uint32(0))
                for action_type in range(N_TYPES):
                    drawn, words = next_normal(
                        words, given.draws[env], action_type, env, agent, given.stream, given.seed
                    )
                    state = float32(decay * given.ou_state[env, agent, action_type] + deviation * drawn)
                    given.ou_state[env, agent, action_type] = state
                    given.actions[env, agent, action_type] = given.mean[env, agent, action_type] + amplitude * state
        count(given.draws, n_envs)

    @cuda.jit
    def gaussian(given: Gaussian, n_envs: int32) -> None:
        for item in range(cuda.threadIdx.x, ENVS_PER_BLOCK * N_AGENTS, THREADS):
            env, agent = cuda.blockIdx.x * ENVS_PER_BLOCK + item // N_AGENTS, item % N_AGENTS
            if env < n_envs:
                words = (uint32(0), uint32(0), uint32(0), uint32(0))
                row_log_prob = float32(0)
                row_entropy = float32(0)
                for action_type in range(N_TYPES):
                    action = given.mean[env, agent, action_type]
                    log_deviation = given.log_std[agent, action_type]
                    drawn = float32(0)
                    if not ARGMAX:
                        drawn, words = next_normal(
                            words, given.draws[env], action_type, env, agent, given.stream, given.seed
                        )
                        action += exp(log_deviation) * drawn
                    given.actions[env, agent, action_type] = action
                    row_log_prob += (float32(-0.5) * drawn * drawn - log_deviation) - HALF_LOG_TWO_PI
                    row_entropy += log_deviation + HALF_LOG_TWO_PI_E
                if LOG_PROB:
                    given.log_prob[env, agent] = row_log_prob
                if ENTROPY:
                    given.entropy[env, agent] = row_entropy
        if not ARGMAX:
            count(given.draws, n_envs)

    @cuda.jit
    def uniform_actions(given: Uniform, n_envs: int32) -> None:
        for item in range(cuda.threadIdx.x, ENVS_PER_BLOCK * N_AGENTS, THREADS):
            env, agent = cuda.blockIdx.x * ENVS_PER_BLOCK + item // N_AGENTS, item % N_AGENTS
            if env < n_envs:
                words = (uint32(0), uint32(0), uint32(0), uint32(0))
                for action_type in range(N_TYPES):
                    index = number(given.draws[env], N_TYPES, action_type)
                    if action_type == 0 or index & uint32(3) == 0:
                        words = philox(index >> uint32(2), env, agent, given.stream, given.seed[0], given.seed[1])
                    weight = uniform(word(words, index & uint32(3)))
                    least, most = given.low[agent, action_type], given.high[agent, action_type]
                    given.actions[env, agent, action_type] = between(least, most, weight)
        count(given.draws, n_envs)

    return {"noise": noise, "gaussian": gaussian, "uniform_actions": uniform_actions}

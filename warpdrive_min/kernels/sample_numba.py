"""Sampler in Numba: the rule and the tiles of `sample.cu`."""

# ruff: noqa: N806, SIM102  (constants keep their names in all languages; Numba prunes only an `if` on its own)

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from warpdrive_min.kernels.arguments import Choices, UniformChoices
from warpdrive_min.kernels.core_numba import choice, exp, log, natural, philox, split, uniform, word
from warpdrive_min.kernels.noise_numba import number

TILE_FLOATS = 8192
"""Floats of a tile, 32 KB.

Shared memory then has room for seven blocks on a multiprocessor of an H200.
"""


def build(c: Any) -> dict[str, Any]:
    """Return the kernels ``sample``, ``uniform_choices`` and ``count``.

    Raises:
        ValueError: A row of categories does not fit a tile.
    """
    N_AGENTS, N_TYPES, N_CATEGORIES = c.N_AGENTS, c.N_TYPES, c.N_CATEGORIES
    ENVS_PER_BLOCK, BLOCKS_PER_ENV, THREADS = c.ENVS_PER_BLOCK, c.BLOCKS_PER_ENV, c.THREADS
    SHARE = -(-ENVS_PER_BLOCK * N_AGENTS // BLOCKS_PER_ENV)  # rows of a block
    LOGITS, MASKED, ARGMAX, LOG_PROB, ENTROPY = c.LOGITS, c.MASKED, c.ARGMAX, c.LOG_PROB, c.ENTROPY
    CATEGORIES = np.array(c.CATEGORIES, np.int32)
    WEIGHED = not (ARGMAX and LOGITS) or LOG_PROB or ENTROPY
    ROW_STRIDE = N_CATEGORIES | 1  # odd: threads on neighbouring rows hit different banks
    if ROW_STRIDE > TILE_FLOATS:
        raise ValueError(f"sample: N_CATEGORIES must be below 8192 (got {N_CATEGORIES}); split the action space")
    TILE_ROWS = min(THREADS, TILE_FLOATS // ROW_STRIDE)
    MINUS_INFINITY = np.float32(-math.inf)
    FORBIDDEN = MINUS_INFINITY if LOGITS else np.float32(0)  # has weight 0
    NAN = np.float32(math.nan)
    SMALLEST = np.finfo(np.float32).tiny  # smallest normal float; smaller weights count as 0
    LARGEST = np.finfo(np.float32).max

    @cuda.jit(device=True)
    def place(first_env, row):
        if ENVS_PER_BLOCK == 1:
            return first_env, natural(row)
        local, agent = split(row, N_AGENTS)
        return natural(first_env + local), agent

    @cuda.jit
    def sample(given: Choices, n_envs: int32) -> None:
        tile = cuda.shared.array((TILE_ROWS, ROW_STRIDE), float32)
        thread = cuda.threadIdx.x
        first_env = natural(cuda.blockIdx.x // BLOCKS_PER_ENV * ENVS_PER_BLOCK)
        n_block_envs = min(ENVS_PER_BLOCK, n_envs - first_env)
        first_row = cuda.blockIdx.x % BLOCKS_PER_ENV * SHARE
        end_row = min(first_row + SHARE, n_block_envs * N_AGENTS)
        for tile_start in range(first_row, end_row, TILE_ROWS):
            n_rows = min(TILE_ROWS, end_row - tile_start)
            for i in range(thread, n_rows * N_CATEGORIES, THREADS):
                r, k = split(i, N_CATEGORIES)
                env, agent = place(first_env, tile_start + r)
                value = float32(given.distribution[env, agent, k])
                if MASKED:
                    if given.mask[env, agent, k] == 0:
                        value = FORBIDDEN
                tile[r, k] = value
            cuda.syncthreads()
            for index in range(thread, n_rows, THREADS):
                r = natural(index)
                env, agent = place(first_env, tile_start + r)
                words = (uint32(0), uint32(0), uint32(0), uint32(0))
                row_log_prob = float32(0)
                row_entropy = float32(0)
                start = 0
                for action_type in range(N_TYPES):
                    end = N_CATEGORIES if N_TYPES == 1 else start + CATEGORIES[action_type]
                    drawn = 0
                    is_impossible = False
                    best = MINUS_INFINITY
                    if LOGITS or ARGMAX:
                        for k in range(start, end):
                            entry = tile[r, natural(k)]
                            if LOGITS:
                                if entry != entry:
                                    is_impossible = True
                            if entry > best:
                                best = entry
                                drawn = k - start
                    if LOGITS:
                        if not (best >= -LARGEST and best <= LARGEST):
                            is_impossible = True
                    if WEIGHED:
                        total = float32(0)
                        moment = float32(0)  # sum of weight * log weight
                        for k in range(start, end):
                            entry = tile[r, natural(k)]
                            if LOGITS:
                                entry = MINUS_INFINITY if is_impossible or entry == MINUS_INFINITY else entry - best
                                weight = exp(entry)
                            elif entry >= SMALLEST:
                                weight = entry
                            else:  # NaN for negative or NaN entries; it makes the total NaN
                                weight = float32(0) if entry >= float32(0) else NAN
                            if ENTROPY:
                                if weight > float32(0):
                                    moment += weight * (entry if LOGITS else log(weight))
                            total += weight
                            tile[r, natural(k)] = weight
                        if not LOGITS:
                            if not (total > float32(0) and total <= LARGEST):
                                is_impossible = True
                        if not ARGMAX:
                            # Each operation is cast to uint32: the count of words wraps as in the other languages.
                            number = uint32(uint32(uint32(given.draws[env]) * uint32(N_TYPES)) + uint32(action_type))
                            if action_type == 0 or number & uint32(3) == 0:
                                words = philox(
                                    number >> uint32(2), env, agent, given.stream, given.seed[0], given.seed[1]
                                )
                            threshold = uniform(word(words, number & uint32(3))) * total
                            running = float32(0)
                            is_found = False
                            drawn = 0
                            for k in range(start, end):
                                running += tile[r, natural(k)]
                                if not is_found and tile[r, natural(k)] > float32(0):
                                    drawn = k - start
                                    is_found = running > threshold
                        if not is_impossible:
                            log_total = log(total)
                            if LOG_PROB:
                                row_log_prob += log(tile[r, start + drawn]) - log_total
                            if ENTROPY:
                                row_entropy += log_total - moment / total
                    if is_impossible:
                        given.impossible[env, agent] += 1
                        drawn = 0
                        if MASKED:
                            for k in range(end - 1, start - 1, -1):
                                if given.mask[env, agent, k] != 0:
                                    drawn = k - start
                    given.actions[env, agent, action_type] = drawn
                    start = end
                if LOG_PROB:
                    given.log_prob[env, agent] = row_log_prob
                if ENTROPY:
                    given.entropy[env, agent] = row_entropy
            cuda.syncthreads()
        if not ARGMAX and BLOCKS_PER_ENV == 1:
            for local in range(thread, n_block_envs, THREADS):
                given.draws[first_env + local] += 1

    @cuda.jit
    def uniform_choices(given: UniformChoices, n_envs: int32) -> None:
        first_env = natural(cuda.blockIdx.x // BLOCKS_PER_ENV * ENVS_PER_BLOCK)
        n_block_envs = min(ENVS_PER_BLOCK, n_envs - first_env)
        first_row = cuda.blockIdx.x % BLOCKS_PER_ENV * SHARE
        for row in range(first_row + cuda.threadIdx.x, min(first_row + SHARE, n_block_envs * N_AGENTS), THREADS):
            env, agent = place(first_env, natural(row))
            words = (uint32(0), uint32(0), uint32(0), uint32(0))
            for action_type in range(N_TYPES):
                index = number(given.draws[env], N_TYPES, action_type)
                if action_type == 0 or index & uint32(3) == 0:
                    words = philox(index >> uint32(2), env, agent, given.stream, given.seed[0], given.seed[1])
                drawn = choice(word(words, index & uint32(3)), CATEGORIES[action_type])
                given.actions[env, agent, action_type] = drawn
        cuda.syncthreads()
        if BLOCKS_PER_ENV == 1:
            for local in range(cuda.threadIdx.x, n_block_envs, THREADS):
                given.draws[first_env + local] += 1

    @cuda.jit
    def count(draws: int32[:], n_envs: int32) -> None:
        """Count a draw, after all blocks of an environment read the count."""
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x % BLOCKS_PER_ENV == 0:
            draws[cuda.blockIdx.x // BLOCKS_PER_ENV] += 1

    return {"sample": sample, "uniform_choices": uniform_choices, "count": count}

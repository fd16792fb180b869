"""Random actions of a kernel ``rollout`` in Numba, equal to the sampler's.

Constants in addition to the sizes of all kernels: N_TYPES, CATEGORIES, LOW and HIGH. CATEGORIES has the choices of each
type, and is empty for continuous actions. These lie between LOW and HIGH, with a number for each agent and type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, uint32

from warpdrive_min.kernels.core_numba import between, choice, philox, split, uniform, word
from warpdrive_min.kernels.noise_numba import number


class Draw(NamedTuple):
    """Device functions for actions: for one word, and for a block's environments."""

    choose: Callable[..., Any]
    draw: Callable[..., Any]
    count: Callable[..., Any]


def drawing(c: Any) -> Draw:
    """Build the device functions with the constants."""
    threads, envs_per_block, n_agents, n_types = c.THREADS, c.ENVS_PER_BLOCK, c.N_AGENTS, c.N_TYPES
    n_items = envs_per_block * n_agents
    if c.CATEGORIES:
        categories = np.array(c.CATEGORIES, np.int32)

        @cuda.jit(device=True)
        def choose(word, agent, action_type):
            """Return one of the choices."""
            return choice(word, categories[action_type])

    else:
        low, high = (np.array(each, np.float32).reshape(n_agents, n_types) for each in (c.LOW, c.HIGH))

        @cuda.jit(device=True)
        def choose(word, agent, action_type):
            """Return a number within the bounds."""
            return between(low[agent, action_type], high[agent, action_type], uniform(word))

    @cuda.jit(device=True)
    def draw(actions, step, draws, seed, stream, n_envs):
        """Write the actions of a launch's step; the caller must synchronise."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = split(item, n_agents)
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                words = (uint32(0), uint32(0), uint32(0), uint32(0))
                for action_type in range(n_types):
                    index = number(draws[env] + step, n_types, action_type)
                    if action_type == 0 or index & uint32(3) == 0:
                        words = philox(index >> uint32(2), env, agent, stream, seed[0], seed[1])
                    action = choose(word(words, index & uint32(3)), agent, action_type)
                    if actions.ndim == 3:
                        actions[env, agent, action_type] = action
                    if actions.ndim == 2:
                        actions[env, agent] = action

    @cuda.jit(device=True)
    def count(draws, n_steps, n_envs):
        """Count the draws of a launch; the caller must have synchronised."""
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                draws[env] += n_steps

    return Draw(choose, draw, count)

"""Both Tags agree with NumPy for any number of agents and blocks."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from envs import ENVS
from tests.agreement import assert_same_bits, free_run, step_from_same_state
from tests.envs.builders import crowd
from tests.support import is_simulated, on_backends, random_tag_config


class Run(NamedTuple):
    """A run of an environment."""

    name: str
    config: dict[str, Any]
    n_envs: int
    n_steps: int
    options: dict[str, Any] = {}  # noqa: RUF012  (nobody changes it)
    """Options of the wrapper."""


def grid(n_agents: int, length: int, **changes: Any) -> dict[str, Any]:
    """Return a config of Tag GridWorld."""
    return {"num_taggers": n_agents - 1, "grid_length": length, **changes}


def agree(run: Run, backend: str, seed: int = 0) -> tuple[int, int]:
    """Compare a run with the reference; count tags and ends."""
    name, config, n_envs, n_steps, options = run
    result, n_tags = step_from_same_state(name, config, backend, n_envs=n_envs, n_steps=n_steps, seed=seed, **options)
    assert result.max_error <= (0 if options.get("exact") else ENVS[name].tolerance), f"seed {seed}, {config}: {result}"
    assert result.n_in_doubt <= 0.1 * result.n_rows  # agents that slide along an edge are all in doubt
    return n_tags, result.n_done


# ------------------------------------------------------------------ random configs


def random_tag(seed: int, few: bool) -> Run:
    """Draw a run of few agents, with compilations shared by two."""
    return Run("tag_continuous", {**random_tag_config(seed // 2), "seed": seed}, *((2, 4) if few else (40, 20)))


def random_crowd(seed: int, few: bool) -> Run:
    """Draw a run of up to 400 agents.

    Two in a row share one compilation.
    """
    generator = np.random.default_rng(seed // 2)
    n_agents = int(generator.integers(2, 30 if few else 400))
    n_taggers = int(generator.integers(1, n_agents))
    config = {
        **random_tag_config(seed // 2),
        "seed": seed,
        "num_taggers": n_taggers,
        "num_runners": n_agents - n_taggers,
        "num_other_agents_observed": int(generator.integers(1, min(n_agents, 40))),
        "neighbor_search": "grid",
    }
    options = {"exact": True, "blocks_per_env": int(generator.integers(1, 6))}
    return Run("tag_continuous", config, *((1, 2) if few else (3, 6)), options)


def random_grid(seed: int, few: bool) -> Run:
    """Draw a run on a tiny grid with early tags.

    Seeds from 80 on have 2 to 6 blocks. Two in a row differ in starts and seed alone, so that they share one
    compilation; exact builds restart in the step.
    """
    generator = np.random.default_rng(seed // 2)
    num_taggers, grid_length = (int(n) for n in generator.integers((1, 2), (12, 5)))
    config = {
        "num_taggers": num_taggers,
        "grid_length": grid_length,
        "episode_length": int(generator.integers(3, 40)),
        "wall_hit_penalty": float(generator.uniform(0, 1)),
        "tag_reward_for_tagger": float(generator.uniform(0, 10)),
        "tag_penalty_for_runner": float(generator.uniform(0, 10)),
        "step_cost_for_tagger": float(generator.uniform(0, 1)),
        "use_full_observation": bool(generator.integers(2)),
        "seed": seed,
    }
    if generator.integers(2):
        config["reset_pool_size"] = int(generator.integers(2, 9))
    else:
        starts = np.random.default_rng(seed).integers(0, grid_length + 1, (2, num_taggers + 1)).tolist()
        config |= {"starting_location_x": starts[0], "starting_location_y": starts[1]}
    is_exact = seed // 2 % 2 == 0
    options = {"exact": is_exact, "auto_reset": is_exact, "blocks_per_env": 1 if seed < 80 else 2 + seed // 2 % 5}
    return Run("tag_gridworld", config, *((2, 3) if few else (80, 20)), options)


LOTS = {
    f"{draw.__name__} {first}": (draw, range(first, first + 4))
    for draw, firsts in (
        (random_tag, range(0, 80, 4)),
        (random_crowd, range(1000, 1020, 4)),
        (random_grid, range(0, 100, 4)),
    )
    for first in firsts[:: 1 if torch.cuda.is_available() else 2]
}
"""Functions that draw runs, with seeds of each lot.

The simulator takes the first.
"""
OF_EACH = [f"random_{each}" for each in ("tag 0", "tag 8", "tag 40", "grid 0", "grid 40", "grid 80")]
OF_EACH += [f"random_crowd {first}" for first in (1000, 1008, 1016)]
"""Lots of every draw: exact or not, one block or several."""
ON_NUMBA = ("random_tag 0", "random_crowd 1000", "random_grid 80")
ON_HOST = (*ON_NUMBA, "random_grid 0")
"""Lots of each kernel; a lot compiles two or more."""


@on_backends("lot", LOTS, numba=ON_NUMBA, host=ON_HOST, pycuda=OF_EACH)
def test_random_configs_agree(lot, backend):
    """Random configs agree with the reference."""
    (draw, seeds), few = LOTS[lot], is_simulated(backend)
    for seed in seeds[:1] if few else seeds:
        n_tags, _ = agree(draw(seed, few), backend, seed)
        assert n_tags > 0 or few, f"seed {seed}: the run must exercise a tag"


# ------------------------------------------------------------------ many agents

MANY = {
    **{
        f"{n_agents} agents, {n_observed} observed": Run(
            "tag_continuous",
            {
                **crowd(n_agents, grid_length=20.0, tagging_distance=0.02, neighbor_search="all_pairs"),
                "num_other_agents_observed": n_observed,
            },
            2,
            8,
        )
        for n_agents, n_observed in ((110, 10), (990, 16))
    },
    "5,000 agents in cells": Run(
        "tag_continuous",
        crowd(5_000, grid_length=0.3 * 5_000**0.5, episode_length=2),
        1,
        2,
        {"exact": True, "auto_reset": True},
    ),
}


@on_backends("case", MANY, numba=["5,000 agents in cells"], host=["110 agents, 10 observed", "5,000 agents in cells"])
def test_many_agents_agree(case, backend):
    """Kernels for more agents than a block's threads agree.

    Every neighbour-search size, and batches.
    """
    run = MANY[case]
    if is_simulated(backend):
        pytest.skip("hundreds of agents take minutes in the simulator")
    n_tags, n_ends = agree(run, backend)
    assert n_tags > 0, "the run must exercise a tag"
    assert n_ends > 0, "the run must end episodes"


FEW = {
    "four cells": Run("tag_gridworld", grid(6, 1, use_full_observation=False), 3, 4, {"exact": True}),
    "cells": Run(
        "tag_continuous",
        crowd(30, grid_length=0.3 * 30**0.5, episode_length=2, tagging_distance=0.2),
        1,
        2,
        {"exact": True, "auto_reset": True},
    ),
}


@on_backends("case", FEW, numba=["cells"])
def test_tags_agree_in_few_steps(case, backend):
    """Backends agree with early tags, within the simulator's few steps too."""
    n_tags, _ = agree(FEW[case], backend)
    assert n_tags > 0


# ------------------------------------------------------------------ blocks that share an environment

BLOCKS = [
    *(("tag_gridworld", full, 5, blocks) for full, blocks in ((False, 2), (True, 4), (True, 1), (False, 1))),
    *(("tag_gridworld", full, 100, blocks) for full, blocks in ((True, 1), (True, 3), (False, 1), (False, 9))),
    ("tag_gridworld", False, 60, 70),
    *(("tag_gridworld", full, 1_000, blocks) for full in (True, False) for blocks in (1, 3)),
    *(("tag_gridworld", False, 10_000, blocks) for blocks in (1, 40)),
    *(("tag_continuous", False, 11, blocks) for blocks in (1, 3)),
    ("tag_continuous", True, 8, 2),
    *(("tag_continuous", False, 100, blocks) for blocks in (1, 3)),
    ("tag_continuous", True, 70, 2),
]
"""Environment, full observation, agents and blocks."""
BY_DAY = [run for run in BLOCKS if run[3] > 1 or run[2] in (5, 11)]
OTHERS_BY_DAY = [("tag_gridworld", True, 1_000, 3), ("tag_gridworld", False, 100, 9), ("tag_continuous", False, 100, 3)]
BLOCKS_ON_HOST = [run for run in BY_DAY if run not in OTHERS_BY_DAY]
"""Without sizes whose kernels are those of other sizes on a CPU."""
BLOCKS_ON_NUMBA = [
    *(("tag_gridworld", False, 5, 2), ("tag_gridworld", False, 60, 70)),
    *(("tag_continuous", False, 11, 3), ("tag_continuous", True, 70, 2)),
]


@functools.lru_cache(maxsize=2)
def run_of_blocks(name, full, n_agents, n_envs, n_steps, backend="cpu", blocks=None):
    """Run an environment on several blocks, with a cached reference."""
    is_grid = name == "tag_gridworld"
    config = grid(n_agents, round(n_agents**0.5), reset_pool_size=4) if is_grid else crowd(n_agents)
    config |= {"episode_length": 2, "use_full_observation": full, "seed": 4}
    options = {} if blocks is None else {"blocks_per_env": blocks}
    return free_run(name, config, backend, n_envs=n_envs, n_steps=n_steps, seed=4, exact=not is_grid, **options)[0]


@on_backends("case", BLOCKS, numba=BLOCKS_ON_NUMBA, host=BLOCKS_ON_HOST, pycuda=BY_DAY)
def test_results_do_not_depend_on_the_number_of_blocks(case, backend):
    """Results do not depend on the number of blocks.

    Cases: agents not divisible by blocks, fewer than blocks, more than a block's threads.
    """
    name, full, n_agents, blocks = case
    if is_simulated(backend) and n_agents > 11:
        pytest.skip("more agents take minutes in the simulator")
    n_envs, n_steps = (1, 3) if is_simulated(backend) else (3, 30 if n_agents <= 100 else 4)
    run = (name, full, n_agents, n_envs, n_steps)
    want = run_of_blocks(*run)
    assert want["_episode_"].min() > 1, "the run must restart episodes"
    assert want["n_terminated"].sum() > 0 or name == "tag_continuous", "the run must exercise a tag"
    assert_same_bits(run_of_blocks(*run, backend, blocks), want)

"""Tag Continuous's kernels against the reference: layouts, ties, limits.

Their agreement over many configs, step by step and bit by bit, is in `test_backends_agree.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from envs.tag_continuous import TagContinuous
from tests.support import is_simulated, on_backends, on_every_other_backend
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.environment import environment_constants, push_environment, seed_resets
from warpdrive_min.errors import CompileError, ConfigError
from warpdrive_min.function_manager import CUDAFunctionManager, LaunchShape

SMALL = {
    "grid_length": 4.0,
    "episode_length": 3,
    "edge_hit_penalty": -0.1,
    "tagging_distance": 0.125,
    "tag_penalty_for_runner": -10.0,
    "tag_reward_for_tagger": 10.0,
    "step_penalty_for_tagger": -0.01,
    "skill_level_tagger": 1.25,
    "seed": 5,
}
LAYOUTS: dict[str, tuple[LaunchShape, int, dict[str, Any]]] = {
    "several environments a block, the last one half empty": (
        LaunchShape(threads=32, envs_per_block=4),
        6,
        {"num_taggers": 2, "num_runners": 6, "use_full_observation": False, "num_other_agents_observed": 3},
    ),
    "full observation": (LaunchShape(threads=32, envs_per_block=4), 6, {"num_taggers": 2, "num_runners": 6}),
    "two agents": (LaunchShape(threads=32, envs_per_block=16), 17, {"num_taggers": 1, "num_runners": 1}),
    "fewer threads than agents": (
        LaunchShape(threads=32, envs_per_block=1),
        2,
        {"num_taggers": 5, "num_runners": 40, "use_full_observation": False, "num_other_agents_observed": 10},
    ),
    "several threads per agent": (
        LaunchShape(threads=192, envs_per_block=1),
        2,
        {"num_taggers": 5, "num_runners": 40, "use_full_observation": False, "num_other_agents_observed": 10},
    ),
    "more neighbours than are searched at a time": (
        LaunchShape(threads=32, envs_per_block=1),
        2,
        {"num_taggers": 3, "num_runners": 36, "use_full_observation": False, "num_other_agents_observed": 35},
    ),
}


class Run:
    """Exact environments on one backend, with a custom launch shape."""

    def __init__(self, backend: str, env: TagContinuous, n_envs: int, shape: LaunchShape) -> None:
        self.data = CUDADataManager(env.num_agents, n_envs, episode_length=env.episode_length, backend=backend)
        functions = CUDAFunctionManager(env.num_agents, n_envs, backend=backend)
        functions.shape = shape
        functions.load(env.kernel_sources, environment_constants(env, auto_reset=True, exact=True))
        push_environment(env, self.data)
        seed_resets(self.data, 11)
        self.step = functions.bind("step", self.data)
        functions.bind("reset", self.data, force=1)()

    def assert_same_bits(self, other: Run, when: str) -> None:
        """Fail unless every array has equal bits."""
        for name in self.data.array_names():
            got, want = self.data.pull_data_from_device(name), other.data.pull_data_from_device(name)
            np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32), err_msg=f"{name} after {when}")


@on_backends("layout", LAYOUTS, numba=("fewer threads than agents",))
def test_every_layout_gives_the_bits_of_the_reference(layout, backend):
    """Each launch shape is bit-identical to the reference.

    The run includes tags and restarts.
    """
    shape, n_envs, config = LAYOUTS[layout]
    if is_simulated(backend) and shape.envs_per_block == 1:
        n_envs = 1
    env = TagContinuous(**SMALL, **config)
    got, want = (Run(each, env, n_envs, shape) for each in (backend, "cpu"))
    got.assert_same_bits(want, "reset")
    generator = np.random.default_rng(0)
    n_tags = 0
    for step in range(4 if is_simulated(backend) else 60):
        actions = torch.from_numpy(generator.integers(0, 11, (n_envs, env.num_agents, 2)).astype(np.int32))
        for run in (got, want):
            run.data.tensor("sampled_actions").copy_(actions)
            run.step()
        got.assert_same_bits(want, f"step {step}")
        n_tags += int((want.data.tensor("rewards") > 5).sum())
    assert n_tags > 0, "the run must exercise a tag"
    assert want.data.tensor("_episode_").max() > 1, "the run must restart episodes"


@on_backends("n_observed", [3, 10, 20], numba=[10])
def test_equal_distances_are_ordered_by_id(n_observed, backend):
    """Neighbours at equal distances are ordered by id.

    Agents are on a lattice, with shuffled ids.
    """
    lattice = np.random.default_rng(1).permutation(np.stack(np.meshgrid(range(5), range(5)), -1).reshape(-1, 2))
    env = TagContinuous(
        num_taggers=1,
        num_runners=24,
        use_full_observation=False,
        num_other_agents_observed=n_observed,
        starting_location_x=lattice[:, 0],
        starting_location_y=lattice[:, 1],
        starting_directions=np.arange(25) / 5,
    )
    got, want = (Run(each, env, 1, LaunchShape(threads=32, envs_per_block=1)) for each in (backend, "cpu"))
    got.assert_same_bits(want, "reset")


@on_backends("threads", [32, 192], numba=[32])
def test_almost_equal_distances_are_ordered(threads, backend):
    """Neighbours are in order if distances differ by rounding only.

    Agents are near points of a lattice, several at some of them.
    """
    generator = np.random.default_rng(2)
    place = generator.integers(2, 8, (2, 45)) + generator.integers(-3, 4, (2, 45)) * np.spacing(np.float32(4))
    env = TagContinuous(
        num_taggers=1,
        num_runners=44,
        use_full_observation=False,
        num_other_agents_observed=10,
        starting_location_x=place[0],
        starting_location_y=place[1],
        starting_directions=np.zeros(45),
    )
    got, want = (Run(each, env, 1, LaunchShape(threads=threads, envs_per_block=1)) for each in (backend, "cpu"))
    got.assert_same_bits(want, "reset")


@on_every_other_backend
def test_equal_taggers_and_the_edge_of_the_reach(backend):
    """The lower id of two equally near taggers tags.

    A runner exactly at the reach is safe.
    """
    config = {**SMALL, "num_taggers": 2, "num_runners": 3, "grid_length": 8.0, "step_penalty_for_tagger": 0.0}
    drawn = TagContinuous(**config)
    (low, high), (between, at_reach, far) = list(drawn.taggers), list(drawn.runners)
    x, y = np.zeros(5), np.full(5, 4.0)
    x[[low, high, between, at_reach, far]] = [3.5, 4.5, 4.0, 5.5, 8.0]
    env = TagContinuous(**config, starting_location_x=x, starting_location_y=y)
    run = Run(backend, env, 1, LaunchShape(threads=32, envs_per_block=1))
    run.step()
    rewards = run.data.pull_data_from_device("rewards")[0]
    assert rewards[[low, high, between, at_reach, far]].tolist() == [10, 0, -10, 0, 0]


@on_every_other_backend
def test_too_many_agents_are_refused(backend):
    """Agents that exceed a block's shared memory raise.

    The launch would crash.
    """
    env = TagContinuous(num_taggers=100, num_runners=2400, use_full_observation=False)
    functions = CUDAFunctionManager(env.num_agents, 1, backend=backend)
    with pytest.raises((CompileError, ConfigError), match=f"48 KiB, {27 if backend == 'numba' else 23} bytes an agent"):
        functions.load(env.kernel_sources, environment_constants(env))


def test_many_agents_may_see_all_others():
    """Full observations need no memory for neighbours."""
    env = TagContinuous(num_taggers=10, num_runners=590, use_full_observation=True, neighbor_search="all_pairs")
    functions = CUDAFunctionManager(env.num_agents, 1, backend="host")
    assert functions.load(env.kernel_sources, environment_constants(env)) == ["step", "reset"]

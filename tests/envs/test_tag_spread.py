"""Tag Continuous for many agents: blocks that share an environment, and neighbours from a grid of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from envs import CartPole, TagContinuous, TagGridWorld
from tests.agreement import assert_same_bits, free_run, start
from tests.envs.builders import crowd
from tests.support import OTHER_BACKENDS, is_simulated
from warpdrive_min.errors import ConfigError
from warpdrive_min.policies import random_policy

others = pytest.mark.parametrize("backend", OTHER_BACKENDS)


def run(backend: str, settings: dict[str, Any], n_envs: int, n_steps: int, **options: Any) -> dict[str, np.ndarray]:
    """Return the arrays at the end of an exact run."""
    arrays, _ = free_run("tag_continuous", settings, backend, n_envs=n_envs, n_steps=n_steps, exact=True, **options)
    return arrays


# ------------------------------------------------------------------ cells, all pairs, blocks


@others
@pytest.mark.parametrize("changes", [{"neighbor_search": "all_pairs"}, {"neighbor_search": "auto"}])
def test_cells_and_all_pairs_give_the_same_bits(changes, backend):
    """The grid changes how neighbours are found, not who they are; more of them than are searched at a time, too."""
    n_agents, n_envs, n_steps = (24, 1, 2) if is_simulated(backend) else (400, 2, 10)
    many = {"num_other_agents_observed": 20}
    cells = run(backend, crowd(n_agents, **many), n_envs, n_steps, blocks_per_env=2)
    assert_same_bits(run(backend, crowd(n_agents, **many, **changes), n_envs, n_steps, blocks_per_env=2), cells)


@others
def test_agents_in_one_place_are_ordered_by_id(backend):
    """Everybody stands in one corner: all distances are 0, and the neighbours are the lowest ids."""
    settings = crowd(
        12,
        starting_location_x=[0.0] * 12,
        starting_location_y=[10.0] * 12,
        starting_directions=[0.0] * 12,
        num_other_agents_observed=3,
        num_acceleration_levels=0,
    )
    wrapper = start("tag_continuous", settings, backend, 1, exact=True)
    is_tagger = wrapper.env.agent_types == 1
    types = wrapper.cuda_data_manager.pull_data_from_device("observations")[0, :, 5 * 3 : 6 * 3]
    for agent in range(12):
        nearest = [other for other in range(12) if other != agent][:3]
        np.testing.assert_array_equal(types[agent], is_tagger[nearest])
    random_policy(wrapper, 0)()
    wrapper.step()
    rewards = wrapper.cuda_data_manager.pull_data_from_device("rewards")[0]
    assert rewards[is_tagger].tolist() == [10.0 * 11], "one tagger catches all"


@others
def test_fewer_neighbours_than_observed_are_padded(backend):
    """When the last runner is out, the tagger sees nobody."""
    settings = crowd(
        3,
        num_other_agents_observed=2,
        starting_location_x=[5.0, 5.0, 5.0],
        starting_location_y=[5.0, 5.0, 5.0],
        starting_directions=[0.0] * 3,
        num_acceleration_levels=0,
    )
    wrapper = start("tag_continuous", settings, backend, 1)
    draw, data = random_policy(wrapper, 0), wrapper.cuda_data_manager
    for _ in range(2):
        draw()
        wrapper.step()
    tagger = int(np.flatnonzero(wrapper.env.agent_types == 1)[0])
    observation = data.pull_data_from_device("observations")[0, tagger]
    assert observation[:-1].tolist() == [0.0] * 14
    assert observation[-1] == np.float32(2 / 6)
    assert data.pull_data_from_device("terminated").tolist() == [1]


# ------------------------------------------------------------------ how the kernels are chosen


@pytest.mark.parametrize(
    ("n_agents", "search", "asked", "language", "want"),
    [
        (256, "auto", None, "cuda_c", (False, 1)),
        (257, "auto", None, "cuda_c", (True, 2)),
        (10_000, "auto", None, "numba", (True, 40)),
        (10_000, "auto", None, "numpy", (False, 1)),
        (1_000, "all_pairs", None, "cuda_c", (False, 1)),
        (1_025, "all_pairs", None, "cuda_c", (True, 5)),
        (20, "grid", None, "cuda_c", (True, 1)),
        (20, "auto", 2, "numba", (True, 2)),
        (600, "auto", 1, "cuda_c", (False, 1)),
    ],
)
def test_kernels_for_many_agents_are_chosen_by_size_or_request(n_agents, search, asked, language, want):
    """From 257 agents on, for a grid of cells, and for several blocks."""
    env = TagContinuous(**crowd(n_agents, neighbor_search=search))
    blocks = env.settle_blocks(asked, language)
    assert (env.is_spread, blocks) == want
    assert bool(env.kernel_sequences(auto_reset=True)) == env.is_spread


def test_workspace_grows_with_the_agents_not_with_their_square():
    """No array of 10,000 agents that observe 10 others has more than an observation's share for each agent."""
    wrapper = start("tag_continuous", crowd(10_000, grid_length=30.0), "host", 1)
    data = wrapper.cuda_data_manager
    largest = max(data.array_names(), key=lambda name: data.tensor(name).numel())
    assert largest in ("observations", "final_observations")
    assert data.tensor(largest).numel() == 10_000 * 71
    assert torch.isfinite(data.tensor("observations")).all()


def test_an_environment_of_one_block_refuses_more():
    """CartPole has no kernels that blocks could share."""
    with pytest.raises(ConfigError, match=r"one block steps an environment 'CartPole' .got 2"):
        CartPole().settle_blocks(2, "cuda_c")
    assert CartPole().settle_blocks(None, "cuda_c") == 1


def test_blocks_share_an_environment_only_where_asked():
    """One block for any number of agents, and always in NumPy; an environment that had several forgets them."""
    env = TagGridWorld(num_taggers=9_999, use_full_observation=False)
    for asked, language, want in [
        (None, "cuda_c", 1),
        (40, "cuda_c", 40),
        (1, "cuda_c", 1),
        (2, "numba", 2),
        (2, "numpy", 1),
    ]:
        assert env.settle_blocks(asked, language) == want
        assert env.is_spread == bool(env.kernel_sequences(auto_reset=True)) == (want > 1)
        name = "spread.cu" if want > 1 else "kernel.cu"
        assert env.kernel_sources["cuda_c"].name == name
    assert set(env.get_data_dictionary()) == {"loc_x", "loc_y", "loc_x_reset_pool", "loc_y_reset_pool"}

"""Tag Continuous for many agents: blocks that share an environment, and neighbours from a grid of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from envs import CartPole, TagContinuous
from tests.agreement import start, step_from_same_state
from tests.support import OTHER_BACKENDS, is_simulated, random_tag_config
from warpdrive_min.errors import ConfigError
from warpdrive_min.policies import random_policy

others = pytest.mark.parametrize("backend", OTHER_BACKENDS)


def config(n_agents: int, **changes: Any) -> dict[str, Any]:
    """Return a config in which a tenth of the agents tag and many are close together."""
    n_taggers = max(1, n_agents // 10)
    return {
        "num_taggers": n_taggers,
        "num_runners": n_agents - n_taggers,
        "grid_length": 10.0,
        "episode_length": 6,
        "max_acceleration": 0.3,
        "min_acceleration": -0.3,
        "use_full_observation": False,
        "num_other_agents_observed": min(10, n_agents - 1),
        "tagging_distance": 0.03,
        "edge_hit_penalty": -0.5,
        "tag_reward_for_tagger": 10.0,
        "neighbor_search": "grid",
        **changes,
    }


def run(backend: str, settings: dict[str, Any], n_envs: int, n_steps: int, **options: Any) -> dict[str, np.ndarray]:
    """Run exact builds with auto-reset and random actions; returns the arrays but for the kernels' workspace."""
    wrapper = start("tag_continuous", settings, backend, n_envs, seed=2, exact=True, auto_reset=True, **options)
    draw, data = random_policy(wrapper, 2), wrapper.cuda_data_manager
    for _ in range(n_steps):
        draw()
        wrapper.step()
    names = [name for name in data.array_names() if not data.attribute(name, "scratch", False)]
    return {name: data.pull_data_from_device(name) for name in names}


def assert_same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name in set(got) & set(want):
        np.testing.assert_array_equal(got[name].view(np.int32), want[name].view(np.int32), err_msg=name)


# ------------------------------------------------------------------ against the oracle


@others
def test_five_thousand_agents_agree_with_the_oracle(backend):
    """Exact builds of 5,000 agents (30 in the simulator) give the oracle's bits step by step, with tags and an end."""
    n_agents = 30 if is_simulated(backend) else 5_000
    reach = 0.2 if is_simulated(backend) else 0.03
    settings = config(n_agents, grid_length=0.3 * n_agents**0.5, episode_length=2, tagging_distance=reach)
    result, n_tagged = step_from_same_state(
        "tag_continuous", settings, backend, n_envs=1, n_steps=2, exact=True, auto_reset=True
    )
    assert result.max_error == 0, str(result)
    assert n_tagged > 0, "the run must exercise a tag"
    assert result.n_done == 1


@others
@pytest.mark.parametrize("first_seed", [1000, 1010])
def test_crowds_agree_in_random_configs(first_seed, backend):
    """Ten random configs (one in the simulator) of up to 400 agents in up to 5 blocks give the oracle's bits."""
    for seed in range(first_seed, first_seed + (1 if is_simulated(backend) else 10)):
        generator = np.random.default_rng(seed)
        n_agents = int(generator.integers(2, 30 if is_simulated(backend) else 400))
        n_taggers = int(generator.integers(1, n_agents))
        settings = {
            **random_tag_config(seed),
            "num_taggers": n_taggers,
            "num_runners": n_agents - n_taggers,
            "num_other_agents_observed": int(generator.integers(1, min(n_agents, 40))),
            "neighbor_search": "grid",
        }
        result, n_tagged = step_from_same_state(
            "tag_continuous",
            settings,
            backend,
            n_envs=1 if is_simulated(backend) else 3,
            n_steps=2 if is_simulated(backend) else 12,
            seed=seed,
            exact=True,
            blocks_per_env=int(generator.integers(1, 6)),
        )
        assert result.max_error == 0, f"seed {seed}: {result}"
        assert n_tagged > 0 or is_simulated(backend), f"seed {seed}, {settings}: the run must exercise a tag"


# ------------------------------------------------------------------ cells, all pairs, blocks


@others
@pytest.mark.parametrize("changes", [{"neighbor_search": "all_pairs"}, {"neighbor_search": "auto"}])
def test_cells_and_all_pairs_give_the_same_bits(changes, backend):
    """The grid changes how neighbours are found, not who they are; more of them than are searched at a time, too."""
    n_agents, n_envs, n_steps = (24, 1, 2) if is_simulated(backend) else (400, 2, 10)
    many = {"num_other_agents_observed": 20}
    cells = run(backend, config(n_agents, **many), n_envs, n_steps, blocks_per_env=2)
    assert_same(run(backend, config(n_agents, **many, **changes), n_envs, n_steps, blocks_per_env=2), cells)


@others
@pytest.mark.parametrize("blocks", [1, 3])
def test_results_do_not_depend_on_the_number_of_blocks(blocks, backend):
    """Agents that do not divide over the blocks included."""
    n_agents, n_envs, n_steps = (11, 1, 3) if is_simulated(backend) else (100, 3, 15)
    settings = config(n_agents)
    assert_same(run(backend, settings, n_envs, n_steps, blocks_per_env=blocks), run("cpu", settings, n_envs, n_steps))


@others
def test_full_observation_is_spread_too(backend):
    """Everybody is observed, in the order of the ids."""
    n_agents, n_envs, n_steps = (8, 1, 2) if is_simulated(backend) else (70, 2, 10)
    settings = config(n_agents, use_full_observation=True)
    assert_same(run(backend, settings, n_envs, n_steps, blocks_per_env=2), run("cpu", settings, n_envs, n_steps))


@others
def test_agents_in_one_place_are_ordered_by_id(backend):
    """Everybody stands in one corner: all distances are 0, and the neighbours are the lowest ids."""
    settings = config(
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
    settings = config(
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
    env = TagContinuous(**config(n_agents, neighbor_search=search))
    blocks = env.settle_blocks(asked, language)
    assert (env.is_spread, blocks) == want
    assert bool(env.kernel_sequences(auto_reset=True)) == env.is_spread


def test_workspace_grows_with_the_agents_not_with_their_square():
    """No array of 10,000 agents that observe 10 others has more than an observation's share for each agent."""
    wrapper = start("tag_continuous", config(10_000, grid_length=30.0), "host", 1)
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

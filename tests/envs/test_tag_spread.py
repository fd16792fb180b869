"""Tag Continuous for many agents: shared blocks, neighbours from grid cells."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from envs import CartPole, TagContinuous, TagGridWorld
from envs.tag_continuous import env as tag_continuous
from tests.agreement import assert_same_bits, free_run, start
from tests.envs.builders import crowd, read, step, write
from tests.support import is_simulated, on_backends
from warpdrive_min.errors import ConfigError

SEARCHES = [(search, n, 2) for search in ("grid", "all_pairs", "auto") for n in (1, 10, 20)]
SEARCHES += [(search, n, 1) for search in ("grid", "all_pairs") for n in (1, 10)]
"""Search, observed agents and blocks: also more neighbours than one search finds."""
ON_HOST = [
    ("grid", 1, 2),
    ("grid", 20, 2),
    ("all_pairs", 20, 2),
    ("auto", 20, 2),
    ("grid", 10, 1),
    ("all_pairs", 10, 1),
]
"""By day: each search on one block and two."""


@functools.cache
def run(backend: str, n_observed: int, search: str = "grid", blocks: int | None = None, *, few: bool) -> Any:
    """Return the arrays at the end of an exact run."""
    n_agents, n_envs, n_steps = (24, 1, 2) if few else (400, 3, 12)
    settings = crowd(n_agents, num_other_agents_observed=n_observed, neighbor_search=search)
    options = {"n_envs": n_envs, "n_steps": n_steps, "exact": True, "blocks_per_env": blocks}
    return free_run("tag_continuous", settings, backend, **options)[0]


def assert_as_reference(backend: str, n_observed: int, *given: Any) -> None:
    """Assert that a run has the bits of the reference."""
    few = is_simulated(backend)
    got, want = run(backend, n_observed, *given, few=few), run("cpu", n_observed, few=few)
    assert_same_bits({name: got[name] for name in want}, want)


# ------------------------------------------------------------------ cells, all pairs, blocks


@on_backends("case", SEARCHES, numba=[("all_pairs", 20, 2), ("grid", 10, 1)], host=ON_HOST)
def test_every_search_sees_what_the_reference_sees(case, backend):
    """Cells and all pairs, on one block or two, are bit-identical to the reference.

    One block sorts agents by cell in shared memory, or scans all.
    """
    search, n_observed, blocks = case
    assert_as_reference(backend, n_observed, search, blocks)


@on_backends("blocks", [1, 3], numba=[3])
def test_cells_that_are_added_up_in_parts_give_the_same_bits(blocks, backend, monkeypatch):
    """Counting cells in parts gives the same bits.

    Parts, also more than blocks, change only the order of the count.
    """
    for name in ("ONE_PART", "CELLS_OF_A_PART"):
        monkeypatch.setattr(tag_continuous, name, 1)
    monkeypatch.setattr(tag_continuous, "AGENTS_OF_OUT_CELL", 5)
    assert_as_reference(backend, 11, "grid", blocks)  # 11: more than one block has room for
    env = TagContinuous(**crowd(24 if is_simulated(backend) else 400, num_other_agents_observed=11))
    assert env.settle_blocks(blocks, "cuda_c") < env.cell_parts
    assert [name for name, _ in env.kernel_sequences(auto_reset=False)["step"]][:3] == ["move", "parts", "offsets"]


ONE_PLACE = {"starting_directions": 0.0, "starting_location_x": 0.0, "starting_location_y": 10.0}
"""Start of all agents: one corner."""


@on_backends("case", [(12, 3), (3, 2)], numba=[(12, 3)])
def test_agents_in_one_place_see_what_the_reference_sees(case, backend):
    """Agents in one place have the reference's observations.

    All distances are 0, or agents are too few; one tagger catches all, and nobody remains visible.
    """
    n_agents, n_observed = case
    starts = {key: [value] * n_agents for key, value in ONE_PLACE.items()}
    settings = crowd(n_agents, num_other_agents_observed=n_observed, num_acceleration_levels=0, **starts)
    pair = [start("tag_continuous", settings, each, 1, exact=True) for each in (backend, "cpu")]
    for n_runners in (n_agents - 1, 0, 0):
        got, want = ({key: read(each, key) for key in ("observations", "rewards", "num_runners")} for each in pair)
        assert_same_bits(got, want)
        assert want["num_runners"].item() == n_runners
        for wrapper in pair:
            wrapper.step()


@on_backends("n_runners", [0, 1, 20, 200], numba=[], host=[1, 20])
def test_few_agents_in_the_game_see_what_the_reference_sees(n_runners, backend):
    """A grid of fewer cells, for fewer agents in the game, gives the same bits."""
    n_agents = 24 if is_simulated(backend) else 400
    settings = crowd(n_agents, num_other_agents_observed=10, num_acceleration_levels=2, num_turn_levels=2)
    pair = [start("tag_continuous", settings, each, 2, exact=True, auto_reset=True) for each in (backend, "cpu")]
    is_tagger = pair[0].env.agent_types == 1
    is_left = is_tagger | (np.cumsum(~is_tagger) <= n_runners)
    for wrapper in pair:
        write(wrapper, "still_in_the_game", is_left)
        write(wrapper, "num_runners", is_left.sum() - is_tagger.sum())
    for n in range(8):  # an episode ends after the sixth
        for wrapper in pair:
            step(wrapper, np.full((2, n_agents, 2), n % 3))
        got, want = ({key: read(each, key) for key in ("observations", "rewards", "num_runners")} for each in pair)
        assert_same_bits(got, want)


# ------------------------------------------------------------------ choice of kernels


@pytest.mark.parametrize(
    ("n_agents", "search", "asked", "language", "want"),
    [
        (256, "auto", None, "cuda_c", (False, 1)),
        (257, "auto", None, "cuda_c", (False, 1)),
        (257, "auto", None, "numba", (False, 1)),
        (1_025, "auto", None, "cuda_c", (True, 5)),
        (10_000, "auto", None, "numba", (True, 40)),
        (10_000, "auto", None, "numpy", (False, 1)),
        (1_000, "all_pairs", None, "cuda_c", (False, 1)),
        (1_025, "all_pairs", None, "cuda_c", (True, 5)),
        (20, "grid", None, "cuda_c", (False, 1)),
        (20, "grid", 1, "numba", (False, 1)),
        (20, "auto", 2, "numba", (True, 2)),
        (600, "auto", 1, "cuda_c", (False, 1)),
    ],
)
def test_kernels_for_many_agents_are_chosen_by_size_or_request(n_agents, search, asked, language, want):
    """Size or request chooses the kernels for many agents.

    They run from 257 agents on, for a grid of cells, and for several blocks.
    """
    env = TagContinuous(**crowd(n_agents, neighbor_search=search))
    blocks = env.settle_blocks(asked, language)
    assert (env.is_spread, blocks) == want
    assert bool(env.kernel_sequences(auto_reset=True)) == env.is_spread


def test_a_million_agents_are_the_most():
    """Config takes 1,048,576 agents, and refuses one more."""
    assert TagContinuous(num_taggers=2**19, num_runners=2**19).num_agents == 2**20
    with pytest.raises(ConfigError, match="at most 1,048,576 agents"):
        TagContinuous(num_taggers=2**19, num_runners=2**19 + 1)


def test_workspace_grows_with_the_agents_not_with_their_square():
    """Workspace grows linearly with the number of agents.

    10,000 agents with 10 neighbours: no array exceeds an observation per agent.
    """
    wrapper = start("tag_continuous", crowd(10_000, grid_length=30.0), "host", 1)
    data = wrapper.cuda_data_manager
    largest = max(data.array_names(), key=lambda name: data.tensor(name).numel())
    assert largest in ("observations", "final_observations")
    assert data.tensor(largest).numel() == 10_000 * 71
    assert torch.isfinite(data.tensor("observations")).all()


def test_an_environment_of_one_block_refuses_more():
    """An environment of one block refuses more.

    CartPole has no kernels for shared environments.
    """
    with pytest.raises(ConfigError, match=r"one block steps an environment 'CartPole' .got 2"):
        CartPole().settle_blocks(2, "cuda_c")
    assert CartPole().settle_blocks(None, "cuda_c") == 1


def test_blocks_share_an_environment_only_where_asked():
    """Blocks share an environment only on request, never in NumPy."""
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

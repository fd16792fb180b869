"""Sampler: distributions, seeds, several arrays. Its kernel has separate tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.core import builders
from tests.support import is_simulated, managers, on_every_backend, on_every_other_backend, push
from warpdrive_min import CUDADataManager, CUDASampler

N_ENVS, N_AGENTS = 2, 5


def sampler_of(backend: str, *categories: int, n_envs: int = N_ENVS, n_agents: int = N_AGENTS, seed: int | None = 0):
    """Return a sampler of ``sampled_actions``, by default of 3 choices."""
    return builders.sampler_of(backend, n_envs, n_agents, seed=seed, categories=categories or (3,))


def rows(data: CUDADataManager, row: list[float], n_agents: int = N_AGENTS) -> torch.Tensor:
    """Return the same distribution for every agent."""
    return torch.tensor(row, device=data.device).expand(data.n_envs, n_agents, -1).contiguous()


def draw(
    data: CUDADataManager, sampler: CUDASampler, distribution: torch.Tensor, n: int, **options: object
) -> np.ndarray:
    """Return n draws, (n, n_envs, n_agents, n_types)."""
    draws = []
    for _ in range(n):
        sampler.sample(data, distribution, **options)
        draws.append(data.pull_data_from_device("sampled_actions"))
    return np.stack(draws)


# ------------------------------------------------------------------ distributions


@on_every_other_backend
def test_blocks_that_share_an_environment_draw_the_same(backend):
    """Blocks that share an environment draw the reference's actions.

    Some agents are beyond a block; an environment counts one draw.
    """
    n_envs, n_agents, n_draws = (1, 257, 2) if is_simulated(backend) else (3, 1500, 9)
    weights = torch.from_numpy(np.random.default_rng(4).random((n_envs, n_agents, 3), np.float32))
    drawn = []
    for each in (backend, "cpu"):
        data, sampler = sampler_of(each, n_envs=n_envs, n_agents=n_agents, seed=6)
        drawn.append(draw(data, sampler, weights.to(data.device), n_draws))
        assert data.pull_data_from_device("sampled_actions_draws").tolist() == [n_draws] * n_envs
        sampler.sample(data, weights.to(data.device), use_argmax=True)
        assert data.pull_data_from_device("sampled_actions_draws").tolist() == [n_draws] * n_envs
    np.testing.assert_array_equal(*drawn)
    assert (drawn[0][0] != drawn[0][1]).any()


@on_every_backend
@pytest.mark.parametrize(("n_envs", "n_agents", "categories"), [(70, 1, (2,)), (3, 5, (3, 1, 7)), (2, 257, (21, 2))])
def test_uniform_draws_are_those_from_equal_weights(backend, n_envs, n_agents, categories):
    """Random actions are drawn without weights, and equal draws from equal ones."""
    n_draws = 5
    if is_simulated(backend):
        n_envs, n_draws = min(n_envs, 2), 2
    drawn = {}
    for is_uniform in (True, False):
        data, sampler = sampler_of(backend, *categories, n_envs=n_envs, n_agents=n_agents, seed=3)
        if is_uniform:
            launch = sampler.bound_random(data, (), "sampled_actions")
        else:
            launch = sampler.bound(data, rows(data, [1.0] * sum(categories), n_agents), "sampled_actions")
        actions = []
        for _ in range(n_draws):
            launch()
            actions.append(data.pull_data_from_device("sampled_actions"))
        drawn[is_uniform] = np.stack(actions)
        assert data.pull_data_from_device("sampled_actions_draws").tolist() == [n_draws] * n_envs
    np.testing.assert_array_equal(drawn[True], drawn[False])
    assert drawn[True].max(axis=(0, 1, 2)).tolist() == [n - 1 for n in categories]


# ------------------------------------------------------------------ seeds and state


@on_every_backend
def test_seeding_again_repeats_the_draws(backend):
    """Seeding again repeats the draws, before or after registration."""
    data, sampler = sampler_of(backend, seed=5)
    distribution = rows(data, [0.3, 0.3, 0.4])
    first = draw(data, sampler, distribution, 4)
    second = draw(data, sampler, distribution, 4)
    sampler.init_random(5)
    np.testing.assert_array_equal(draw(data, sampler, distribution, 4), first)
    sampler.init_random(6)
    other = draw(data, sampler, distribution, 4)
    assert (first != second).any()
    assert (first != other).any()

    data, functions = managers(backend, N_AGENTS, N_ENVS)
    push(data, "sampled_actions", np.zeros((N_ENVS, N_AGENTS, 1), np.int32))
    early = CUDASampler(functions)
    early.init_random(5)
    early.register_actions(data, "sampled_actions", np.int64(3))
    np.testing.assert_array_equal(draw(data, early, rows(data, [0.3, 0.3, 0.4]), 4), first)


def test_seed_from_the_clock_differs_each_time():
    """Without a seed no two runs are alike."""
    runs = []
    for _ in range(2):
        data, sampler = sampler_of("cpu", 1000, seed=None)
        sampler.init_random()
        runs.append(draw(data, sampler, rows(data, [1.0] * 1000), 2))
    assert (runs[0] != runs[1]).any()


# ------------------------------------------------------------------ assign


def test_sample_reads_the_tensor_it_is_given_each_time():
    """Each draw reads the given tensor's current values."""
    data, sampler = sampler_of("cpu")
    first, second = rows(data, [1.0, 0, 0]), rows(data, [0, 0, 1.0])
    for distribution, want in ((first, 0), (second, 2), (first, 0)):
        assert (draw(data, sampler, distribution, 1) == want).all()
    first.copy_(second)
    assert (draw(data, sampler, first, 1) == 2).all()


# ------------------------------------------------------------------ assign


def test_assign_writes_actions():
    """`assign` replaces a draw by an array of NumPy or torch."""
    data, sampler = sampler_of("cpu")
    want = np.arange(10, dtype=np.int32).reshape(2, 5, 1)
    sampler.assign(data, want, "sampled_actions")
    np.testing.assert_array_equal(data.pull_data_from_device("sampled_actions"), want)
    sampler.assign(data, torch.zeros((2, 5, 1), dtype=torch.int32), "sampled_actions")
    assert not data.tensor("sampled_actions").any()


@on_every_backend
@pytest.mark.parametrize("is_continuous", [False, True])
def test_array_of_one_type_may_lack_the_axis_of_types(backend, is_continuous):
    """Arrays of one type may lack the axis of types."""
    got = []
    for shape in ((2, 5, 1), (2, 5)):
        data, functions = managers(backend, n_agents=5, n_envs=2)
        push(data, "sampled_actions", np.zeros(shape, np.float32 if is_continuous else np.int32))
        sampler = CUDASampler(functions)
        sampler.init_random(3)
        sampler.register_actions(data, "sampled_actions", 1 if is_continuous else 3, is_deterministic=is_continuous)
        given = rows(data, [0.7] if is_continuous else [0.2, 0.3, 0.5])
        for use_argmax in (False, True):
            sampler.sample(data, given, use_argmax=use_argmax)
            got.append(data.pull_data_from_device("sampled_actions").reshape(2, 5))
        sampler.assign(data, np.ones(shape, got[-1].dtype), "sampled_actions")
    np.testing.assert_array_equal(got[0], got[2])
    np.testing.assert_array_equal(got[1], got[3])
    assert len(np.unique(got[0])) > 1

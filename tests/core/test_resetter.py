"""The resetter: saved copies, pools, custom and own kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.environments.counter import Counter
from tests.support import managers, on_every_backend, push
from warpdrive_min import CUDADataManager, CUDAEnvironmentReset, DataFeed, EnvWrapper
from warpdrive_min.errors import ConfigError, DataError
from warpdrive_min.rng import pool_row, seed_words

SAVED = {
    "flat": np.array([np.nan, 2.5], np.float32),
    "flat_int": np.array([1, 2], np.int32),
    "table": np.arange(6, dtype=np.float32).reshape(2, 3),
    "table_int": np.arange(6, dtype=np.int32).reshape(2, 3),
    "deep": np.arange(48, dtype=np.float32).reshape(2, 3, 2, 4),
    "flags": np.ones((2, 4), bool),
}


def saved(backend: str, blocks: int = 1) -> tuple[CUDADataManager, CUDAEnvironmentReset]:
    """Return overwritten arrays with saved copies, and two without."""
    data, functions = managers(backend, blocks=blocks)
    for name, value in SAVED.items():
        push(data, name, value, save_copy_and_apply_at_reset=True)
        data.tensor(name).zero_()
    push(data, "other", np.ones((2, 3), np.float32))
    data.tensor("other").fill_(5)
    data.tensor("_timestep_").fill_(3)
    return data, CUDAEnvironmentReset(functions)


def pooled(backend: str, n_envs: int, n_rows: int, seed: int = 0) -> tuple[CUDADataManager, CUDAEnvironmentReset]:
    """Return two targets, and pools whose rows contain their index."""
    data, functions = managers(backend, n_envs=n_envs)
    feed = DataFeed()
    feed.add_data("place", np.full((n_envs, 3), -1, np.float32))
    feed.add_data("label", np.full(n_envs, -1, np.int32))
    feed.add_pool_for_reset("place_reset_pool", np.repeat(np.arange(n_rows)[:, None] + 0.5, 3, axis=1), "place")
    feed.add_pool_for_reset("label_reset_pool", np.arange(n_rows), "label")
    data.push_data_to_device(feed)
    resetter = CUDAEnvironmentReset(functions)
    resetter.init_reset_pool(data, seed)
    return data, resetter


# ------------------------------------------------------------------ saved copies


@on_every_backend
@pytest.mark.parametrize("blocks", [1, 2])
def test_only_finished_environments_are_restored(blocks, backend):
    """Only a finished environment's rows are restored, for any rank."""
    data, resetter = saved(backend, blocks)
    data.tensor("_done_")[0] = 1
    resetter.reset_when_done(data)
    for name, value in SAVED.items():
        np.testing.assert_array_equal(
            data.pull_data_from_device(name), [value[0], np.zeros_like(value[1])], err_msg=name
        )
    assert (data.pull_data_from_device("other") == 5).all()
    assert data.pull_data_from_device("_done_").tolist() == [0, 0]
    assert data.pull_data_from_device("_timestep_").tolist() == [0, 3]
    assert data.pull_data_from_device("_episode_").tolist() == [1, 0]


@on_every_backend
def test_force_restores_all(backend):
    """A forced reset restores every environment, finished or not."""
    data, resetter = saved(backend)
    resetter.reset_when_done(data, "force_reset")
    for name, value in SAVED.items():
        np.testing.assert_array_equal(data.pull_data_from_device(name), value, err_msg=name)
    assert data.pull_data_from_device("_timestep_").tolist() == [0, 0]
    assert data.pull_data_from_device("_episode_").tolist() == [1, 1]


@on_every_backend
def test_arrays_pushed_after_a_reset_are_restored_too(backend):
    """Arrays pushed after a reset are restored too.

    A reset with none done leaves the new array; one by force restores it.
    """
    data, resetter = saved(backend)
    resetter.reset_when_done(data, "force_reset")
    resetter.reset_when_done(data)
    push(data, "late", np.ones((2, 3), np.float32), save_copy_and_apply_at_reset=True)
    data.tensor("late").fill_(4)
    data.tensor("_timestep_").fill_(3)
    resetter.reset_when_done(data)
    assert (data.pull_data_from_device("late") == 4).all()
    assert data.pull_data_from_device("_timestep_").tolist() == [3, 3]
    resetter.reset_when_done(data, "force_reset")
    assert (data.pull_data_from_device("late") == 1).all()


@on_every_backend
def test_done_flag_of_any_value_counts(backend):
    """A done flag of 2 ("goal reached") counts as 1 does."""
    data, resetter = saved(backend)
    data.tensor("_done_").copy_(torch.tensor([0, 2]))
    resetter.reset_when_done(data)
    assert data.pull_data_from_device("flat").tolist() == [0, 2.5]


@on_every_backend
def test_done_can_be_kept(backend):
    """Flags and timesteps can be kept while arrays are restored."""
    data, resetter = saved(backend)
    data.tensor("_done_")[1] = 1
    resetter.reset_when_done(data, undo_done_after_reset=False)
    assert data.pull_data_from_device("flat").tolist() == [0, 2.5]
    assert data.pull_data_from_device("_done_").tolist() == [0, 1]
    assert data.pull_data_from_device("_timestep_").tolist() == [3, 3]
    assert data.pull_data_from_device("_episode_").tolist() == [0, 1]


def test_unknown_mode_raises():
    """A mode other than the two known ones raises."""
    data, resetter = saved("cpu")
    with pytest.raises(ConfigError, match=r"mode must be one of if_done, force_reset .got 'always'"):
        resetter.reset_when_done(data, "always")


# ------------------------------------------------------------------ pools


@on_every_backend
def test_pool_rows_are_joint_seeded_and_counted_by_episode(backend):
    """Seed, environment and episode choose one row for all pools."""
    n_envs, n_rows, seed = 9, 5, 2**40 + 3
    data, resetter = pooled(backend, n_envs, n_rows, seed)
    seen = set()
    for episode in range(4):
        resetter.reset_when_done(data, "force_reset")
        want = [int(pool_row(episode, env, *seed_words(seed), n_rows)) for env in range(n_envs)]
        assert data.pull_data_from_device("label").tolist() == want
        np.testing.assert_array_equal(data.pull_data_from_device("place"), np.repeat(want, 3).reshape(-1, 3) + 0.5)
        seen.update(want)
    assert seen == set(range(n_rows))


@on_every_backend
def test_pool_is_drawn_for_finished_environments_only(backend):
    """Only finished environments draw from a pool."""
    data, resetter = pooled(backend, 4, 3)
    data.tensor("_done_")[1::2] = 1
    resetter.reset_when_done(data)
    label = data.pull_data_from_device("label")
    assert label[::2].tolist() == [-1, -1]
    assert (label[1::2] >= 0).all()
    assert (data.pull_data_from_device("place")[::2] == -1).all()


@on_every_backend
def test_pool_gives_another_row_though_done_is_kept(backend):
    """Repeated resets draw new rows, even if flags are kept.

    Episodes count without undoing too.
    """
    data, resetter = pooled(backend, 1, 1000)
    data.tensor("_done_").fill_(1)
    labels = []
    for _ in range(5):
        resetter.reset_when_done(data, undo_done_after_reset=False)
        labels.append(int(data.pull_data_from_device("label")[0]))
    assert len(set(labels)) == 5


# ------------------------------------------------------------------ errors

ROWS = np.zeros((2, 3), np.float32)
REFUSED = [
    (np.zeros((3, 4), np.float32), None, "torch.float32 (3, 4)"),
    (np.zeros((2, 3), np.int16), None, "torch.int16 (2, 3)"),
    (ROWS, np.zeros((5, 4), np.float32), (4,)),
    (ROWS, np.zeros((5, 3, 1), np.float32), (3, 1)),
    (ROWS, np.zeros((5, 3), np.int32), "int32"),
    (np.zeros((3, 3), np.float32), ROWS, (3, 3)),
    (None, ROWS, ...),
]
"""Refused arrays, with pool (None: saved copy) and reported value."""


@pytest.mark.parametrize(("target", "pool", "got"), REFUSED)
@pytest.mark.parametrize("through", ["init_reset_pool", "reset_when_done"])
def test_what_cannot_be_copied_row_by_row_is_refused(target, pool, got, through):
    """Arrays that cannot be copied by row are refused.

    Pools raise at seeding or at a reset, saved copies at the first reset.
    """
    if pool is None and through == "init_reset_pool":
        pytest.skip("a saved copy has no seed")
    data, functions = managers("cpu")
    feed = DataFeed()
    if target is not None:
        feed.add_data("x", target, save_copy_and_apply_at_reset=pool is None)
    if pool is not None:
        feed.add_pool_for_reset("x_pool", pool, "x")
    data.push_data_to_device(feed)
    with pytest.raises(DataError, match="'x'") as caught:
        getattr(CUDAEnvironmentReset(functions), through)(data)
    assert caught.value.got == got


# ------------------------------------------------------------------ custom reset


@on_every_backend
def test_custom_reset_launches_the_environments_kernel(backend):
    """A custom reset launches the environment's kernel.

    The wrapper registers ``Cuda<name>Reset``; arguments by name or from a list.
    """
    wrapper = EnvWrapper(Counter(env_backend=backend), num_envs=4, env_backend=backend)
    wrapper.reset()
    data = wrapper.cuda_data_manager
    wrapper.custom_reset_all_envs()
    assert (data.pull_data_from_device("count") == -1).all()
    data.tensor("count").zero_()
    arguments = ["count", "step_size"] if backend == "cpu" else ["count", "step_size", ("n_envs", "meta")]
    wrapper.custom_reset_all_envs(arguments, block=wrapper.cuda_function_manager.block, grid=(2, 1))
    assert (data.pull_data_from_device("count") == -1).all()


def test_custom_reset_without_a_kernel_raises():
    """A missing custom reset kernel raises, with the expected name."""
    _, functions = managers("cpu")
    with pytest.raises(ConfigError, match="no kernel is registered; call register_custom_reset_function"):
        CUDAEnvironmentReset(functions).custom_reset()

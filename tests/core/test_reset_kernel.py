"""The generic reset kernels in every language."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core import kernel_runner
from tests.support import on_every_backend
from warpdrive_min import rng

SEED = np.array([5, -6], np.int32)


def _constants(envs_per_block: int) -> dict[str, int | bool]:
    return {"THREADS": 8, "ENVS_PER_BLOCK": envs_per_block, "BLOCKS_PER_ENV": 1, "N_AGENTS": 1, "EXACT": False}


def _reset_rows(
    backend: str,
    target: np.ndarray,
    source: np.ndarray,
    done: list[int],
    episode: list[int],
    is_pool: bool = False,
    force: int = 0,
    envs_per_block: int = 3,
) -> None:
    target, source = (array.reshape(len(array), -1).view(np.int32) for array in (target, source))
    arguments = {
        "target": target,
        "source": source,
        "_done_": np.array(done, np.int32),
        "_episode_": np.array(episode, np.int32),
        "_reset_seed_": SEED,
        "n_words": target.shape[1],
        "n_rows": len(source) if is_pool else 0,
        "force": force,
        "n_envs": len(target),
    }
    constants = _constants(envs_per_block)
    blocks = kernel_runner.n_blocks(constants, len(target))
    kernel_runner.run(backend, "reset", "reset_rows", constants, arguments, blocks)


@on_every_backend
@pytest.mark.parametrize("envs_per_block", [1, 3, 8])
@pytest.mark.parametrize("row", [(), (7,), (3, 5)])
def test_reset_copies_exactly_the_rows_that_are_done(backend: str, envs_per_block: int, row: tuple[int, ...]) -> None:
    """Rows of any length come back bit by bit, NaN included, and other rows stay."""
    target = np.random.default_rng(0).normal(size=(5, *row)).astype(np.float32)
    source = np.full_like(target, np.nan)
    source[1:] = target[1:] + 1
    before = target.copy()
    _reset_rows(backend, target, source, [1, 0, 0, 2, 0], [0] * 5, envs_per_block=envs_per_block)
    assert target[[0, 3]].tobytes() == source[[0, 3]].tobytes()
    assert target[[1, 2, 4]].tobytes() == before[[1, 2, 4]].tobytes()


@on_every_backend
def test_reset_by_force_copies_every_row(backend: str) -> None:
    """With force no environment need be done."""
    target, source = np.zeros((4, 2), np.int32), np.arange(8, dtype=np.int32).reshape(4, 2)
    _reset_rows(backend, target, source, [0] * 4, [0] * 4, force=1)
    assert target.tolist() == source.tolist()


@on_every_backend
def test_pool_rows_are_joint_and_follow_the_episode(backend: str) -> None:
    """All targets of an environment take the same row, that of its episode, and environments differ."""
    n_rows, n_envs = 6, 20
    positions = np.repeat(np.arange(n_rows, dtype=np.float32), 3).reshape(n_rows, 3)
    labels = np.arange(n_rows, dtype=np.int32)
    position, label = np.zeros((n_envs, 3), np.float32), np.zeros(n_envs, np.int32)
    episode = list(range(n_envs))
    for target, pool in ((position, positions), (label, labels)):
        _reset_rows(backend, target, pool, [1] * n_envs, episode, is_pool=True)
    assert (position == label[:, None]).all()
    assert label.tolist() == [int(rng.pool_row(env, env, *SEED, n_rows)) for env in range(n_envs)]
    assert len(set(label.tolist())) == n_rows


def test_pool_rows_are_uniform() -> None:
    """Chi-square of 40,000 draws over 10 rows stays below its 99.9 % quantile, as does that of pairs of episodes."""
    episodes, envs = np.arange(200)[:, None], np.arange(200)
    rows = rng.pool_row(episodes, envs, *SEED, 10)
    counts = np.bincount(rows.ravel(), minlength=10)
    assert ((counts - 4000) ** 2 / 4000).sum() < 27.9  # 9 degrees of freedom
    pairs = np.bincount((rows[:-1] * 10 + rows[1:]).ravel(), minlength=100)
    want = rows[1:].size / 100
    assert ((pairs - want) ** 2 / want).sum() < 148.2  # 99 degrees of freedom


@on_every_backend
@pytest.mark.parametrize("force", [0, 1])
def test_undo_done_starts_the_next_episode(backend: str, force: int) -> None:
    """Affected environments count one more episode, from step 0, not done; others keep theirs."""
    done = np.array([0, 1, 0, 3, 0], np.int32)
    timestep, episode = np.arange(5, dtype=np.int32) + 1, np.arange(5, dtype=np.int32)
    arguments = {"_done_": done, "_timestep_": timestep, "_episode_": episode, "force": force, "n_envs": 5}
    constants = _constants(2)
    kernel_runner.run(backend, "reset", "undo_done", constants, arguments, 3)
    assert done.tolist() == [0] * 5
    assert timestep.tolist() == ([0] * 5 if force else [1, 0, 3, 0, 5])
    assert episode.tolist() == ([1, 2, 3, 4, 5] if force else [0, 2, 2, 4, 4])

"""The generic reset kernels in every language."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core import kernel_runner
from tests.support import on_every_backend


@on_every_backend
@pytest.mark.parametrize("envs_per_block", [1, 3, 8])
@pytest.mark.parametrize("row", [(), (7,), (3, 5)])
def test_reset_copies_exactly_the_rows_that_are_done(backend: str, envs_per_block: int, row: tuple[int, ...]) -> None:
    """A reset copies finished rows bit by bit, and no others."""
    target = np.random.default_rng(0).normal(size=(5, *row)).astype(np.float32)
    source = np.full_like(target, np.nan)
    source[1:] = target[1:] + 1
    before = target.copy()
    words = target.reshape(5, -1).view(np.int32)
    arguments = {
        "target": words,
        "source": source.reshape(5, -1).view(np.int32),
        "_done_": np.array([1, 0, 0, 2, 0], np.int32),
        "_episode_": np.zeros(5, np.int32),
        "_reset_seed_": np.array([5, -6], np.int32),
        "n_words": words.shape[1],
        "n_rows": 0,
        "force": 0,
        "n_envs": 5,
    }
    constants = {"THREADS": 8, "ENVS_PER_BLOCK": envs_per_block, "BLOCKS_PER_ENV": 1, "N_AGENTS": 1, "EXACT": False}
    kernel_runner.run(backend, "reset", "reset_rows", constants, arguments, kernel_runner.n_blocks(constants, 5))
    assert target[[0, 3]].tobytes() == source[[0, 3]].tobytes()
    assert target[[1, 2, 4]].tobytes() == before[[1, 2, 4]].tobytes()

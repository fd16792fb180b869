"""Logger: its rows and its environment."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import managers, push
from warpdrive_min import CUDADataManager, CUDALogController
from warpdrive_min.errors import DataError

LENGTH = 4


def logged(backend: str) -> tuple[CUDADataManager, CUDALogController]:
    """Return two environments with two logged arrays and an unlogged one."""
    data, functions = managers(backend, n_agents=3, n_envs=2, episode_length=LENGTH)
    for name, shape in (("x", (2, 3)), ("y", (2, 3, 2))):
        push(data, name, np.zeros(shape, np.float32), log_data_across_episode=True)
    push(data, "unlogged", np.zeros((2, 3), np.float32))
    return data, CUDALogController(functions)


def put(data: CUDADataManager, step: int) -> None:
    """Fill an array with numbers that identify step and environment."""
    for name in ("x", "y"):
        for env in range(2):
            data.tensor(name)[env] = 10 * env + step


def test_fetch_log_takes_names_and_a_last_step():
    """Parts of a log can be fetched, up to a last step.

    A step past the last one logged is the last one.
    """
    data, logger = logged("cpu")
    logger.reset_log(data)
    logger.update_log(data, 1)
    assert set(logger.fetch_log(data, ["x"])) == {"x_for_log"}
    assert len(logger.fetch_log(data, ["x"], last_step=0)["x_for_log"]) == 1
    assert len(logger.fetch_log(data, ["x"], last_step=99)["x_for_log"]) == 2
    with pytest.raises(DataError, match="'unlogged_for_log': does not exist"):
        logger.fetch_log(data, ["unlogged"])


def test_fetched_log_is_a_copy():
    """A later episode does not change a fetched log."""
    data, logger = logged("cpu")
    logger.reset_log(data)
    got = logger.fetch_log(data)["x_for_log"]
    put(data, 5)
    logger.reset_log(data)
    assert not got.any()


def test_step_past_the_episode_is_ignored():
    """A step past the episode's end is ignored: it has no row."""
    data, logger = logged("cpu")
    logger.reset_log(data)
    for step in range(1, LENGTH + 3):
        logger.update_log(data, step)
    assert logger.last_valid_step == LENGTH


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((("update_log", step), f"must follow the last one logged, 0 .got {step}") for step in (0, 2, -1)),
        *((("reset_log", env_id), f"env_id must be from 0 to 1 .got {env_id}") for env_id in (-1, 2)),
    ],
)
def test_rows_that_nobody_writes_are_refused(call, message):
    """Steps that would leave gaps in the log are refused.

    Gaps, repeated steps, steps before `reset_log`'s first, and no environment.
    """
    data, logger = logged("cpu")
    with pytest.raises(DataError, match=r"must follow the last one logged, -1 .got 1.; call reset_log"):
        logger.update_log(data, 1)
    logger.reset_log(data)
    name, argument = call
    with pytest.raises(DataError, match=message):
        getattr(logger, name)(data, argument)


def test_fetch_log_finds_a_broken_mask():
    """A mask with a gap raises, unless the check is off."""
    data, logger = logged("cpu")
    logger.reset_log(data)
    logger.update_log(data, 1)
    data.tensor("_log_mask_")[3] = 1
    with pytest.raises(DataError, match=r"1 up to step 1 and 0 after it .got .ones at \[0, 1, 3\]"):
        logger.fetch_log(data)
    assert len(logger.fetch_log(data, check_last_valid_step=False)["x_for_log"]) == 2

"""WarpDrive's schedules and small functions."""

from __future__ import annotations

import pytest
import torch
from warp_drive.training.utils.param_scheduler import LRScheduler, ParamScheduler
from warp_drive.utils.architecture_validate import calculate_blocks_per_env, validate_device_setup
from warp_drive.utils.argument_fix import Argfix
from warp_drive.utils.common import get_project_root
from warp_drive.utils.device_context import make_current_context

from warpdrive_min.errors import BackendUnavailable, ConfigError


def test_constant_schedule_is_constant():
    """A number at any time."""
    schedule = ParamScheduler(3)
    assert schedule.type == "constant"
    assert [schedule.get_param_value(timestep) for timestep in (0, 10**9)] == [3, 3]


def test_schedule_is_linear_between_its_points():
    """0.1 until 1,000, 0.05 from 2,000 on, 0.075 half-way; two points at one time are a step."""
    schedule = ParamScheduler([[1000, 0.1], [2000, 0.05]])
    got = [schedule.get_param_value(timestep) for timestep in (0, 1000, 1500, 1900, 2000, 5000)]
    assert got == pytest.approx([0.1, 0.1, 0.075, 0.055, 0.05, 0.05])
    jump = ParamScheduler([[0, 1.0], [10, 1.0], [10, 0.0], [20, 0.0]])
    assert [jump.get_param_value(timestep) for timestep in (9, 11)] == [1, 0]


@pytest.mark.parametrize("schedule", [[[2, 0.1], [1, 0.2]], [(1, 0.1)], [[1]], [], "0.1", None, ((0, 1),)])
def test_malformed_schedule_is_an_error(schedule):
    """Neither a number nor a list of [timestep, value] in the order of time."""
    with pytest.raises(ConfigError, match=r"list of \[timestep, value\] in the order of time"):
        ParamScheduler(schedule)


def test_time_is_not_negative():
    """A negative timestep is a mistake of the caller."""
    with pytest.raises(ConfigError, match="must not be negative"):
        ParamScheduler(1.0).get_param_value(-1)


def test_learning_rate_follows_the_schedule():
    """From timestep 100, with 50 an iteration, 0.1 falls to 0.05 at 200 and stays."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = LRScheduler([[100, 0.1], [200, 0.05]], optimizer, init_timestep=100, timesteps_per_iteration=50)
    got = []
    for _ in range(4):
        got.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert got == pytest.approx([0.1, 0.075, 0.05, 0.05])
    assert scheduler.get_param_value(150) == pytest.approx(0.075)


@pytest.mark.parametrize("arguments", [{"schedule": 0.1}, {"schedule": [[0, 0.0], [5, 1.0]], "optimizer": True}])
def test_learning_rate_needs_an_optimizer_and_a_start(arguments):
    """No optimizer, or a first value of 0, by which the others would be divided."""
    if arguments.get("optimizer"):
        arguments = {**arguments, "optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)}
    with pytest.raises(ConfigError, match=r"optimizer|must not start from 0"):
        LRScheduler(**arguments)


def test_blocks_give_each_agent_a_thread():
    """1,024 threads a block."""
    assert [calculate_blocks_per_env(n) for n in (1, 1024, 1025, 5000)] == [1, 1, 2, 5]


@pytest.mark.parametrize(
    ("arch", "threads", "blocks", "want"),
    [
        ("sm_80", 1024, 1, True),
        ("sm_80", 64, 2, False),
        ("sm_90", 64, 8, True),
        ("sm_90a", 64, 9, False),
        ("sm_90", 1025, 1, False),
    ],
)
def test_device_setup_depends_on_clusters(arch, threads, blocks, want):
    """Several blocks need sm_90 and are at most eight; the number of environments never matters."""
    assert validate_device_setup(arch, 10**7, threads, blocks) is want


def test_old_argument_name_warns_and_works():
    """The decorated function keeps its name and gets the new argument."""

    @Argfix(arg_mapping={"use_cuda": "env_backend"})
    def build(env, env_backend="cpu"):
        return env, env_backend

    with pytest.warns(DeprecationWarning, match="build: use_cuda is the old name of env_backend"):
        assert build("x", use_cuda="numba") == ("x", "numba")
    assert build("x", env_backend="pycuda") == ("x", "pycuda")
    assert build.__name__ == "build"


def test_project_root_holds_the_packages():
    """Paths below it reach the environments."""
    assert (get_project_root() / "envs" / "tag_continuous").is_dir()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_context_needs_a_gpu():
    """Without PyCUDA or a GPU the error says what is missing."""
    with pytest.raises(BackendUnavailable, match="backend 'pycuda'"):
        make_current_context()

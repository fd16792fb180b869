"""WarpDrive's schedules and small functions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from example_envs.tag_continuous.generate_rollout_animation import generate_tag_env_rollout_animation
from warp_drive.training.trainers.trainer_base import all_equal, recursive_merge_config_dicts, verbose_print
from warp_drive.training.trainers.trainer_ddpg import hard_update, soft_update
from warp_drive.training.utils.param_scheduler import LRScheduler
from warp_drive.utils.architecture_validate import calculate_blocks_per_env
from warp_drive.utils.argument_fix import Argfix
from warp_drive.utils.device_context import make_current_context

from warpdrive_min.errors import BackendUnavailable, ConfigError


def test_learning_rate_follows_the_schedule():
    """The learning rate falls along its schedule and stays at its end."""
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
    """The schedule needs an optimizer and a non-zero first value."""
    if arguments.get("optimizer"):
        arguments = {**arguments, "optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)}
    with pytest.raises(ConfigError, match=r"optimizer|must not start from 0"):
        LRScheduler(**arguments)


def test_blocks_give_each_agent_a_thread():
    """A block has 1,024 threads, one for each agent."""
    assert [calculate_blocks_per_env(n) for n in (1, 1024, 1025, 5000)] == [1, 1, 2, 5]


def test_old_argument_name_warns_and_works():
    """The decorated function keeps its name and gets the new argument."""

    @Argfix(arg_mapping={"use_cuda": "env_backend"})
    def build(env, env_backend="cpu"):
        return env, env_backend

    with pytest.warns(DeprecationWarning, match="build: use_cuda is the old name of env_backend"):
        assert build("x", use_cuda="numba") == ("x", "numba")
    assert build("x", env_backend="pycuda") == ("x", "pycuda")
    assert build.__name__ == "build"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_context_needs_a_gpu():
    """Without PyCUDA or a GPU the error names the missing part."""
    with pytest.raises(BackendUnavailable, match="backend 'pycuda'"):
        make_current_context()


def test_config_is_filled_up_with_defaults():
    """Defaults fill missing values of the given config, at every depth."""
    config = {"trainer": {"num_envs": 2}, "policy": 3}
    defaults = {"trainer": {"num_envs": 10, "seed": 1}, "policy": {"lr": 1}, "saving": {"tag": "x"}}
    assert recursive_merge_config_dicts(config, defaults) is config
    assert config == {"trainer": {"num_envs": 2, "seed": 1}, "policy": 3, "saving": {"tag": "x"}}


def test_target_follows_softly_or_at_once():
    """The target moves by a tenth, or all the way."""
    source, target = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(source.weight, 10)
    torch.nn.init.constant_(target.weight, 0)
    soft_update(target, source, 0.1)
    assert target.weight.item() == pytest.approx(1)
    hard_update(target, source)
    assert target.weight.item() == 10


def test_small_functions_are_warpdrives(capsys):
    """Small functions give WarpDrive's results.

    Equality, and a device's message.
    """
    assert [all_equal(values) for values in ([], [1, 1], [1, 2])] == [True, True, False]
    verbose_print("hello", 3)
    assert capsys.readouterr().out == "[Device 3]: hello \n"


def test_film_of_an_episode_shows_who_is_left():
    """The film has a frame per state, and colours by role."""
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    x = np.array([[0.0, 1.0, 2.0], [1.0, 1.0, 2.0], [np.nan] * 3])
    states = {"loc_x": x, "loc_y": x, "still_in_the_game": np.array([[1, 1, 1], [1, 1, 0], [np.nan] * 3])}
    env = SimpleNamespace(taggers={0: True}, num_agents=3, grid_length=3.0)
    trainer = SimpleNamespace(fetch_episode_states=lambda names: states, cuda_envs=SimpleNamespace(env=env))
    film = generate_tag_env_rollout_animation(trainer, tagger_color="red", runner_color="blue", fps=10)
    agents, title = film._func(1)
    assert title.get_text() == "step 1, runners left: 1"
    assert [to_hex(each) for each in agents.get_facecolors()] == ["#ff0000", "#0000ff", "#666666"]
    assert film._interval == 100
    assert len(list(film.new_frame_seq())) == 2
    film._draw_was_started = True  # nothing is to be shown
    with pytest.raises(ConfigError, match="needs a trainer"):
        generate_tag_env_rollout_animation(None)

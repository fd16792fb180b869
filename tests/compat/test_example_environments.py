"""WarpDrive's example environments: names, arguments, defaults, starts."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.utils.numba_utils import misc as numba_misc
from warp_drive.utils.pycuda_utils import misc as pycuda_misc

from tests.support import BACKENDS_HERE
from warpdrive_min import envs
from warpdrive_min.compat.environments import CUDATagGridWorldWithResetPool, Pendulum, TagContinuous, TagGridWorld
from warpdrive_min.errors import ConfigError

CLASSIC = {
    "cartpole": "CartPole",
    "mountain_car": "MountainCar",
    "continuous_mountain_car": "ContinuousMountainCar",
    "acrobot": "Acrobot",
    "pendulum": "Pendulum",
}


def classic(folder):
    """Return WarpDrive's two classes of a one-agent environment, and their name."""
    module = importlib.import_module(f"example_envs.single_agent.classic_control.{folder}.{folder}")
    name = f"ClassicControl{CLASSIC[folder]}Env"
    return getattr(module, name), getattr(module, f"CUDA{name}"), name


def states(wrapper, names):
    """Return copies of arrays."""
    return {name: wrapper.cuda_data_manager.pull_data_from_device(name).copy() for name in names}


@pytest.mark.parametrize("folder", CLASSIC)
def test_environment_of_one_agent_has_warpdrives_name_and_arguments(folder):
    """Both classes are one, with WarpDrive's arguments and attributes."""
    cls, cuda_class, name = classic(folder)
    assert cls is cuda_class
    assert issubclass(cls, getattr(envs, CLASSIC[folder]))
    env = cls(7, "cpu", 3, 5)
    assert (env.name, env.episode_length, env.env_backend, env.reset_pool_size) == (name, 7, "cpu", 3)
    assert env.seed == 5 == env.config.seed


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("make", [lambda: classic("cartpole")[1](2, seed=4), lambda: TagContinuous(2, 3, seed=7)])
def test_copies_and_episodes_start_alike(make, backend):
    """All copies and episodes start from the same state."""
    wrapper = EnvWrapper(make(), num_envs=3, env_backend=backend)
    wrapper.reset()
    names = ["state"] if wrapper.n_agents == 1 else ["loc_x", "loc_y", "direction"]
    first = states(wrapper, names)
    wrapper.reset()
    again = states(wrapper, names)
    for name in names:
        np.testing.assert_array_equal(first[name], np.broadcast_to(first[name][:1], first[name].shape))
        np.testing.assert_array_equal(again[name], first[name])


def test_one_agent_with_a_pool_starts_from_it():
    """With a pool of several starts, one is drawn."""
    env = classic("cartpole")[1](5, reset_pool_size=8, seed=1)
    wrapper = EnvWrapper(env, num_envs=64)
    wrapper.reset()
    assert 2 <= len(np.unique(wrapper.cuda_data_manager.pull_data_from_device("state"), axis=0)) <= 8


def test_first_state_is_that_of_the_seed():
    """The first state follows the seed, by NumPy's generators."""
    want = np.random.default_rng(54231).uniform(-0.05, 0.05, 4)
    np.testing.assert_allclose(classic("cartpole")[0](200, seed=54231).reset()[0], want, atol=1e-7)
    random = np.random.RandomState(7)
    taggers = random.choice(np.arange(8), 2, replace=False)
    env = TagContinuous(num_taggers=2, num_runners=6, grid_length=5.0, seed=7)
    assert sorted(env.taggers) == sorted(taggers.tolist())
    wrapper = EnvWrapper(env)
    wrapper.reset()
    x = wrapper.cuda_data_manager.pull_data_from_device("loc_x")[0]
    np.testing.assert_allclose(x, 5 * random.rand(8), rtol=1e-6)


def test_pendulum_has_warpdrives_gravity():
    """Pendulum has WarpDrive's gravity, 9.81, unless it is given.

    This project's own has Gymnasium's 10.
    """
    assert Pendulum(200).gravity == 9.81
    assert envs.Pendulum().config.gravity == 10
    assert Pendulum(200, gravity=3.7).gravity == 3.7


def test_tag_on_a_grid_has_its_moves():
    """Tag on a grid has WarpDrive's moves, attributes and pool size."""
    env = TagGridWorld(4, 6, 20, tag_penalty_for_runner=3)
    assert env.step_actions[[1, 4]].tolist() == [[1, 0], [0, -1]]
    assert (env.num_taggers, env.grid_length, env.episode_length, env.tag_penalty_for_runner) == (4, 6, 20, 3)
    assert CUDATagGridWorldWithResetPool(num_taggers=4, grid_length=5).reset_pool_size == 5
    with pytest.raises(AttributeError, match="'TagGridWorld' object has no attribute 'nothing'"):
        _ = env.nothing


@pytest.mark.parametrize(("given", "named"), [((3,), {"num_taggers": 3}), (range(13), {})])
def test_argument_is_given_once(given, named):
    """A repeated or extra argument is an error."""
    with pytest.raises(ConfigError, match=r"takes each argument once.*in order they are num_taggers, grid_length"):
        TagGridWorld(*given, **named)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_moves_may_be_copied_to_the_device(backend):
    """Scripts may copy the moves, which changes nothing.

    They are compiled in.
    """
    wrapper = EnvWrapper(TagGridWorld(2, 4, 3), num_envs=2, env_backend=backend)
    wrapper.cuda_data_manager.add_shared_constants({"kIndexToActionArr": wrapper.env.step_actions})
    wrapper.cuda_function_manager.initialize_shared_constants(wrapper.cuda_data_manager, ["kIndexToActionArr"])
    wrapper.reset()
    wrapper.step()
    assert wrapper.cuda_data_manager.pull_data_from_device("_timestep_").tolist() == [1, 1]


@pytest.mark.parametrize("backend", [each for each in BACKENDS_HERE if each.values[0] == "numba"])
def test_step_module_of_warpdrive_is_a_source(backend, registrar):
    """This project's kernels run for a registered step module of WarpDrive."""
    path = "example_envs.tag_gridworld.tag_gridworld_step_numba"
    registrar.add_cuda_env_src_path("TagGridWorld", path, env_backend="numba")
    wrapper = EnvWrapper(TagGridWorld(2, 4, 3), num_envs=2, env_backend=backend, env_registrar=registrar)
    wrapper.reset()
    wrapper.step()
    assert wrapper.cuda_data_manager.pull_data_from_device("_timestep_").tolist() == [1, 1]


def test_default_source_is_this_projects():
    """WarpDrive's functions find sources only for the example environments."""
    path = "example_envs.tag_gridworld.tag_gridworld_step_numba"
    assert numba_misc.get_default_env_directory("TagGridWorld") == path
    assert Path(pycuda_misc.get_default_env_directory("TagContinuous")).is_file()
    assert numba_misc.get_default_env_directory("Chess") is None

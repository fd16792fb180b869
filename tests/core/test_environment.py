"""The environment's side: context hooks, one environment in dicts, its memory."""

from __future__ import annotations

import numpy as np
import pytest

from envs import CartPole
from tests.environments.counter import Counter
from tests.support import managers, on_every_backend
from warpdrive_min import CUDAEnvironmentContext, CUDAFunctionFeed, DataFeed
from warpdrive_min.environment import check_memory, environment_constants, push_environment, seed_resets
from warpdrive_min.errors import CompileError, ConfigError, DeviceMemoryError


def test_context_is_empty_until_it_is_wired():
    """An unwired context has empty hooks and no managers."""
    context = CUDAEnvironmentContext()
    assert (context.cuda_data_manager, context.cuda_function_manager, context.cuda_step) == (None, None, None)
    assert context.cuda_step_function_feed is None
    assert context.get_constants() == {}
    for feed in (context.get_data_dictionary(), context.get_tensor_dictionary(), context.get_reset_pool_dictionary()):
        assert feed == {}
        assert isinstance(feed, DataFeed)


@on_every_backend
def test_context_gets_its_managers_and_its_step_kernel(backend):
    """A wired context has its managers and step kernel.

    A step kernel that is not loaded raises.
    """
    data, functions = managers(backend)
    functions.load(Counter.kernel_sources, environment_constants(Counter()))
    context, feed = CUDAEnvironmentContext(), CUDAFunctionFeed(data)
    name = next(name for name in functions._kernels if name.endswith("CounterStep"))
    assert context.initialize_step_function_context(data, functions, feed, name) is True
    assert context.cuda_data_manager is data
    assert context.cuda_function_manager is functions
    assert context.cuda_step_function_feed is feed
    assert context.cuda_step.name == name
    with pytest.raises(CompileError, match="kernel 'CudaOtherStep': is not loaded"):
        context.initialize_step_function_context(data, functions, feed, "CudaOtherStep")


def test_environment_constants_are_the_cores_and_the_environments():
    """Compiled constants are the core's and the environment's."""
    got = environment_constants(Counter(num_agents=2, episode_length=9, limit=5), auto_reset=True)
    assert got == {"N_AGENTS": 2, "EPISODE_LENGTH": 9, "AUTO_RESET": True, "EXACT": False, "LIMIT": 5}


# ------------------------------------------------------------------ one environment in dicts


def test_single_environment_speaks_warpdrives_dicts():
    """A single environment uses dicts by agent, with new starts."""
    env = CartPole(episode_length=3)
    first = env.reset()
    assert set(first) == {0}
    assert first[0].shape == (4,)
    for step in range(1, 4):
        observations, rewards, done, info = env.step({0: 1})
        assert rewards == {0: 1.0}
        assert done == {"__all__": step == 3}
        assert info == {}
    assert observations[0][1] > first[0][1]
    assert (env.reset()[0] != first[0]).any()


def test_single_environment_returns_copies():
    """Later steps do not change a returned observation."""
    env = CartPole()
    first = env.reset()[0]
    kept = first.copy()
    env.step({0: 1})
    np.testing.assert_array_equal(first, kept)


def test_single_environment_says_what_it_needs():
    """A step needs a reset, and one action per agent."""
    env = CartPole()
    with pytest.raises(ConfigError, match=r"CartPole.step: no episode has started; call reset\(\) first"):
        env.step({0: 1})
    with pytest.raises(ConfigError, match=r"CartPole.step: needs actions by agent .got None"):
        env.step()
    env.reset()
    with pytest.raises(ConfigError, match=r"step: needs one action for each of the agents \[0\] .got \[1\]"):
        env.step({1: 1})


# ------------------------------------------------------------------ pushing, memory, seeds


@on_every_backend
def test_push_gives_rows_to_what_asks_for_them(backend):
    """Arrays get rows per environment only where needed.

    Saved, pool-target and ``per_env`` arrays get rows; the rest is shared.
    """
    data, _ = managers(backend, n_agents=3, n_envs=5, episode_length=6)
    env = Counter(pool_size=4)
    env.cuda_data_manager = data
    env.reset()
    push_environment(env, data)
    shapes = {"count": (5, 3), "place": (5, 3), "label": (5, 1), "rewards": (5, 3), "sampled_actions": (5, 3, 1)}
    shapes |= {"place_reset_pool": (4, 3), "label_reset_pool": (4, 1), "step_size": (), "count_for_log": (7, 3)}
    assert {name: data.get_shape(name) for name in shapes} == shapes
    assert data.is_data_on_device_via_torch("observations")
    assert not data.is_data_on_device_via_torch("count")


def test_memory_error_tells_how_many_environments_fit(monkeypatch):
    """The memory error has the largest number that fits."""
    feed = DataFeed()
    feed.add_data("shared", np.zeros(250, np.float32))  # 1,000 bytes
    feed.add_data("row", np.zeros((1, 25), np.float32), n_copies=10)  # 100 bytes for each environment
    feed.add_data("saved", np.zeros(5, np.float32), save_copy_and_apply_at_reset=True, n_copies=10)  # twice 20 bytes
    feed.add_data("logged", np.zeros(15, np.float32), log_data_across_episode=True, n_copies=10)  # 60, log 5 rows
    data, _ = managers("cpu", n_agents=15, n_envs=10, episode_length=4)
    monkeypatch.setattr(data, "free_bytes", lambda: 3100)
    message = "10 need 3,300 bytes on cpu .free are 3,100.; at most 9 environments fit"
    with pytest.raises(DeviceMemoryError, match=message):
        check_memory([feed], data)
    nine, _ = managers("cpu", n_agents=15, n_envs=9, episode_length=4)
    monkeypatch.setattr(nine, "free_bytes", lambda: 3100)
    check_memory([feed], nine)
    monkeypatch.setattr(data, "free_bytes", lambda: 10)
    with pytest.raises(DeviceMemoryError, match="at most 0 environments fit"):
        check_memory([feed], data)


def test_seed_of_resets_keeps_64_bits():
    """A seed of 64 bits is stored in two int32 words.

    Other integers raise.
    """
    data, _ = managers("cpu")
    seed_resets(data, 2**64 - 2)
    assert data.pull_data_from_device("_reset_seed_").tolist() == [-2, -1]
    seed_resets(data, 2**32 + 7)
    assert data.pull_data_from_device("_reset_seed_").tolist() == [7, 1]
    with pytest.raises(ValueError, match="seed: must be at least 0"):
        seed_resets(data, -1)

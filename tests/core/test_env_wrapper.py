"""Wrapper: construction, reset and step, with an environment in WarpDrive's style.

On every backend.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from envs import CartPole
from tests.environments.counter import Counter, PlainCounter, PythonCounter
from tests.support import BACKENDS_HERE, needs_host, on_every_backend, on_every_other_backend
from warpdrive_min import EnvironmentRegistrar, EnvWrapper
from warpdrive_min.bridges.batched import BatchedEnvironment
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.environment import trainer_arrays
from warpdrive_min.errors import (
    ActionError,
    BackendUnavailable,
    CompileError,
    ConfigError,
    DataError,
    DeviceMemoryError,
)
from warpdrive_min.function_manager import CUDAFunctionManager
from warpdrive_min.spaces import Discrete


def started(backend: str, num_envs: int = 4, **options: object) -> EnvWrapper:
    """Return a wrapper of Counter after a reset."""
    wrapper_options = {name: options.pop(name) for name in ("auto_reset", "debug", "seed") if name in options}
    wrapper = EnvWrapper(Counter(**options), num_envs=num_envs, env_backend=backend, **wrapper_options)
    wrapper.reset()
    return wrapper


def act(wrapper: EnvWrapper, actions: list[list[int]]) -> None:
    """Step with these actions, by environment and agent."""
    wrapper.cuda_data_manager.tensor("sampled_actions").copy_(torch.tensor(actions, dtype=torch.int32)[..., None])
    assert wrapper.step() is None


def pull(wrapper: EnvWrapper, *names: str) -> list[list[float]]:
    """Return arrays as lists."""
    return [wrapper.cuda_data_manager.pull_data_from_device(name).tolist() for name in names]


# ------------------------------------------------------------------ construction


def test_wrapper_takes_over_the_environments_sizes_and_derives_the_observation_space():
    """The wrapper has the environment's sizes, and derives observation spaces."""
    env = Counter(num_agents=3, episode_length=6)
    wrapper = EnvWrapper(env, num_envs=7)
    assert (wrapper.name, wrapper.n_agents, wrapper.episode_length, wrapper.n_envs) == ("Counter", 3, 6, 7)
    assert env.observation_space.keys() == env.action_space.keys()
    assert env.observation_space[0].shape == (2,)
    assert env.observation_space[0].dtype == np.float32
    assert env.n_resets == 1


@on_every_other_backend
def test_wrapper_tells_the_environment_its_backend(backend):
    """The wrapper sets the environment's backend."""
    wrapper = EnvWrapper(Counter(), env_backend=backend)
    assert wrapper.env.env_backend == wrapper.env_backend == backend


def test_environment_is_made_by_name(monkeypatch):
    """An environment is made by name and config from the registrar."""
    monkeypatch.setattr(EnvironmentRegistrar, "_classes", {})
    registrar = EnvironmentRegistrar()
    registrar.add("cpu")(Counter)
    wrapper = EnvWrapper(env_name="counter", env_config={"num_agents": 2}, env_registrar=registrar)
    assert wrapper.n_agents == 2
    with pytest.raises(
        ConfigError, match=r"needs env_obj, or env_name and env_config .got env_name='counter', env_config=None"
    ):
        EnvWrapper(env_name="counter")


@needs_host
def test_registered_source_goes_before_the_classs_own(monkeypatch, tmp_path):
    """A registered source precedes the class's own."""
    monkeypatch.setattr(EnvironmentRegistrar, "_sources", {})
    source = tmp_path / "other.cu"
    source.write_text("WD_KERNEL(other)(int* x) {}\n")
    registrar = EnvironmentRegistrar()
    registrar.add_cuda_env_src_path("Counter", source, "host")
    with pytest.raises(CompileError, match="its source has no kernel 'step' or 'CudaCounterStep'"):
        EnvWrapper(Counter(), env_backend="host", env_registrar=registrar)


def test_old_names_of_the_backend():
    """``use_cuda`` warns; False means `cpu` and True `pycuda`."""
    with pytest.warns(DeprecationWarning, match="use_cuda is the old name of env_backend"):
        assert EnvWrapper(Counter(), use_cuda=False).env_backend == "cpu"
    if not any(each.values[0] == "pycuda" for each in BACKENDS_HERE):
        with pytest.raises(BackendUnavailable, match="backend 'pycuda'"):
            EnvWrapper(Counter(), env_backend=True)


@pytest.mark.parametrize("attribute", ["name", "num_agents", "episode_length", "action_space", "reset", "step"])
def test_environment_must_have_warpdrives_contract(attribute):
    """The error names the missing parts."""

    class Broken:
        name, num_agents, episode_length, action_space = "Broken", 1, 1, {}

        def reset(self):
            return {}

        def step(self, actions=None):
            return None

    delattr(Broken, attribute)
    with pytest.raises(ConfigError, match=f"environment Broken: needs the attribute '{attribute}'"):
        EnvWrapper(Broken())


def counter(**attributes: object) -> Counter:
    """Return Counter with other attributes."""
    env = Counter()
    vars(env).update(attributes)
    return env


@pytest.mark.parametrize(
    ("env", "options", "got"),
    [
        (counter(num_agents=0), {}, 0),
        (counter(episode_length=0), {}, 0),
        (counter(action_space=dict.fromkeys([0, 1, 9], Discrete(2))), {}, ([0, 1, 2], [0, 1, 9])),
        *((counter(action_space=dict.fromkeys(ids, Discrete(2))), {}, len(ids)) for ids in ([0, 1, 2, 9], [0], [])),
        (counter(roles={"left": [0, 1], "right": [1, 2]}), {}, [0, 1, 1, 2]),
        (counter(roles={"left": [0]}), {}, [0]),
    ],
)
def test_wrapper_refuses(env, options, got):
    """The wrapper refuses invalid sizes, roles and observations."""
    with pytest.raises(ConfigError) as caught:
        EnvWrapper(env, **options)
    assert caught.value.got == got


HOOKS = ("get_constants", "get_data_dictionary", "get_tensor_dictionary", "get_reset_pool_dictionary")
WRONG_TYPES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, {}, {name: value}) for name in ("auto_reset", "exact", "debug") for value in (None, "yes", 1)),
    *(("env_backend", {}, {"env_backend": value}) for value in (["cpu"], None, 3)),
    *(
        (name, {name: value}, {})
        for name in ("num_agents", "episode_length", "earliest_truncation")
        for value in ("3", 2.5, True, float("nan"))
    ),
    ("name", {"name": None}, {}),
    *((name, {name: value}, {}) for name in ("action_space", "roles", "kernel_sources") for value in (None, ["a"])),
    *(("kernel_sources['numpy']", {"kernel_sources": {"numpy": value}}, {}) for value in (None, 3)),
    *((f"{hook}()", {hook: lambda: None}, {}) for hook in HOOKS),
    *(("get_constants()['X']", {"get_constants": lambda value=value: {"X": value}}, {}) for value in (None, "a")),
]


@pytest.mark.parametrize("backend", ["cpu", "host"])
@pytest.mark.parametrize(("what", "attributes", "options"), WRONG_TYPES, ids=lambda value: str(value)[:40])
def test_wrong_types_are_refused_by_name(backend, what, attributes, options):
    """A wrong type raises an early error that names the argument."""
    with pytest.raises((ConfigError, BackendUnavailable), match=re.escape(what)) as caught:
        EnvWrapper(counter(**attributes), **{"env_backend": backend, **options}).reset()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("n_agents", [2, 3])
def test_arrays_of_other_agents_are_refused(n_agents):
    """The error names the array and its required shape."""
    env = CartPole()
    env.get_tensor_dictionary = lambda: trainer_arrays(n_agents, 4)
    with pytest.raises(
        ConfigError,
        match=r"array 'sampled_actions': must have a first axis of 1 environments and another one of 1 agents",
    ) as caught:
        EnvWrapper(env)
    assert caught.value.got == (1, n_agents, 1)


@pytest.mark.parametrize("module", ["no_such_module", "envs"])
def test_module_without_kernels_is_refused(module):
    """A module that is missing or builds no kernels is refused."""
    with pytest.raises(CompileError, match=f"kernels {module}: "):
        EnvWrapper(counter(kernel_sources={"numpy": module}))


def test_flags_may_be_numpys():
    """NumPy's flags are accepted.

    They may come from arrays of settings.
    """
    assert EnvWrapper(Counter(), auto_reset=np.bool_(True)).auto_reset is True


@on_every_other_backend
def test_environment_without_kernels_runs_on_cpu_only(backend):
    """An environment without kernels runs on `cpu` only, without fallback."""
    with pytest.raises(ConfigError, match=f"'PythonCounter': has no .* kernels, which backend '{backend}' runs"):
        EnvWrapper(PythonCounter(), env_backend=backend)


@needs_host
def test_warpdrives_constants_are_compiled_in_where_they_are_asked_for(tmp_path):
    """A source may use wkNumberEnvs and wkNumberAgents, as WarpDrive's do."""

    class Sized(Counter):
        kernel_sources = {"cuda_c": tmp_path / "sized.cu"}  # noqa: RUF012

        def launch(self, arguments):
            self.cuda_step()

    Sized.kernel_sources["cuda_c"].write_text(
        "WD_KERNEL(step)(float* rewards, int n_envs) {\n"
        "  rewards[0] = 100 * wkNumberEnvs + 10 * wkNumberAgents + wkBlocksPerEnv;\n"
        "}\n"
    )
    wrapper = EnvWrapper(Sized(), num_envs=4, env_backend="host")
    wrapper.reset()
    wrapper.step()
    assert pull(wrapper, "rewards")[0][0][0] == 431


# ------------------------------------------------------------------ reset and step in kernels


@on_every_backend
def test_steps_follow_the_worked_example(backend):
    """Counts, rewards and ends equal those worked by hand.

    Three agents count their actions; the limit or the last step ends an episode.
    """
    wrapper = started(backend, num_envs=2, episode_length=4, limit=3)
    act(wrapper, [[1, 0, 1], [0, 0, 0]])
    count, observations, rewards = pull(wrapper, "count", "observations", "rewards")
    assert count == [[1, 0, 1], [0, 0, 0]]
    assert observations[0] == [[1, 0.5], [0, 0.5], [1, 0.5]]
    assert rewards == [[0.5, 0, 1.5], [0, 0, 0]]  # weights 1/2, 1 and 3/2 times the counts
    for _ in range(2):
        act(wrapper, [[0, 0, 1], [1, 0, 0]])
    assert pull(wrapper, "_timestep_", "_done_", "count") == [[3, 3], [1, 0], [[1, 0, 3], [2, 0, 0]]]
    assert wrapper.reset_only_done_envs() == {}
    assert pull(wrapper, "_timestep_", "_done_", "count") == [[0, 3], [0, 0], [[0, 0, 0], [2, 0, 0]]]
    act(wrapper, [[1, 0, 0], [0, 0, 0]])
    assert pull(wrapper, "_timestep_", "_done_") == [[1, 4], [0, 1]]
    wrapper.reset()
    assert pull(wrapper, "_timestep_", "_done_", "count") == [[0, 0], [0, 0], [[0, 0, 0]] * 2]


@on_every_backend
def test_first_reset_returns_what_was_pushed(backend):
    """The first reset returns the observations that it pushed.

    Each reset of the environment draws another start.
    """
    wrapper = EnvWrapper(Counter(random_start=True), num_envs=2, env_backend=backend)
    observations = wrapper.reset()
    got = wrapper.cuda_data_manager.pull_data_from_device("observations")
    for env in range(2):
        np.testing.assert_array_equal(got[env], np.stack(list(observations.values())))
    again = wrapper.reset_all_envs()
    assert again == {} if backend != "cpu" else set(again) == set(observations)


@on_every_backend
def test_auto_reset_restarts_an_environment_without_a_reset_kernel(backend):
    """Auto-reset restarts arrays at once, without a reset kernel.

    Without it ``_done_`` stays until the next step.
    """
    wrapper = started(backend, num_envs=2, episode_length=5, limit=2, auto_reset=True)
    seen = []
    for actions in ([[1, 0, 0], [0, 0, 0]],) * 4:
        act(wrapper, actions)
        seen.append(pull(wrapper, "_done_", "_timestep_", "_episode_", "count"))
    assert [done for done, *_ in seen] == [[0, 0], [1, 0], [0, 0], [1, 0]]
    assert [timestep for _, timestep, *_ in seen] == [[1, 1], [0, 2], [1, 3], [0, 4]]
    assert [episode for *_, episode, _ in seen] == [[0, 0], [1, 0], [1, 0], [2, 0]]
    assert [count[0][0] for *_, count in seen] == [1, 0, 1, 0]


# ------------------------------------------------------------------ Python on the CPU


def test_actions_step_the_python_environment_on_cpu():
    """On `cpu`, actions in a dict step the Python environment."""
    for env in (Counter(), PlainCounter()):
        wrapper = EnvWrapper(env)
        wrapper.reset()
        observations, rewards, done, info = wrapper.step({0: 1, 1: 0, 2: 1})
        assert observations[2].tolist() == [1, 0.5]
        assert (rewards, done, info) == ({0: 0.5, 1: 0.0, 2: 1.5}, {"__all__": False}, {})


def test_python_environment_needs_no_kernels():
    """An environment in plain Python resets and steps without kernels."""
    wrapper = EnvWrapper(PythonCounter(episode_length=2))
    assert not wrapper.vectorised
    assert list(wrapper.reset()) == list(wrapper.obs_at_reset()) == ["only"]
    assert wrapper.step({"only": 2})[0]["only"].tolist() == [1, 2]
    assert wrapper.step_all_envs({"only": 0})[2] == {"__all__": True}
    for call in (wrapper.step, wrapper.reset_only_done_envs, wrapper.init_reset_pool, wrapper.custom_reset_all_envs):
        with pytest.raises(ConfigError, match="'PythonCounter' has no kernels for backend 'cpu', only Python"):
            call()


# ------------------------------------------------------------------ errors


@on_every_backend
def test_step_before_reset_raises(backend):
    """A step before the first reset raises."""
    wrapper = EnvWrapper(Counter(), env_backend=backend)
    for name in ("step", "reset_only_done_envs", "init_reset_pool", "custom_reset_all_envs"):
        with pytest.raises(ConfigError, match=rf"{name}: the environments have not started; call reset\(\) first"):
            getattr(wrapper, name)()


@on_every_other_backend
def test_actions_as_an_argument_are_for_cpu(backend):
    """Backends with kernels refuse actions as an argument.

    The error says how to write actions.
    """
    wrapper = started(backend)
    with pytest.raises(
        ConfigError, match=r"takes no actions: it reads the array 'sampled_actions'; write them with CUDASampler.assign"
    ):
        wrapper.step({0: 1})


@on_every_backend
@pytest.mark.parametrize("action", [-1, 2])
def test_debug_mode_finds_actions_out_of_range(backend, action):
    """With `debug`, actions out of range raise before the step.

    The error names environment, agent, type and range.
    """
    wrapper = started(backend, num_envs=4, debug=True)
    act(wrapper, [[1, 1, 1]] * 4)
    actions = [[1, 1, 1]] * 3 + [[1, 1, action]]
    with pytest.raises(
        ActionError, match=rf"sampled_actions\[3, 2, 0\]: must be from 0 to 1 .got {action}; 1 of 12 actions"
    ):
        act(wrapper, actions)
    assert pull(wrapper, "_timestep_") == [[1, 1, 1, 1]]


def test_without_debug_mode_actions_are_not_checked():
    """Without `debug` actions are not checked: that synchronises."""
    wrapper = started("cpu")
    act(wrapper, [[7, 0, 0]] * 4)
    assert pull(wrapper, "count")[0][0] == [7, 0, 0]


def test_environments_that_do_not_fit_raise_at_reset(monkeypatch):
    """Too many environments raise at reset, with the number that fits."""
    wrapper = EnvWrapper(CartPole(), num_envs=1000)
    monkeypatch.setattr(wrapper.cuda_data_manager, "free_bytes", lambda: 10_000)
    with pytest.raises(
        DeviceMemoryError, match=r"1,000 need [\d,]+ bytes on cpu .free are 10,000.; at most \d+ environments fit"
    ):
        wrapper.reset()
    assert not wrapper.cuda_data_manager.is_data_on_device("state")


# ------------------------------------------------------------------ arguments


def rolling() -> EnvWrapper:
    wrapper = EnvWrapper(CartPole(), auto_reset=True)
    wrapper.reset()
    return wrapper


BAD_COUNTS = ("4", None, True, 0, -1, 2**31, 2.5)
SIZES = {"num_agents": 1, "num_envs": 1, "blocks_per_env": 1, "episode_length": 1}
COUNTS = {
    "num_envs": lambda value: EnvWrapper(CartPole(), num_envs=value),
    "blocks_per_env": lambda value: EnvWrapper(CartPole(), blocks_per_env=value),
    "seed": lambda value: EnvWrapper(CartPole(), seed=value),
    "bridge's num_envs": lambda value: BatchedEnvironment("Bridge", CartPole(), {"num_envs": value}),
    **{f"data {name}": lambda value, name=name: CUDADataManager(**{**SIZES, name: value}) for name in SIZES},
    **{f"function {name}": lambda value, name=name: CUDAFunctionManager(**{name: value}) for name in [*SIZES][:3]},
    "n_steps": lambda value: rolling().rollout(value),
}
"""Constructors and methods by the argument that they receive."""


@pytest.mark.parametrize("argument", COUNTS)
@pytest.mark.parametrize("value", BAD_COUNTS, ids=repr)
def test_argument_that_is_no_count_is_refused(argument, value):
    """A wrong count raises an error with the argument's name.

    It comes before any compilation or allocation.
    """
    may_be = {"blocks_per_env": (None,), "seed": (0, 2**31)}
    if value in may_be.get(argument, ()) and value is not True:
        return
    name = argument.split()[-1]
    with pytest.raises((ConfigError, DataError), match=rf"{name}: must be (an integer|at least|at most) .*got"):
        COUNTS[argument](value)

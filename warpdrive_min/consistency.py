"""The consistency checker: an environment's kernels against its Python or NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.constants import DONE, Constants
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError
from warpdrive_min.registrar import EnvironmentRegistrar

Array = npt.NDArray[Any]

FINAL_OBSERVATIONS = "final_observations"


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between two arrays, and where it is."""

    error: float
    index: tuple[int, ...]
    want: float
    got: float

    def __str__(self) -> str:
        return f"at {list(self.index)}: want {self.want:.9g}, got {self.got:.9g}, error {self.error:.3g}"


def difference(want: Array, got: Array, period: Any = 0.0, *, relative: bool = False) -> Difference:
    """Find the largest difference.

    Args:
        want: What the reference has.
        got: What is compared with it, of the same shape.
        relative: Divide differences by the reference's magnitude where it is above 1.
        period: Where positive (scalar, or broadcast over the last axes), values are angles: differences are
            taken modulo it.
    """
    error = np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64))
    periods = np.broadcast_to(np.asarray(period, np.float64), error.shape)
    wrapped = np.fmod(error, np.where(periods > 0, periods, np.inf))
    error = np.where(periods > 0, np.minimum(wrapped, periods - wrapped), error)
    if relative:
        error = error / np.maximum(1.0, np.abs(want))
    error = np.where(np.isnan(error), np.inf, error)
    if error.size == 0:
        return Difference(0.0, (), 0.0, 0.0)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(error), error.shape))
    return Difference(float(error[index]), index, float(want[index]), float(got[index]))


def copy_state(source: CUDADataManager, target: CUDADataManager) -> None:
    """Copy every array that both data managers have from one to the other; synchronises.

    Of arrays with a row for each environment the first ``target.n_envs`` are copied, so that a few
    environments of a large run can be stepped beside it: an environment does not depend on how many there are.
    """
    for name in set(target.array_names()) & set(source.array_names()):
        tensor = source.tensor(name)
        if tensor.shape != target.tensor(name).shape:
            tensor = tensor[: target.n_envs]
        target.tensor(name).copy_(tensor)


@dataclass(slots=True)
class Agreement:
    """What a comparison step by step saw."""

    largest: dict[str, Difference] = field(default_factory=dict)
    """The largest difference of each array."""
    n_rows: int = 0
    """Rows compared: an environment's, and each agent's observation."""
    n_in_doubt: int = 0
    """Rows left out, because rounding decides their outcome."""
    n_done: int = 0
    """Episodes that ended."""

    def add(self, other: Agreement) -> None:
        """Take in what another comparison saw."""
        for name, found in other.largest.items():
            if name not in self.largest or found.error > self.largest[name].error:
                self.largest[name] = found
        self.n_rows += other.n_rows
        self.n_in_doubt += other.n_in_doubt
        self.n_done += other.n_done

    @property
    def max_error(self) -> float:
        """Largest difference of any array."""
        return max((each.error for each in self.largest.values()), default=0.0)

    def __str__(self) -> str:
        name, found = max(self.largest.items(), key=lambda item: item[1].error)
        return f"largest in {name} {found}; {self.n_in_doubt} of {self.n_rows} rows in doubt"


def step_by_step(tested: EnvWrapper, oracle: EnvWrapper, draw: Callable[[], None], n_steps: int) -> Agreement:
    """Step a wrapper and its oracle from the wrapper's own state, so that errors cannot pile up; synchronises.

    Args:
        tested: Started wrapper on any backend.
        oracle: Started wrapper of the same environment on `cpu`, of as many or fewer copies, built alike.
        draw: Writes the wrapper's actions of a step, as a sampler does.
        n_steps: Steps.
    """
    got, want = tested.cuda_data_manager, oracle.cuda_data_manager
    result = Agreement()
    for _ in range(n_steps):
        draw()
        copy_state(got, want)
        before = _arrays(want)
        oracle.step_all_envs()
        tested.step_all_envs()
        after = _arrays(want)
        envs, agents = _in_doubt(oracle, before, after)
        step = Agreement(
            n_rows=agents.size + envs.size,
            n_in_doubt=int(envs.sum() + agents[~envs].sum()),
            n_done=int((after[DONE] > 0).sum()),
        )
        for name, array in after.items():
            tensor = got.tensor(name)
            rows = (tensor if tensor.shape == array.shape else tensor[: oracle.n_envs]).cpu().numpy().copy()
            if array.shape[:1] == envs.shape:
                rows[envs] = array[envs]
            if array.shape[:2] == agents.shape and name in (Constants.OBSERVATIONS, FINAL_OBSERVATIONS):
                rows[agents] = array[agents]
            step.largest[name] = difference(array, rows, want.attribute(name, "period", 0.0))
        result.add(step)
        if not tested.auto_reset:
            tested.reset_only_done_envs()
    return result


def _arrays(data: CUDADataManager) -> dict[str, Array]:
    return {name: data.tensor(name).cpu().numpy().copy() for name in data.array_names()}


def _in_doubt(oracle: EnvWrapper, before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the rows whose outcome hangs on rounding; none in an exact build."""
    if oracle.exact:
        return np.zeros(oracle.n_envs, bool), np.zeros((oracle.n_envs, oracle.n_agents), bool)
    envs, agents = oracle.env.rounding_decides(before, after)
    if oracle.auto_reset:
        envs = envs | (after[DONE] > 0)  # the state that decided is gone; starts are checked by exact builds
    return envs, agents


class EnvironmentCPUvsGPU:
    """Steps an environment on the CPU and on a backend with the same random actions, and compares.

    An environment with NumPy kernels is compared copy by copy with them; another one with ``num_envs``
    objects of its Python class, which must start as the kernels do.

    Args:
        cpu_env_class: Python class of the reference; with
        cuda_env_class: its subclass for the backend; or
        dual_mode_env_class: one class for both.
        env_configs: Keyword arguments of the class, by name of the scenario.
        num_envs: Copies to compare.
        blocks_per_env: As for `EnvWrapper`.
        assert_equal_num_agents_per_block: Require that blocks share the agents evenly.
        num_episodes: Episodes to run.
        gpu_env_backend: Backend to check.
        use_gpu_testing_mode: As ``testing_mode`` of `EnvWrapper`.
        testing_bin_filename: As for `EnvWrapper`.
        env_registrar: As for `EnvWrapper`.
        env_wrapper: Class of the wrapper.
        policy_tag_to_agent_id_map: Agents of each policy; every agent exactly once.
        create_separate_placeholders_for_each_policy: Must be False: arrays here hold all agents.
        obs_dim_corresponding_to_num_agents: Must be "first".
        exact: As for `EnvWrapper`, on both sides.

    Raises:
        ConfigError: A class is missing, or an argument has a value that is not supported.
    """

    def __init__(
        self,
        cpu_env_class: Any = None,
        cuda_env_class: Any = None,
        dual_mode_env_class: Any = None,
        env_configs: Mapping[str, Mapping[str, Any]] | None = None,
        num_envs: int = 3,
        blocks_per_env: int | None = None,
        assert_equal_num_agents_per_block: bool = False,
        num_episodes: int = 2,
        gpu_env_backend: str = "pycuda",
        use_gpu_testing_mode: bool = False,
        testing_bin_filename: str | Path | None = None,
        env_registrar: EnvironmentRegistrar | None = None,
        env_wrapper: type[EnvWrapper] = EnvWrapper,
        policy_tag_to_agent_id_map: Mapping[str, Sequence[int]] | None = None,
        create_separate_placeholders_for_each_policy: bool = False,
        obs_dim_corresponding_to_num_agents: str = "first",
        *,
        exact: bool = False,
    ) -> None:
        self._cpu_class = dual_mode_env_class or cpu_env_class
        self._gpu_class = dual_mode_env_class or cuda_env_class
        if self._cpu_class is None or self._gpu_class is None:
            raise ConfigError("consistency: needs dual_mode_env_class, or cpu_env_class and cuda_env_class")
        if not env_configs:
            raise ConfigError("consistency: env_configs must have at least one scenario")
        if create_separate_placeholders_for_each_policy or obs_dim_corresponding_to_num_agents != "first":
            raise ConfigError(
                "consistency: compares arrays (n_envs, n_agents, ...) of all agents; "
                "leave separate placeholders off and the agents' axis first"
            )
        self._configs = env_configs
        self._num_envs, self._num_episodes, self._backend = num_envs, num_episodes, gpu_env_backend
        self._policy_map = policy_tag_to_agent_id_map
        self._even_blocks = assert_equal_num_agents_per_block
        self._exact = exact
        self._wrapper_class = env_wrapper
        self._wrapper_arguments: dict[str, Any] = {
            "blocks_per_env": blocks_per_env,
            "testing_mode": use_gpu_testing_mode,
            "testing_bin_filename": testing_bin_filename,
            "env_registrar": env_registrar,
        }

    def test_env_reset_and_step(
        self, consistency_threshold_pct: float = 1, seed: int | None = None, *, resynchronise: bool = False
    ) -> float:
        """Run every scenario and return the largest relative error; synchronises.

        An element agrees if it is within ``consistency_threshold_pct`` per cent of one, or of the reference's value.

        Args:
            consistency_threshold_pct: Tolerance.
            seed: Of the actions, drawn afresh each step, and of the starts; None: from the operating system.
            resynchronise: Step the reference from the kernels' state each time, so that errors cannot pile up
                (NumPy kernels only).

        Raises:
            AssertionError: Names scenario, step, array, element and both values.
        """
        largest = 0.0
        for scenario, config in self._configs.items():
            generator = np.random.default_rng(seed)
            run = self._start(config, int(generator.integers(2**31)))
            self._check_agents(run)
            if run.oracle is None and resynchronise:
                raise ConfigError(f"consistency: {run.wrapper.name!r} has no NumPy kernels to resynchronise")
            largest = max(largest, run.compare(scenario, 0, consistency_threshold_pct, [Constants.OBSERVATIONS]))
            for step in range(1, self._num_episodes * run.wrapper.episode_length + 1):
                run.step(generator, resynchronise)
                names = [Constants.OBSERVATIONS, Constants.REWARDS, DONE]
                largest = max(largest, run.compare(scenario, step, consistency_threshold_pct, names))
                if run.reset_done():
                    names = [Constants.OBSERVATIONS]
                    largest = max(largest, run.compare(f"{scenario}, reset", step, consistency_threshold_pct, names))
        return largest

    def _start(self, config: Mapping[str, Any], seed: int) -> _Run:
        def wrap(cls: Any, backend: str, **arguments: Any) -> EnvWrapper:
            wrapper = self._wrapper_class(
                cls(**config), num_envs=self._num_envs, env_backend=backend, seed=seed, exact=self._exact, **arguments
            )
            wrapper.reset_all_envs()
            return wrapper

        wrapper = wrap(self._gpu_class, self._backend, **self._wrapper_arguments)
        if not wrapper.vectorised:
            raise ConfigError(
                f"consistency: environment {wrapper.name!r} has no kernels for {self._backend!r} to check"
            )
        registrar = {"env_registrar": self._wrapper_arguments["env_registrar"]}
        if "numpy" in getattr(self._cpu_class, "kernel_sources", {}):
            return _Run(wrapper, wrap(self._cpu_class, "cpu", **registrar), [])
        return _Run(wrapper, None, [self._cpu_class(**config) for _ in range(self._num_envs)])

    def _check_agents(self, run: _Run) -> None:
        n_agents, blocks = run.wrapper.n_agents, run.wrapper.blocks_per_env
        if self._even_blocks and n_agents % blocks:
            raise ConfigError(f"consistency: {n_agents} agents must divide over blocks_per_env (got {blocks})")
        if self._policy_map is not None:
            mapped = sorted(agent for agents in self._policy_map.values() for agent in agents)
            if mapped != sorted(run.wrapper.env.action_space):
                raise ConfigError(f"consistency: policy_tag_to_agent_id_map must hold every agent once (got {mapped})")


class _Run:
    """One scenario: the wrapper under test beside its oracle, NumPy kernels or Python objects."""

    def __init__(self, wrapper: EnvWrapper, oracle: EnvWrapper | None, objects: list[Any]) -> None:
        self.wrapper = wrapper
        self.oracle = oracle
        self._objects = objects
        self._agents: list[Hashable] = list(wrapper.env.action_space)
        self._want: dict[str, Array] = {}
        if objects:
            self._want[Constants.OBSERVATIONS] = np.stack([self._by_agent(each.reset()) for each in objects])

    def _by_agent(self, values: Mapping[Hashable, Any]) -> Array:
        return np.stack([np.asarray(values[agent]) for agent in self._agents])

    def step(self, generator: np.random.Generator, resynchronise: bool) -> None:
        """Step both sides with the same fresh random actions."""
        data = self.wrapper.cuda_data_manager
        actions = np.stack([self._by_agent(self._draw(generator)) for _ in range(self.wrapper.n_envs)])
        target = data.tensor(Constants.ACTIONS)
        if self.oracle is not None and resynchronise:
            copy_state(data, self.oracle.cuda_data_manager)
        target.copy_(torch.from_numpy(actions.reshape(target.shape)))
        if self.oracle is not None:
            self.oracle.cuda_data_manager.tensor(Constants.ACTIONS).copy_(target)
            self.oracle.step_all_envs()
        else:
            self._step_objects(actions)
        self.wrapper.step_all_envs()

    def _draw(self, generator: np.random.Generator) -> dict[Hashable, Any]:
        return generate_random_actions(self.wrapper.env, generator)

    def _step_objects(self, actions: Array) -> None:
        results = [
            each.step({agent: actions[env, index] for index, agent in enumerate(self._agents)})
            for env, each in enumerate(self._objects)
        ]
        self._want = {
            Constants.OBSERVATIONS: np.stack([self._by_agent(result[0]) for result in results]),
            Constants.REWARDS: np.stack([self._by_agent(result[1]) for result in results]),
            DONE: np.array([result[2]["__all__"] for result in results], np.int32),
        }

    def reset_done(self) -> bool:
        """Restart finished environments on both sides; tells whether there were any."""
        done = self.wrapper.cuda_data_manager.tensor(DONE).cpu().numpy() > 0
        self.wrapper.reset_only_done_envs()
        if self.oracle is not None:
            self.oracle.reset_only_done_envs()
        for env in np.flatnonzero(done) if self._objects else ():
            self._want[Constants.OBSERVATIONS][env] = self._by_agent(self._objects[env].reset())
        return bool(done.any())

    def compare(self, scenario: str, step: int, percent: float, names: Sequence[str]) -> float:
        """Compare the named arrays; returns the largest error of observations and rewards."""
        data = self.wrapper.cuda_data_manager
        largest = 0.0
        for name in names:
            want = self._want[name] if self.oracle is None else self.oracle.cuda_data_manager.tensor(name).numpy()
            got = data.tensor(name).cpu().numpy().reshape(want.shape)
            if name == DONE:
                want, got = want > 0, got > 0
            found = difference(want, got, data.attribute(name, "period", 0.0), relative=True)
            if found.error > (percent / 100 if name != DONE else 0.0):
                raise AssertionError(f"scenario {scenario!r}, step {step}: {name} {found}")
            largest = max(largest, found.error)
        return largest


def generate_random_actions(env: Any, generator: np.random.Generator | int | None = None) -> dict[Hashable, Any]:
    """Draw a uniform action for each agent of an environment.

    Args:
        env: With an ``action_space`` by agent.
        generator: Generator, or the seed of a new one.
    """
    if not isinstance(generator, np.random.Generator):
        generator = np.random.default_rng(generator)
    return {agent: _draw(space, generator) for agent, space in env.action_space.items()}


def _draw(space: Any, generator: np.random.Generator) -> Any:
    if hasattr(space, "nvec"):
        return generator.integers(0, space.nvec).astype(np.int32)
    if hasattr(space, "n"):
        return np.int32(generator.integers(space.n))
    return generator.uniform(space.low, space.high, space.shape).astype(np.float32)

"""Checker of whole scenarios, with a report of the first disagreement."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warpdrive_min.agreement.compare import EQUAL, Array, Tolerance
from warpdrive_min.agreement.report import all_differences, place
from warpdrive_min.agreement.sides import ActionRows, Group, KernelSide, PythonSide
from warpdrive_min.agreement.stepping import Agreement, step_from_same_state
from warpdrive_min.constants import DONE
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import ids_in
from warpdrive_min.errors import ConfigError, require, require_int
from warpdrive_min.registrar import EnvironmentRegistrar
from warpdrive_min.sampler import finite_bounds
from warpdrive_min.spaces import category_counts

log = logging.getLogger(__name__)

Config = Mapping[str, Any]


def _require(holds: object, rule: str, got: Any = ..., do: str = "") -> None:
    require(holds, "consistency", rule, got, do)


class EnvironmentCPUvsGPU:
    """Comparison of an environment on the CPU and on a backend.

    Both sides take the same random actions. NumPy kernels are compared environment by environment. Without them,
    ``num_envs`` objects of the Python class are the reference; they must start in the same state as the kernels.

    Args:
        cpu_env_class: Python class of the reference; with
        cuda_env_class: its subclass for the backend; or
        dual_mode_env_class: one class for both.
        env_configs: Keyword arguments of the class by scenario name; or a function that draws them with a
            NumPy generator.
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
        create_separate_placeholders_for_each_policy: Each policy has its own arrays ``observations_<policy>``,
            ``sampled_actions_<policy>`` and ``rewards_<policy>``. The environment or the wrapper pushes them.
        obs_dim_corresponding_to_num_agents: Agents' axis of an observation array: ``"first"`` (after the
            environments' axis) or ``"last"``.
        exact: As for `EnvWrapper`, on both sides.
        num_configs: Number of configs to draw, if ``env_configs`` is a function.

    Raises:
        ConfigError: A class is missing, or an argument has an unsupported value.
    """

    def __init__(
        self,
        cpu_env_class: Any = None,
        cuda_env_class: Any = None,
        dual_mode_env_class: Any = None,
        env_configs: Mapping[str, Config] | Callable[[np.random.Generator], Config] | None = None,
        num_envs: int = 3,
        blocks_per_env: int | None = None,
        assert_equal_num_agents_per_block: bool = False,
        num_episodes: int = 2,
        gpu_env_backend: str = "pycuda",
        use_gpu_testing_mode: bool = False,
        testing_bin_filename: str | Path | None = None,
        env_registrar: EnvironmentRegistrar | None = None,
        env_wrapper: type[EnvWrapper] = EnvWrapper,
        policy_tag_to_agent_id_map: Mapping[str, Sequence[Hashable]] | None = None,
        create_separate_placeholders_for_each_policy: bool = False,
        obs_dim_corresponding_to_num_agents: str = "first",
        *,
        exact: bool = False,
        num_configs: int = 20,
    ) -> None:
        self._cpu_class = dual_mode_env_class or cpu_env_class
        self._gpu_class = dual_mode_env_class or cuda_env_class
        _require(self._cpu_class and self._gpu_class, "needs dual_mode_env_class, or cpu_env_class and cuda_env_class")
        for name, size in (("num_configs", num_configs), ("num_envs", num_envs), ("num_episodes", num_episodes)):
            require_int(f"consistency: {name}", size)
        is_fine = not create_separate_placeholders_for_each_policy or len(policy_tag_to_agent_id_map or ()) > 1
        rule = "separate placeholders need a policy_tag_to_agent_id_map of more than one policy"
        _require(is_fine, rule, policy_tag_to_agent_id_map, "leave them off")
        axis = obs_dim_corresponding_to_num_agents
        _require(axis in ("first", "last"), "obs_dim_corresponding_to_num_agents must be 'first' or 'last'", axis)
        if not env_configs:
            raise ConfigError("consistency: env_configs must have at least one scenario, or be a function")
        self._configs, self._num_configs = env_configs, num_configs
        self._num_envs, self._num_episodes, self._backend = num_envs, num_episodes, gpu_env_backend
        self._policies = policy_tag_to_agent_id_map
        self._separate = create_separate_placeholders_for_each_policy
        self._agents_axis = axis
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
        self,
        consistency_threshold_pct: float = 1,
        seed: int | None = None,
        *,
        resynchronise: bool = False,
        max_ulps: float | None = None,
    ) -> float:
        """Run every scenario and return the largest relative error; synchronises.

        Floats must agree within `Tolerance`; flags and integers must be equal. The error is relative where the
        reference's magnitude is above 1, else absolute.

        Args:
            consistency_threshold_pct: Per cent of one, or of the reference's value.
            seed: Seed of the drawn configs, the starts and the actions of each step; None: from the operating system.
                The drawn config ``i`` runs with ``seed + i``.
            resynchronise: Copy the kernels' state to the reference before each step, so that errors cannot accumulate.
                Compares every array, except rows that rounding decides (NumPy kernels only).
            max_ulps: Alternative bound in units in the last place; with a threshold of 0, the only bound.

        Raises:
            AssertionError: A value differs. The text names scenario, config, backend, step, array, environment, agent,
                component, both values, the number of differing elements, and how to repeat the run.
            ConfigError: An argument does not fit the environment.
        """
        tolerance = Tolerance(consistency_threshold_pct, ulps=max_ulps)
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        return max(self._check(scenario, tolerance, resynchronise) for scenario in self._scenarios(seed))

    def draw_actions(self, env: Any, num_envs: int, generator: np.random.Generator) -> list[dict[Hashable, Any]]:
        """Draw the actions of one step by agent, for each environment; overridable."""
        return [generate_random_actions(env, generator) for _ in range(num_envs)]

    def python_object(self, env: Any) -> Any:
        """Return the object to reset and step for a Python class; overridable."""
        return env

    def _scenarios(self, seed: int) -> Iterator[_Scenario]:
        if isinstance(self._configs, Mapping):
            for name, config in self._configs.items():
                yield _Scenario(repr(name), config, np.random.default_rng(seed), f"seed={seed}")
            return
        for each in range(seed, seed + self._num_configs):
            generator = np.random.default_rng(each)
            config = self._configs(generator)
            yield _Scenario(f"drawn with seed {each}", config, generator, f"num_configs=1 and seed={each}")

    def _check(self, scenario: _Scenario, tolerance: Tolerance, resynchronise: bool) -> float:
        try:
            run = self._start(scenario, tolerance)
            can = not resynchronise or isinstance(run.reference, KernelSide)
            _require(can, f"{run.wrapper.name!r} has no NumPy kernels to resynchronise")
            draw = functools.partial(self.draw_actions, run.wrapper.env, run.wrapper.n_envs, scenario.generator)
            found = next(filter(None, run.play(draw, self._num_episodes, resynchronise)), "")
            is_seen = found or not resynchronise or run.counts.n_compared
            _require(is_seen, "rounding decides every row, so nothing was compared", do="take exact=True")
        except Exception as error:  # the environment's code may raise anything
            error.add_note(f"scenario {scenario.name}, config {scenario.shown}; run again with {scenario.again}")
            raise
        if found:
            where = f"environment {run.wrapper.name!r} on backend {self._backend!r}, config {scenario.shown}"
            again = f"run it again with {scenario.again}"
            raise AssertionError(f"scenario {scenario.name}, {found}\n  {where}\n  {again}")
        if resynchronise:
            log.info("scenario %s: %s", scenario.name, run.counts.excluded_rows)
        return run.largest

    def _start(self, scenario: _Scenario, tolerance: Tolerance) -> _Run:
        seed = int(scenario.generator.integers(2**31))

        def wrap(cls: Any, backend: str, **arguments: Any) -> EnvWrapper:
            arguments |= {"num_envs": self._num_envs, "env_backend": backend, "seed": seed, "exact": self._exact}
            wrapper = self._wrapper_class(cls(**scenario.config), **arguments)
            wrapper.reset_all_envs()
            return wrapper

        wrapper = wrap(self._gpu_class, self._backend, **self._wrapper_arguments)
        _require(wrapper.vectorised, f"environment {wrapper.name!r} has no kernels for {self._backend!r} to check")
        groups = self._groups(wrapper)
        reference: KernelSide | PythonSide
        if "numpy" in getattr(self._cpu_class, "kernel_sources", {}):
            registrar = self._wrapper_arguments["env_registrar"]
            reference = KernelSide(wrap(self._cpu_class, "cpu", env_registrar=registrar), groups)
        else:
            objects = [self.python_object(self._cpu_class(**scenario.config)) for _ in range(self._num_envs)]
            reference = PythonSide(objects, groups)
        return _Run(wrapper, groups, reference, tolerance)

    def _groups(self, wrapper: EnvWrapper) -> list[Group]:
        """Validate the arguments about agents; return the groups that share arrays."""
        n_agents, blocks = wrapper.n_agents, wrapper.blocks_per_env
        is_even = n_agents % blocks == 0 or not self._even_blocks
        _require(is_even, f"{n_agents} agents must divide over blocks_per_env", blocks)
        agents: list[Hashable] = list(wrapper.env.action_space)
        policies = {
            policy: ids_in(wrapper.env.action_space, members)
            for policy, members in (self._policies or {"all": agents}).items()
        }
        mapped = [agent for members in policies.values() for agent in members]
        is_whole = len(mapped) == len(agents) and set(mapped) == set(agents)
        _require(is_whole, "policy_tag_to_agent_id_map must hold every agent once", mapped)
        space, is_last = wrapper.env.observation_space, self._agents_axis == "last"
        if not self._separate:
            return [Group("", agents, space[agents[0]], is_last)]
        return [Group(f"_{policy}", members, space[members[0]], is_last) for policy, members in policies.items()]


def generate_random_actions(env: Any, generator: np.random.Generator | int | None = None) -> dict[Hashable, Any]:
    """Draw a uniform action for each agent of an environment.

    Args:
        env: With an ``action_space`` by agent.
        generator: Generator, or the seed of a new one.

    Raises:
        ConfigError: A box has no finite bounds.
    """
    if not isinstance(generator, np.random.Generator):
        generator = np.random.default_rng(generator)
    return {agent: _draw(space, generator) for agent, space in env.action_space.items()}


def _draw(space: Any, generator: np.random.Generator) -> Any:
    if hasattr(space, "low"):
        low, high = finite_bounds([space])[:, 0]
        return generator.uniform(low, high).astype(np.float32).reshape(space.shape)
    choices = generator.integers(0, category_counts(space)).astype(np.int32)
    return choices if hasattr(space, "nvec") else choices[0]


# ------------------------------------------------------------------ one scenario


@dataclass(frozen=True, slots=True)
class _Scenario:
    """One config and its random generator."""

    name: str
    config: Config
    generator: np.random.Generator
    """Generator of the starts and the actions."""
    again: str
    """Arguments that repeat the run, as text."""

    @property
    def shown(self) -> dict[str, Any]:
        """Config for a message; arrays as type and shape."""
        return {
            name: f"{value.dtype} array {value.shape}" if isinstance(value, np.ndarray) else value
            for name, value in self.config.items()
        }


class _Run:
    """Run of one scenario: the tested wrapper and its reference."""

    def __init__(
        self, wrapper: EnvWrapper, groups: Sequence[Group], reference: KernelSide | PythonSide, tolerance: Tolerance
    ) -> None:
        self.wrapper, self.reference, self._tolerance = wrapper, reference, tolerance
        self.counts, self.largest = Agreement(), 0.0
        """Counts of the resynchronised steps; largest relative error."""
        self._tested = KernelSide(wrapper, groups)
        self._observations = [name for group in groups for name in group.observation_keys]
        self._outcome = [*(group.rewards for group in groups), DONE]
        self._axes = {name: (group.agents, axis) for group in groups for name, axis in group.agents_axes.items()}

    def play(self, draw: Callable[[], ActionRows], n_episodes: int, resynchronise: bool) -> Iterator[str]:
        """Step both sides with the drawn actions; yield reports of `_compare`."""
        yield from self._compare_now("step 0", self._observations)
        for step in range(1, n_episodes * self.wrapper.episode_length + 1):
            when, after = f"step {step}", f"step {step}, after the reset"
            actions = draw()
            if resynchronise:
                assert isinstance(self.reference, KernelSide)
                write = functools.partial(self._tested.write, actions)
                counts, pairs = step_from_same_state(self.wrapper, self.reference.wrapper, write)
                self.counts.add(counts)
                yield from (self._compare(when, name, *pair) for name, pair in pairs.items())
            else:
                self._tested.step(actions)
                self.reference.step(actions)
                yield from self._compare_now(when, [*self._observations, *self._outcome])
            done = self._tested.array(DONE)
            for side in (self._tested, self.reference):
                side.reset(done)
            if done.any():
                yield from self._compare_now(after, self._observations)
                yield self._compare(after, DONE, np.zeros(self.wrapper.n_envs, bool), self._tested.array(DONE))

    def _compare_now(self, when: str, names: Sequence[str]) -> Iterator[str]:
        return (self._compare(when, name, self.reference.array(name), self._tested.array(name)) for name in names)

    def _compare(self, when: str, name: str, want: Array, got: Array) -> str:
        """Return the report of two arrays; "" if they agree."""
        # A value may be a scalar on one side and an array of one element on the other.
        is_alike = [n for n in want.shape if n != 1] == [n for n in got.shape if n != 1]
        _require(is_alike, f"array {name!r} must have the reference's shape {want.shape}", got.shape)
        tolerance = self._tolerance if name in self._axes or got.dtype.kind == "f" else EQUAL
        period = self.wrapper.cuda_data_manager.attribute(name, "period", 0.0)
        found = tolerance.compare(want.reshape(got.shape), got, period)
        self.largest = max(self.largest, found.relative_error)
        if not found.n_wrong:
            return ""
        agents, axis = self._axes.get(name, (list(self.wrapper.env.action_space), 1))
        has_agents = got.ndim > 1 and got.shape[axis] == len(agents)
        is_shared = got.shape[:1] != (self.wrapper.n_envs,)
        where = functools.partial(place, agents=agents, axis=axis if has_agents else None, is_shared=is_shared)
        return f"{when}: {all_differences(name, found, where)}"

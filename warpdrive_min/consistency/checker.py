"""The checker of whole scenarios, and the report of the first disagreement."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min.consistency.arrays import Array, Comparison, Tolerance
from warpdrive_min.consistency.steps import Agreement, step_from_same_state
from warpdrive_min.constants import DONE, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import ids_in
from warpdrive_min.errors import ConfigError, require, whole
from warpdrive_min.registrar import EnvironmentRegistrar
from warpdrive_min.spaces import action_bounds, category_counts

log = logging.getLogger(__name__)

Config = Mapping[str, Any]

EQUAL: Final = Tolerance(0)


def _require(holds: object, rule: str, got: Any = ..., do: str = "") -> None:
    require(holds, "consistency", rule, got, do)


class EnvironmentCPUvsGPU:
    """Steps an environment on the CPU and on a backend with the same random actions, and compares.

    An environment with NumPy kernels is compared copy by copy with them; another one with ``num_envs``
    objects of its Python class, which must start as the kernels do.

    Args:
        cpu_env_class: Python class of the reference; with
        cuda_env_class: its subclass for the backend; or
        dual_mode_env_class: one class for both.
        env_configs: Keyword arguments of the class, by name of the scenario; or a function that draws them with a
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
        create_separate_placeholders_for_each_policy: Each policy has arrays of its own, ``observations_<policy>``,
            ``sampled_actions_<policy>`` and ``rewards_<policy>``, which the environment or the wrapper pushes.
        obs_dim_corresponding_to_num_agents: Axis of the agents in an observation array: ``"first"`` after that of the
            environments, or ``"last"``.
        exact: As for `EnvWrapper`, on both sides.
        num_configs: How many configs a function draws.

    Raises:
        ConfigError: A class is missing, or an argument has a value that is not supported.
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
            whole(f"consistency: {name}", size)
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

        Observations, rewards and other floats agree within `Tolerance`, flags and integers if they are equal. The
        error is relative to the reference where its magnitude is above 1.

        Args:
            consistency_threshold_pct: Per cent of one, or of the reference's value.
            seed: Of drawn configs, of the actions, drawn afresh each step, and of the starts; None: from the
                operating system. The drawn config ``i`` is run with ``seed + i``.
            resynchronise: Step the reference from the kernels' state each time, so that errors cannot pile up, and
                compare every array, leaving out rows that rounding decides (NumPy kernels only).
            max_ulps: Units in the last place that an element may be off besides; with a threshold of 0, at most.

        Raises:
            AssertionError: Its text names scenario, config, backend, step, array, environment, agent, component and
                both values, says how many elements differ, and how to repeat it.
            ConfigError: An argument does not fit the environment.
        """
        tolerance = Tolerance(consistency_threshold_pct, ulps=max_ulps)
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        return max(self._check(scenario, tolerance, resynchronise) for scenario in self._scenarios(seed))

    def draw_actions(self, env: Any, num_envs: int, generator: np.random.Generator) -> list[dict[Hashable, Any]]:
        """Return the actions of a step by agent, for each environment; a subclass may draw others."""
        return [generate_random_actions(env, generator) for _ in range(num_envs)]

    def python_object(self, env: Any) -> Any:
        """Return what is reset and stepped for an environment's Python class; a subclass may wrap it."""
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
        largest = 0.0
        for run, moment in self._play(scenario, resynchronise):
            found = (tolerance if moment.may_round else EQUAL).compare(moment.want, moment.got, moment.period)
            if found.n_wrong:
                raise AssertionError(self._report(scenario, run, moment, found))
            largest = max(largest, found.relative_error)
        return largest

    def _play(self, scenario: _Scenario, resynchronise: bool) -> Iterator[tuple[_Run, StepComparison]]:
        try:
            run = self._start(scenario)
            can = not resynchronise or isinstance(run.reference, _KernelSide)
            _require(can, f"{run.wrapper.name!r} has no NumPy kernels to resynchronise")
            draw = functools.partial(self.draw_actions, run.wrapper.env, run.wrapper.n_envs, scenario.generator)
            for moment in run.play(draw, self._num_episodes, resynchronise):
                yield run, moment
            is_seen = not resynchronise or run.counts.n_compared
            _require(is_seen, "rounding decides every row, so nothing was compared", do="take exact=True")
        except Exception as error:  # whatever the environment raises
            error.add_note(f"scenario {scenario.name}, config {scenario.shown}; run again with {scenario.again}")
            raise
        if resynchronise:
            log.info("scenario %s: %d of %d rows in doubt", scenario.name, run.counts.n_in_doubt, run.counts.n_rows)

    def _start(self, scenario: _Scenario) -> _Run:
        seed = int(scenario.generator.integers(2**31))

        def wrap(cls: Any, backend: str, **arguments: Any) -> EnvWrapper:
            options: dict[str, Any] = {
                "num_envs": self._num_envs,
                "env_backend": backend,
                "seed": seed,
                "exact": self._exact,
            }
            wrapper = self._wrapper_class(cls(**scenario.config), **options, **arguments)
            wrapper.reset_all_envs()
            return wrapper

        wrapper = wrap(self._gpu_class, self._backend, **self._wrapper_arguments)
        _require(wrapper.vectorised, f"environment {wrapper.name!r} has no kernels for {self._backend!r} to check")
        groups = self._groups(wrapper)
        registrar = {"env_registrar": self._wrapper_arguments["env_registrar"]}
        if "numpy" in getattr(self._cpu_class, "kernel_sources", {}):
            return _Run(wrapper, groups, _KernelSide(wrap(self._cpu_class, "cpu", **registrar), groups))
        objects = [self.python_object(self._cpu_class(**scenario.config)) for _ in range(self._num_envs)]
        return _Run(wrapper, groups, _PythonSide(objects, groups))

    def _groups(self, wrapper: EnvWrapper) -> list[_Group]:
        """Check the arguments that speak of agents, and return which agents share arrays."""
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
            return [_Group("", agents, space[agents[0]], is_last)]
        return [_Group(f"_{policy}", members, space[members[0]], is_last) for policy, members in policies.items()]

    def _report(self, scenario: _Scenario, run: _Run, moment: StepComparison, found: Comparison) -> str:
        first, *others = (f"{run.place(moment, each.index)}: {each.values}" for each in found.worst)
        return "\n".join(
            [
                f"scenario {scenario.name}, {moment.when}: {moment.name} of {first}",
                f"  {found.n_wrong} of {found.n_elements} elements of {moment.name} differ"
                + ("; the next:" if others else ""),
                *(f"    {other}" for other in others),
                f"  environment {run.wrapper.name!r} on backend {self._backend!r}, config {scenario.shown}",
                f"  run it again with {scenario.again}",
            ]
        )


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
        low, high = finite_bounds(space)
        return generator.uniform(low, high).astype(np.float32).reshape(space.shape)
    choices = generator.integers(0, category_counts(space)).astype(np.int32)
    return choices if hasattr(space, "nvec") else choices[0]


def finite_bounds(space: Any) -> Array:
    """Return the lowest and the highest actions of a box, each flat.

    Raises:
        ConfigError: One is infinite.
    """
    bounds = action_bounds([space])[:, 0]
    require(np.isfinite(bounds).all(), "random actions", "need finite bounds", space, "use a bounded Box")
    return bounds


# ------------------------------------------------------------------ one scenario


@dataclass(frozen=True, slots=True)
class _Scenario:
    """Config to run, with its random numbers."""

    name: str
    config: Config
    generator: np.random.Generator
    """Generator of the starts and the actions."""
    again: str
    """Arguments that repeat it."""

    @property
    def shown(self) -> dict[str, Any]:
        """Config for a message: arrays by type and shape."""
        return {
            name: f"{value.dtype} array {value.shape}" if isinstance(value, np.ndarray) else value
            for name, value in self.config.items()
        }


@dataclass(frozen=True, slots=True)
class _Group:
    """Agents that share arrays."""

    suffix: str
    """End of the arrays' names."""
    agents: Sequence[Hashable]
    observation_space: Any
    is_last: bool
    """The agents' axis is the last one of an observation array, not the one after the environments'."""

    @property
    def rewards(self) -> str:
        """Name of the array of rewards."""
        return Constants.REWARDS + self.suffix

    @property
    def observation_keys(self) -> dict[str, Hashable | None]:
        """Names of the observation arrays, and what each has of an observation that is a dict."""
        name = Constants.OBSERVATIONS + self.suffix
        spaces = getattr(self.observation_space, "spaces", None)
        return {name: None} if spaces is None else {f"{name}_{key}": key for key in spaces}

    @property
    def agents_axes(self) -> dict[str, int]:
        """Names of the arrays that are compared, and which axis is that of the agents."""
        axis = -1 if self.is_last and len(self.agents) > 1 else 1
        return {self.rewards: 1, **dict.fromkeys(self.observation_keys, axis)}

    def observations(self, rows: Sequence[Mapping[Hashable, Any]]) -> dict[str, Array]:
        """Return the arrays of observations by agent, of a row for each environment."""
        arrays = {}
        for name, key in self.observation_keys.items():
            array = self.stack(rows, key)
            arrays[name] = np.swapaxes(array, 1, self.agents_axes[name])
        return arrays

    def stack(self, rows: Sequence[Mapping[Hashable, Any]], key: Hashable | None = None) -> Array:
        """Return values by agent, of a row for each environment, as an array ``(n_envs, n_agents, ...)``.

        Args:
            rows: Values, which are dicts where there is
                a key: the entry to take.
            key: See there.

        Raises:
            ConfigError: A row has no value of an agent.
        """
        stacked = []
        for row in rows:
            ids = ids_in(row, self.agents)
            missing = [agent for agent in ids if agent not in row]
            rule, do = f"the Python environment gave nothing for agents {missing}", "give every agent one id everywhere"
            _require(not missing, rule, list(row), do)
            stacked.append(np.stack([np.asarray(row[agent] if key is None else row[agent][key]) for agent in ids]))
        return np.stack(stacked)


@dataclass(frozen=True, slots=True)
class StepComparison:
    """Array of both sides at one time."""

    when: str
    name: str
    want: Array
    got: Array
    period: Any
    may_round: bool
    """The tolerance applies; else values must be equal."""


class _KernelSide:
    """Side that a wrapper steps in kernels."""

    def __init__(self, wrapper: EnvWrapper, groups: Sequence[_Group]) -> None:
        self.wrapper, self._groups = wrapper, groups

    def write(self, actions: Sequence[Mapping[Hashable, Any]]) -> None:
        """Write actions by agent, of a row for each environment."""
        for group in self._groups:
            target = self.wrapper.cuda_data_manager.tensor(Constants.ACTIONS + group.suffix)
            target.copy_(torch.from_numpy(group.stack(actions).reshape(target.shape)))

    def step(self, actions: Sequence[Mapping[Hashable, Any]]) -> None:
        """Take a step."""
        self.write(actions)
        self.wrapper.step_all_envs()

    def reset(self, done: Array) -> None:
        """Restart the environments that are done."""
        self.wrapper.reset_only_done_envs()

    def array(self, name: str) -> Array:
        """Return an array as it is now; synchronises."""
        array: Array = self.wrapper.cuda_data_manager.tensor(name).cpu().numpy()
        return array > 0 if name == DONE else array  # a kernel may set any flag that is not 0


class _PythonSide:
    """Side that steps an object of a Python class for each environment."""

    def __init__(self, objects: Sequence[Any], groups: Sequence[_Group]) -> None:
        self._objects, self._groups = objects, groups
        self._rows = [each.reset() for each in objects]
        """Last observations of each object, by agent."""
        self._outcome: dict[str, Array] = {}

    def step(self, actions: Sequence[Mapping[Hashable, Any]]) -> None:
        """Take a step."""
        results = []
        for each, seen, row in zip(self._objects, self._rows, actions, strict=True):
            results.append(each.step(dict(zip(ids_in(seen, row), row.values(), strict=True))))
        self._rows = [result[0] for result in results]
        self._outcome = {group.rewards: group.stack([result[1] for result in results]) for group in self._groups}
        self._outcome[DONE] = np.array([bool(result[2]["__all__"]) for result in results])

    def reset(self, done: Array) -> None:
        """Restart the environments that are done."""
        for env in np.flatnonzero(done).tolist():
            self._rows[env] = self._objects[env].reset()

    def array(self, name: str) -> Array:
        """Return observations, rewards or flags by the name of the array that holds them in kernels."""
        observed = {name: array for group in self._groups for name, array in group.observations(self._rows).items()}
        return (self._outcome | observed)[name]


class _Run:
    """One scenario: the wrapper under test beside its reference."""

    def __init__(self, wrapper: EnvWrapper, groups: Sequence[_Group], reference: _KernelSide | _PythonSide) -> None:
        self.wrapper, self.reference = wrapper, reference
        self.counts = Agreement()
        """Rows that the resynchronised steps compared, and left out."""
        self._tested = _KernelSide(wrapper, groups)
        self._observations = [name for group in groups for name in group.observation_keys]
        self._outcome = [*(group.rewards for group in groups), DONE]
        self._axes = {name: (group.agents, axis) for group in groups for name, axis in group.agents_axes.items()}

    def play(
        self, draw: Callable[[], Sequence[Mapping[Hashable, Any]]], n_episodes: int, resynchronise: bool
    ) -> Iterator[StepComparison]:
        """Step both sides with the actions that are drawn for each step, and yield what must agree."""
        yield from self._compare("step 0", self._observations)
        for step in range(1, n_episodes * self.wrapper.episode_length + 1):
            when, after = f"step {step}", f"step {step}, after the reset"
            actions = draw()
            if resynchronise:
                yield from self._step_from_same_state(when, actions)
            else:
                self._tested.step(actions)
                self.reference.step(actions)
                yield from self._compare(when, [*self._observations, *self._outcome])
            done = self._tested.array(DONE)
            for side in (self._tested, self.reference):
                side.reset(done)
            if done.any():
                yield from self._compare(after, self._observations)
                yield self._comparison(after, DONE, np.zeros(self.wrapper.n_envs, bool), self._tested.array(DONE))

    def _step_from_same_state(self, when: str, actions: Sequence[Mapping[Hashable, Any]]) -> Iterator[StepComparison]:
        assert isinstance(self.reference, _KernelSide)
        counts, arrays = step_from_same_state(self.wrapper, self.reference.wrapper, lambda: self._tested.write(actions))
        self.counts.add(counts)
        for name, (want, got) in arrays.items():
            yield self._comparison(when, name, want, got)

    def _compare(self, when: str, names: Sequence[str]) -> Iterator[StepComparison]:
        for name in names:
            yield self._comparison(when, name, self.reference.array(name), self._tested.array(name))

    def _comparison(self, when: str, name: str, want: Array, got: Array) -> StepComparison:
        # A value may be a scalar on one side and an array of one element on the other.
        is_alike = [n for n in want.shape if n != 1] == [n for n in got.shape if n != 1]
        _require(is_alike, f"array {name!r} must have the reference's shape {want.shape}", got.shape)
        period = self.wrapper.cuda_data_manager.attribute(name, "period", 0.0)
        may_round = name in self._axes or got.dtype.kind == "f"
        return StepComparison(when, name, want.reshape(got.shape), got, period, may_round)

    def place(self, moment: StepComparison, index: Sequence[int]) -> str:
        """Say which environment, agent and component an index means."""
        shape, component, words = moment.got.shape, list(index), []
        agents, axis = self._axes.get(moment.name, (list(self.wrapper.env.action_space), 1))
        if shape[:1] == (self.wrapper.n_envs,):
            words.append(f"environment {index[0]}")
            if len(shape) > 1 and shape[axis] == len(agents):
                words.append(f"agent {agents[index[axis]]!r}")
                del component[axis]
            del component[0]
        else:
            words.append("all environments")
        if component:
            words.append(f"component {component[0] if len(component) == 1 else component}")
        return ", ".join(words)

"""Environment interface of the core: arrays, constants, kernels and dicts."""

from __future__ import annotations

import copy
import importlib
import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from warpdrive_min.backends.base import Backend, Constant, Language, Source
from warpdrive_min.constants import (
    DONE,
    EPISODE,
    FINAL_OBSERVATIONS,
    RESET_SEED,
    TERMINATED,
    TIMESTEP,
    TRUNCATED,
    Constants,
)
from warpdrive_min.conversion import as_tensor
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import ActionError, ConfigError, DeviceMemoryError, require, require_int, require_type
from warpdrive_min.function_manager import (
    MAX_THREADS,
    CUDAFunctionFeed,
    CUDAFunctionManager,
    KernelCall,
    KernelFunction,
)
from warpdrive_min.lazy import LazyModule
from warpdrive_min.rng import seed_words

if TYPE_CHECKING:
    import torch

    from warpdrive_min.rendering.episode import Episode
    from warpdrive_min.rendering.scene import Scene
else:  # spaces are known without its import, which takes seconds
    torch = LazyModule("torch", globals())

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Observations = dict[Hashable, Any]
PLAIN = (complex, float, int, str, np.ndarray, np.generic, np.random.Generator, np.random.RandomState, random.Random)
"""Classes of an environment's own state, besides torch's generators, alone or in containers; see `own_state`."""
Transition = tuple[Observations, dict[Hashable, float], dict[str, bool], dict[str, Any]]


class PythonEnvironment(Protocol):
    """Interface of all environments: one environment on the CPU, dicts by agent."""

    name: str
    num_agents: int
    episode_length: int
    action_space: Mapping[Hashable, Any]

    def reset(self) -> Observations:
        """Start an episode and return the first observations."""
        ...

    def step(self, actions: Any = None) -> Any:
        """Take one step; with actions, return ``(observations, rewards, done, info)``."""
        ...


class CUDAEnvironmentContext:
    """Base of environments whose kernels take the steps.

    `EnvWrapper` gives them their managers and step kernel. Override the hooks that apply; the defaults return empty
    values.
    """

    kernel_sources: Mapping[Language, Source] = {}
    """Kernel source in each language; a source in the registrar takes precedence."""
    roles: Mapping[str, Sequence[Hashable]] = {}
    """Agents of each role with separate arrays ``observations_<role>`` etc.

    Empty: all agents share arrays.
    """
    masks_actions: bool = False
    """True if training and bridges take allowed choices from ``action_mask``.

    Used where observations have no such key.
    """
    earliest_truncation: int | None = None
    """Fewest steps after which an episode may be truncated; None: `episode_length`.

    A trainer derives from it how many final observations it must store.
    """
    tolerance: ClassVar[float] = 1e-5
    """Largest rounding error of a step from equal states, in each array's unit."""
    num_agents: int

    def __init__(self) -> None:
        self.cuda_data_manager: CUDADataManager | None = None
        self.cuda_function_manager: CUDAFunctionManager | None = None
        self.cuda_step: KernelFunction | None = None
        self.cuda_step_function_feed: CUDAFunctionFeed | None = None

    def initialize_step_function_context(
        self,
        cuda_data_manager: CUDADataManager,
        cuda_function_manager: CUDAFunctionManager,
        cuda_step_function_feed: CUDAFunctionFeed,
        step_function_name: str,
    ) -> bool:
        """Store the managers and the step kernel, bound by name.

        Called without arguments, the kernel gets the arrays of the data manager.

        Raises:
            CompileError: The kernel is not loaded.
        """
        self.cuda_data_manager = cuda_data_manager
        self.cuda_function_manager = cuda_function_manager
        self.cuda_step = cuda_function_manager.get_function(step_function_name).bound_to(cuda_data_manager)
        self.cuda_step_function_feed = cuda_step_function_feed
        return True

    def settle_blocks(self, blocks_per_env: int | None, language: Language) -> int:
        """Return the number of blocks that share one environment.

        Called before anything is pushed or compiled. The default is the requested number, or enough for a thread for
        each agent.

        Args:
            blocks_per_env: Number that the user requested; None: choose.
            language: Language of the kernels that will run.
        """
        return blocks_per_env or -(-self.num_agents // MAX_THREADS)

    def kernel_sequences(self, auto_reset: bool) -> Mapping[str, Sequence[KernelCall]]:
        """Return the kernels of ``step`` and ``reset`` where one has several.

        A block cannot wait for another block. A step that several blocks share is therefore split where they must
        synchronise. The kernels of a sequence are launched in order, each with its scalars. `BLOCKS_PER_ENV` may be
        above 1 in them.
        """
        return {}

    def get_constants(self) -> Mapping[str, Constant]:
        """Return compile-time constants of the kernels, by UPPER_CASE name."""
        return {}

    def get_data_dictionary(self) -> DataFeed:
        """Return the kernels' state, constants and scratch arrays."""
        return DataFeed()

    def get_tensor_dictionary(self) -> DataFeed:
        """Return the arrays that torch also reads and writes."""
        return DataFeed()

    def get_reset_pool_dictionary(self) -> DataFeed:
        """Return the reset pools."""
        return DataFeed()

    def rounding_decides(self, before: Arrays, after: Arrays) -> tuple[Array, Array]:
        """Mark environments and agents whose outcome depends on rounding.

        Two backends may differ there without an error.

        Args:
            before: Arrays of the reference before the step, by name.
            after: Arrays of the reference after the step, by name.

        Returns:
            ``(n_envs,)`` bool: the environment's whole outcome depends on rounding; ``(n_envs, n_agents)`` bool: only
            the agent's observation does.
        """
        n_envs = len(after[DONE])
        return np.zeros(n_envs, bool), np.zeros((n_envs, self.num_agents), bool)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that one step of one environment must move; 0 if unknown."""
        return 0

    @property
    def ops_per_step(self) -> int:
        """Arithmetic operations of one step of one environment; 0 if unknown."""
        return 0

    def scene(self, episode: Episode) -> Scene | None:
        """Return the drawing of a recorded episode.

        None draws agent 0's observations over time.
        """
        return None


class Environment(CUDAEnvironmentContext):
    """Environment with equal kernel phases in NumPy, CUDA C and Numba.

    A subclass sets `name` and `kernel_sources`. Its constructor sets `num_agents`, `episode_length`, `action_space` and
    `config`. It overrides the hooks of `CUDAEnvironmentContext`. ``reset`` and ``step(actions)`` for one environment
    run the NumPy kernels.
    """

    name: ClassVar[str]
    episode_length: int
    action_space: Mapping[Hashable, Any]
    seed: int = 0
    """Seed of the single Python environment's starts."""

    def __init__(self, env_backend: str = "cpu") -> None:
        super().__init__()
        self.env_backend = env_backend
        self._single: SingleEnvironment | None = None

    def __copy__(self) -> Self:
        """Return another environment of the same config, with `own_state` of its own."""
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **own_state(vars(self)), "_single": None})
        return made

    def settle_blocks(self, blocks_per_env: int | None, language: Language) -> int:
        """Return 1: one block steps an environment of any number of agents.

        A block owns its environments, and its threads stride over the agents.

        Raises:
            ConfigError: More blocks are requested.
        """
        rule = f"one block steps an environment {self.name!r}"
        require(blocks_per_env in (None, 1), "blocks_per_env", rule, blocks_per_env, "leave it out")
        return 1

    @property
    def own_columns(self) -> int | None:
        """First of the columns that mark the observing agent, or None.

        There is one such column for each agent. In an agent's observation its own column is 1, the others are 0. All
        other columns are equal for all agents of an environment. Kernels then write `N_ROWS` rows of ``observations``:
        one for each agent, or a single one without marks where `N_ROWS` is 1.
        """
        return None

    def reset(self) -> Observations:
        """Start an episode of one environment on the CPU; return its observations."""
        if self._single is None:
            self._single = SingleEnvironment(self)
        return self._single.reset()

    def step(self, actions: Mapping[Hashable, Any] | None = None) -> Transition | None:
        """Step one environment on the CPU, or launch the wrapper's step kernel.

        With ``actions`` by agent it steps on the CPU; without, it launches the kernel.

        Raises:
            ConfigError: Neither actions nor a wrapper are given, or `reset` was not called.
        """
        if actions is None:
            if self.cuda_step is None:
                raise ConfigError(
                    f"{self.name}.step: needs actions by agent (got None); an EnvWrapper steps without them"
                )
            self.cuda_step()
            return None
        if self._single is None:
            raise ConfigError(f"{self.name}.step: no episode has started; call reset() first")
        return self._single.step(actions)


class SingleEnvironment:
    """One environment on the CPU in WarpDrive's dicts, run by NumPy kernels."""

    def __init__(self, env: Environment) -> None:
        self._agents = list(env.action_space)
        self._sets = agent_sets(env)
        self._data = CUDADataManager(env.num_agents, 1, episode_length=env.episode_length, backend="cpu")
        self._functions = CUDAFunctionManager(env.num_agents, 1, backend="cpu")
        self._functions.load(env.kernel_sources, environment_constants(env))
        push_environment(env, self._data)
        seed_resets(self._data, env.seed)
        self._reset = self._functions.bind("reset", self._data, force=1)
        self._step = self._functions.bind("step", self._data)

    def reset(self) -> Observations:
        """Start the next episode."""
        self._reset()
        return self._observations()

    def step(self, actions: Mapping[Hashable, Any]) -> Transition:
        """Take one step."""
        if set(actions) != set(self._agents):
            raise ConfigError(f"step: needs one action for each of the agents {self._agents} (got {list(actions)})")
        for suffix, agents in self._sets.items():
            array = self._array(Constants.ACTIONS + suffix)
            for index, agent in enumerate(agents):
                array[0, index] = as_tensor(actions[agent]).cpu().numpy().reshape(array.shape[2:])
        self._step()
        rewards = {
            agent: float(reward)
            for suffix, agents in self._sets.items()
            for agent, reward in zip(agents, self._array(Constants.REWARDS + suffix)[0], strict=True)
        }
        return self._observations(), rewards, {"__all__": bool(self._array(DONE)[0])}, {}

    def _observations(self) -> Observations:
        seen: Observations = {}
        for suffix, agents in self._sets.items():
            name = Constants.OBSERVATIONS + suffix
            if self._data.is_data_on_device(name):
                seen |= dict(zip(agents, self._array(name)[0].copy(), strict=True))
                continue
            parts = [each for each in self._data.array_names() if each.startswith(f"{name}_")]
            rows = {part.removeprefix(f"{name}_"): self._array(part)[0].copy() for part in parts}
            seen |= {agent: {key: row[index] for key, row in rows.items()} for index, agent in enumerate(agents)}
        return {agent: seen[agent] for agent in self._agents}

    def _array(self, name: str) -> Any:
        return self._data.tensor(name).numpy()


def trainer_arrays(
    n_agents: int, n_features: int, n_types: int = 1, dtype: npt.DTypeLike = np.int32, **attributes: Any
) -> DataFeed:
    """Return a trainer's arrays, with a row for each environment.

    All agents share these arrays.

    Args:
        n_agents: Number of agents.
        n_features: Entries of an observation.
        n_types: Entries of an action.
        dtype: Dtype of actions.
        attributes: Further attributes of observations.
    """
    feed = DataFeed()
    for name in ("observations", FINAL_OBSERVATIONS):
        feed.add_data(name, np.zeros((n_agents, n_features), np.float32), per_env=True, **attributes)
    feed.add_data(Constants.ACTIONS, np.zeros((n_agents, n_types), dtype), per_env=True)
    feed.add_data(Constants.REWARDS, np.zeros(n_agents, np.float32), per_env=True)
    for name in (TERMINATED, TRUNCATED):
        feed.add_data(name, np.zeros((), np.int32), per_env=True)
    return feed


# ------------------------------------------------------------------ shared by the wrapper and a single environment


def own_state(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy an environment's own Python state: the attributes that are plain data.

    Plain are numbers, texts, NumPy's arrays, random generators, and lists, dicts and sets of these. Managers, spaces,
    modules, handles and others are not copied.
    """
    return copy.deepcopy({name: value for name, value in attributes.items() if _is_plain(value)})


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | Set | deque):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (*PLAIN, torch.Generator))


def agent_sets(env: Any) -> dict[str, list[Hashable]]:
    """Return agents by array suffix: "", or ``_<role>`` for each role."""
    roles: Mapping[str, Sequence[Hashable]] = getattr(env, "roles", {})
    return {f"_{role}": list(agents) for role, agents in roles.items()} or {"": list(env.action_space)}


def earliest_truncation(env: Any) -> int:
    """Return the fewest steps after which an episode may be truncated."""
    given = getattr(env, "earliest_truncation", None)
    what = f"environment {env.name!r}: earliest_truncation"
    return int(env.episode_length) if given is None else require_int(what, given, 1, int(env.episode_length))


def ids_in(known_ids: Collection[Hashable], agents: Iterable[Hashable]) -> list[Hashable]:
    """Return known ids of agents, matched by value, else by text.

    So ``"0"`` matches 0, as in WarpDrive's code. Unknown agents are returned unchanged.
    """
    agents = list(agents)
    texts = {} if all(agent in known_ids for agent in agents) else {str(each): each for each in known_ids}
    return [agent if agent in known_ids else texts.get(str(agent), agent) for agent in agents]


def as_actions(what: str, actions: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Convert actions to a tensor without gradient that fits ``dtype``.

    Raises:
        ActionError: They are not numbers, or have another shape or kind; the message starts with ``what``.
    """
    try:
        given = as_tensor(actions)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{type(actions).__name__}: {str(error).splitlines()[0]}"
        raise ActionError(f"{what} must be an array of numbers (got {got})") from None
    if tuple(given.shape) != shape:
        raise ActionError(f"{what} must have shape {shape} (got {tuple(given.shape)})")
    if given.dtype == torch.bool or not torch.can_cast(given.dtype, dtype):
        kind = "real numbers" if dtype.is_floating_point else "integers"
        raise ActionError(f"{what} must be {kind} (got {given.dtype})")
    # Before any bounds check: 0.1 in float64 would differ from a bound of 0.1 in float32.
    return given.to(dtype) if dtype.is_floating_point else given


def require_actions(
    actions: torch.Tensor, bounds: torch.Tensor, spaces: Sequence[Any], what: Callable[[Sequence[int]], str]
) -> None:
    """Raise `ActionError` unless all actions lie in their agents' spaces.

    NaN lies in no space. Synchronises.

    Args:
        actions: ``(n_envs, n_agents, n_types)``; axes may be merged or missing.
        bounds: `action_bounds` of the agents, ``(2, n_agents, n_types)``.
        spaces: Action spaces of the agents.
        what: Function from an index in ``actions`` to the action's name in errors.
    """
    low, high = bounds.to(actions.device)
    rows = (actions if actions.is_floating_point() else actions.long()).reshape(-1, *low.shape)
    is_inside = (rows >= low) & (rows <= high)
    if is_inside.all():
        return
    n_outside, first = int((~is_inside).sum()), int((~is_inside).flatten().nonzero()[0])
    index = [int(each) for each in np.unravel_index(first, actions.shape)]
    row, kind = divmod(first % low.numel(), low.shape[1])
    raise ActionError(
        f"{what(index)}: must be from {low[row, kind].item():g} to {high[row, kind].item():g} "
        f"(got {actions.flatten()[first].item():g}; {n_outside} of {actions.numel()} actions are outside their space, "
        f"here {spaces[row]})"
    )


def scene_in(package: str, module: str = ".scene") -> Callable[..., Any]:
    """Return the method `scene` of an environment: ``draw`` of a module.

    The module is imported when the method is called.

    Args:
        package: Package of the environment.
        module: Name of the module, relative to the package.
    """

    def scene(env: Any, episode: Episode) -> Scene:
        """Return the drawing of a recorded episode."""
        drawn: Scene = importlib.import_module(module, package).draw(env, episode)
        return drawn

    return scene


def sources_in(package: str, stem: str = "kernel") -> dict[Language, Source]:
    """Return the existing kernel sources in a package's folder.

    The files are `reference.py`, `kernel.cu` and `kernel_numba.py`.

    Args:
        package: Dotted name of the package; its modules pass ``__package__``.
        stem: Stem of the file names; "spread" for `spread.cu` and `spread_numba.py`.
    """
    folder = Path(sys.modules[package].__path__[0])
    files: dict[Language, str] = {"cuda_c": f"{stem}.cu", "numba": f"{stem}_numba.py"}
    if stem == "kernel":
        files = {"numpy": "reference.py", **files}
    return {
        language: folder / file if language == "cuda_c" else f"{package}.{Path(file).stem}"
        for language, file in files.items()
        if (folder / file).exists()
    }


def environment_constants(env: Any, *, auto_reset: bool = False, exact: bool = False) -> dict[str, Constant]:
    """Return the constants of an environment's kernels."""
    what, given = f"environment {env.name!r}: get_constants()", env.get_constants()
    for name, value in require_type(what, given, Mapping, "return a dict").items():
        is_numeric = np.asarray(value).dtype.kind in "biuf"
        require(is_numeric, f"{what}[{name!r}]", "must be a number, or a sequence of numbers", value)
    return {
        "N_AGENTS": int(env.num_agents),
        "EPISODE_LENGTH": int(env.episode_length),
        "AUTO_RESET": auto_reset,
        "EXACT": exact,
        **given,
    }


def push_environment(env: CUDAEnvironmentContext, data_manager: CUDADataManager) -> None:
    """Push an environment's three dictionaries to the device.

    Arrays get a row for each environment where the feed requests it.

    Raises:
        DeviceMemoryError: They do not fit; names the needed and free bytes, and how many environments fit.
    """
    feeds = _feeds(env, data_manager.n_envs)
    check_memory(feeds, data_manager)
    data_feed, tensor_feed, pool_feed = feeds
    data_manager.push_data_to_device(data_feed)
    data_manager.push_data_to_device(tensor_feed, torch_accessible=True)
    data_manager.push_data_to_device(pool_feed)
    if isinstance(env, Environment):
        _require_rows(env, data_manager)


def _feeds(env: CUDAEnvironmentContext, n_envs: int) -> list[DataFeed]:
    """Return an environment's three dictionaries.

    Entries that each environment has get the attribute ``n_copies``.
    """
    hooks = ("get_data_dictionary", "get_tensor_dictionary", "get_reset_pool_dictionary")
    feeds: list[DataFeed] = []
    for hook in hooks:
        feed = getattr(env, hook)()
        require_type(f"environment {type(env).__name__}: {hook}()", feed, Mapping, "return a DataFeed")
        feeds.append(feed)
    targets = {entry["attributes"]["reset_target"] for entry in feeds[-1].values()}
    for feed in feeds:
        for name, entry in feed.items():
            attributes = entry["attributes"]
            if attributes.get("per_env") or attributes.get("save_copy_and_apply_at_reset") or name in targets:
                attributes["n_copies"] = n_envs
    return feeds


def planned_entries(env: CUDAEnvironmentContext) -> dict[str, int]:
    """Return the later `CUDADataManager.entries` of a wrapper; imports no torch."""
    entries = dict.fromkeys((TIMESTEP, EPISODE, DONE), 1)
    pushed = [each for feed in _feeds(env, 1) for each in feed.items()]
    return entries | {name: np.size(entry["data"]) for name, entry in pushed if entry["attributes"].get("n_copies")}


def _require_rows(env: Environment, data: CUDADataManager) -> None:
    """Raise `ConfigError` unless agents' arrays have environment and agent axes."""
    for suffix, agents in agent_sets(env).items():
        for name in (Constants.ACTIONS, Constants.REWARDS, Constants.OBSERVATIONS):
            shape = data.get_shape(name + suffix) if data.is_data_on_device(name + suffix) else None
            what, n_agents = f"environment {env.name!r}: array {name + suffix!r}", len(agents)
            rule = f"must have a first axis of {data.n_envs} environments and another one of {n_agents} agents"
            axes = () if shape is None else shape[1:] if n_agents > 1 else shape[1:2]
            require(shape is None or (shape[0] == data.n_envs and n_agents in axes), what, rule, shape)


def check_memory(feeds: list[DataFeed], data_manager: CUDADataManager) -> None:
    """Raise `DeviceMemoryError` if the feeds exceed the device's free memory."""
    fixed = per_env = 0
    for feed in feeds:
        for entry in feed.values():
            attributes, size = entry["attributes"], 4 * np.size(entry["data"])
            copies = 2 if attributes.get("save_copy_and_apply_at_reset") else 1
            if attributes.get("log_data_across_episode"):  # only one environment is logged
                row = size if attributes.get("n_copies") else size // data_manager.n_envs
                fixed += row * (data_manager.episode_length + 1)
            if attributes.get("n_copies"):
                per_env += size * copies
            else:
                fixed += size * copies
    asked, free = fixed + per_env * data_manager.n_envs, data_manager.free_bytes()
    if asked > free:
        raise DeviceMemoryError(
            f"environments: {data_manager.n_envs:,} need {asked:,} bytes on {data_manager.device} "
            f"(free are {free:,}); at most {max(0, (free - fixed) // max(per_env, 1)):,} environments fit"
        )


def seed_resets(data_manager: CUDADataManager, seed: int) -> None:
    """Set the seed of random starts and pools; synchronises.

    Raises:
        ConfigError: The seed is not an integer, is negative, or has more than 64 bits.
    """
    data_manager.tensor(RESET_SEED).copy_(torch.tensor(seed_words(seed), dtype=torch.int32, device="cpu"))


def supports(env: Any, backend: Backend, sources: Mapping[Language, Source]) -> bool:
    """True if an environment has kernels for a backend."""
    return isinstance(env, CUDAEnvironmentContext) and backend.language in sources

"""WarpDrive's wrapper, for environments written for WarpDrive."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from warpdrive_min import env_wrapper
from warpdrive_min.backends.base import Language, Source
from warpdrive_min.compat import numba_modules
from warpdrive_min.compat.functions import registrar_renamed
from warpdrive_min.compat.managers import WrapperDataManager, WrapperFunctionManager
from warpdrive_min.compat.project import binary_path, default_source, source_of_binary
from warpdrive_min.compat.spaces import in_gym, space_of
from warpdrive_min.dialect import layout
from warpdrive_min.environment import Observations
from warpdrive_min.errors import require
from warpdrive_min.function_manager import CUDAFunctionFeed


class EnvWrapper(env_wrapper.EnvWrapper):
    """Our wrapper that also loads WarpDrive's Numba step modules.

    Arguments are those of our class, also by old names.
    """

    data_manager_class, function_manager_class = WrapperDataManager, WrapperFunctionManager
    first_observations: Observations
    """First observations by agent of the state that all copies started from."""

    @registrar_renamed
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.use_cuda = self.env_backend != "cpu"
        """True if the environment runs in kernels; `env_backend` in WarpDrive 1."""
        if hasattr(self.env, "use_cuda"):
            self.env.use_cuda = self.use_cuda
        if self.vectorised:
            self.cuda_function_feed = CUDAFunctionFeed(self.cuda_data_manager)

    def _observation_space(self) -> dict[Hashable, Any]:
        actions = {agent: in_gym(space) for agent, space in self.env.action_space.items()}
        if any(space is not self.env.action_space[agent] for agent, space in actions.items()):
            self.env.action_space = actions
        return {agent: in_gym(space) for agent, space in super()._observation_space().items()}

    def _sources(self) -> dict[Language, Source]:
        sources, language = super()._sources(), self.backend.language
        default = None if language in sources else default_source(self.name, language, type(self.env))
        return sources if default is None else {**sources, language: default}

    def _load(self, sources: Mapping[Language, Source], binary: str | Path | None) -> None:
        self.cuda_function_manager.compiled_in = getattr(self.env, "compiled_in", ())
        if binary and self.backend.language == "cuda_c" and (source := source_of_binary(binary_path(binary))):
            sources, binary = {**sources, "cuda_c": source}, None
        own = getattr(self.env, "kernel_sources", {}).get("numba")
        if self.backend.language == "numba" and sources["numba"] != own:
            module = numba_modules.execute(self.cuda_function_manager, str(sources["numba"]))
            if not hasattr(module, "build"):
                numba_modules.register_kernels(self.cuda_function_manager, module)
                return
        super()._load(sources, binary)

    def reset_all_envs(self) -> Observations:
        """Start a new episode in every copy."""
        is_first = self.reset_on_host
        observations = super().reset_all_envs()
        if is_first:
            self.first_observations = observations
        return observations

    reset = reset_all_envs

    def like(self, num_envs: int, *, seed: int = 0, auto_reset: bool = False) -> Self:
        """Return a wrapper of ``num_envs`` new copies with the same shared constants."""
        made = super().like(num_envs, seed=seed, auto_reset=auto_reset)
        there = made.cuda_data_manager.shared_constants
        given = self.cuda_data_manager.shared_constants
        constants = {name: value for name, value in given.items() if name not in there}
        made.cuda_data_manager.add_shared_constants(constants)
        made.cuda_function_manager.initialize_shared_constants(made.cuda_data_manager, list(constants))
        return made


class UserWrapperAdapter(env_wrapper.EnvWrapper):
    """Adapter of a user's wrapper with WarpDrive's interface.

    Uses only attributes that WarpDrive's own wrapper has.

    Args:
        given: Wrapper with the attributes `NEEDED`.

    Raises:
        ConfigError: An attribute is missing: the wrapper is of another kind or runs on the CPU.
    """

    def __init__(self, given: Any) -> None:
        for name in NEEDED:
            do = "WarpDrive's wrapper has it on a GPU backend"
            require(hasattr(given, name), f"wrapper {type(given).__name__}", f"needs the attribute {name!r}", do=do)
        self.given = given
        self.env = given.env
        self.name = getattr(given, "name", type(given.env).__name__)
        self.n_agents, self.n_envs, self.episode_length = given.n_agents, given.n_envs, given.episode_length
        self.cuda_data_manager, self.cuda_function_manager = given.cuda_data_manager, given.cuda_function_manager
        self.backend = self.cuda_function_manager.backend
        self.env_backend = self.backend.name
        self.blocks_per_env = self.cuda_function_manager.blocks_per_env
        self.vectorised, self.auto_reset, self.exact, self.debug = True, False, False, False
        self.resets_itself = False
        if getattr(self.env, "observation_space", None) is None:
            self.env.observation_space = {agent: space_of(each) for agent, each in self.obs_at_reset().items()}

    @property
    def can_be_repeated(self) -> bool:
        """False: its construction is unknown."""
        return False

    @property
    def reset_on_host(self) -> bool:  # type: ignore[override]  # read from the user's wrapper
        """True if the next reset starts on the host and pushes the arrays."""
        return bool(self.given.reset_on_host)

    def reset_all_envs(self) -> Observations:
        """Start a new episode in every copy by the user's method."""
        observations: Observations = self.given.reset_all_envs()
        return observations

    def reset_only_done_envs(self, undo_done_after_reset: bool = True) -> dict[str, Any]:
        """Restart copies that have ``_done_`` set, by the user's method."""
        more = {} if undo_done_after_reset else {"undo_done_after_reset": False}
        return self.given.reset_only_done_envs(**more) or {}

    def step_all_envs(self, actions: Any = None) -> Any:
        """Take one step in every copy by the user's method."""
        return self.given.step_all_envs(*([] if actions is None else [actions]))

    def obs_at_reset(self) -> Observations:
        """Return the Python environment's first observations."""
        at_reset = getattr(self.given, "obs_at_reset", None) or self.env.reset
        observations: Observations = at_reset()
        return observations

    reset = reset_all_envs
    step = step_all_envs

    def __getattr__(self, name: str) -> Any:
        if name == "given":
            raise AttributeError(name)
        return getattr(self.given, name)


NEEDED: Final = (
    *("env", "n_agents", "n_envs", "episode_length", "cuda_data_manager", "cuda_function_manager"),
    *("reset_on_host", "reset_all_envs", "reset_only_done_envs", "step_all_envs"),
)
"""Attributes of WarpDrive's GPU wrapper used by trainer and checker."""


def as_env_wrapper(wrapper: Any) -> env_wrapper.EnvWrapper:
    """Return one of our wrappers unchanged, and any other as a `UserWrapperAdapter`."""
    return wrapper if isinstance(wrapper, env_wrapper.EnvWrapper) else UserWrapperAdapter(wrapper)


def create_and_push_data_placeholders(env_wrapper: Any = None, *arguments: Any, **named: Any) -> None:
    """Push a trainer's arrays, for users' wrappers too.

    See `dialect.layout.create_and_push_data_placeholders`. Before 2.7 WarpDrive's function had no sampler argument; the
    policies came second.
    """
    if arguments and isinstance(arguments[0], Mapping):
        arguments = (None, *arguments)
    layout.create_and_push_data_placeholders(
        None if env_wrapper is None else as_env_wrapper(env_wrapper), *arguments, **named
    )

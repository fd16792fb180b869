"""WarpDrive's example environments with its arguments, defaults and starts."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from warpdrive_min import envs
from warpdrive_min.backends.base import Language
from warpdrive_min.compat.project import default_source
from warpdrive_min.environment import Array, Environment
from warpdrive_min.errors import require

Value = TypeVar("Value")

# ------------------------------------------------------------------ base


class _WarpDriveArguments:
    """Base of environments with WarpDrive's argument order and attributes.

    Fields of the config are attributes.
    """

    name: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    """Arguments of WarpDrive's class, in order."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """WarpDrive's defaults that differ from ours."""

    def __init__(self, *given: Any, **named: Any) -> None:
        what, rule = f"environment {self.name!r}", "takes each argument once"
        by_place = dict(zip(self.arguments, given, strict=False))
        is_fine = len(by_place) == len(given) and not by_place.keys() & named.keys()
        require(is_fine, what, rule, (given, named), f"in order they are {', '.join(self.arguments)}")
        super().__init__(**self.translated({**self.defaults, **by_place, **named}))
        self.seed = self.config.seed or 0

    def translated(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return our config for WarpDrive's."""
        return config

    def __getattr__(self, name: str) -> Any:
        if name != "config" and not name.startswith("_") and hasattr(self.config, name):
            return getattr(self.config, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


# ------------------------------------------------------------------ tag

_TAG_GRIDWORLD: Final = (
    *("num_taggers", "grid_length", "episode_length", "starting_location_x", "starting_location_y", "seed"),
    *("wall_hit_penalty", "tag_reward_for_tagger", "tag_penalty_for_runner", "step_cost_for_tagger"),
    *("use_full_observation", "env_backend"),
)


class TagGridWorld(_WarpDriveArguments, envs.TagGridWorld):
    """Tag on a grid; all copies and episodes have the same start."""

    arguments = _TAG_GRIDWORLD
    compiled_in = ("kIndexToActionArr",)
    """Shared constants of WarpDrive's kernels that are compiled into ours."""
    step_actions: ClassVar[Array] = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.int32)
    """Step along x and along y of each action."""


class CUDATagGridWorldWithResetPool(TagGridWorld):
    """Tag on a grid whose taggers start in one of five random arrangements."""

    defaults: ClassVar = {"reset_pool_size": 5}


class TagContinuous(_WarpDriveArguments, envs.TagContinuous):
    """Tag on a square; all copies and episodes have the seed's start."""

    arguments = (
        *("num_taggers", "num_runners", "grid_length", "episode_length", "starting_location_x", "starting_location_y"),
        *("starting_directions", "seed", "max_speed", "skill_level_runner", "skill_level_tagger"),
        *("max_acceleration", "min_acceleration", "max_turn", "min_turn", "num_acceleration_levels"),
        *("num_turn_levels", "edge_hit_penalty", "use_full_observation", "num_other_agents_observed"),
        *("tagging_distance", "tag_reward_for_tagger", "step_penalty_for_tagger", "tag_penalty_for_runner"),
        *("step_reward_for_runner", "end_of_game_reward_for_runner", "runner_exits_game_after_tagged", "env_backend"),
    )
    defaults: ClassVar = {"start": "fixed"}


# ------------------------------------------------------------------ classic control


class _ClassicControl(_WarpDriveArguments):
    """Single-agent environment with one start, or a pool of two or more."""

    arguments = ("episode_length", "env_backend", "reset_pool_size", "seed")

    def translated(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the config with one start as a pool of one."""
        return {**config, "reset_pool_size": max(1, config.get("reset_pool_size", 0))}


class CartPole(_ClassicControl, envs.CartPole):
    """CartPole with one start, or a pool."""

    name = "ClassicControlCartPoleEnv"


class MountainCar(_ClassicControl, envs.MountainCar):
    """MountainCar with one start, or a pool."""

    name = "ClassicControlMountainCarEnv"


class ContinuousMountainCar(_ClassicControl, envs.ContinuousMountainCar):
    """ContinuousMountainCar with one start, or a pool."""

    name = "ClassicControlContinuousMountainCarEnv"


class Acrobot(_ClassicControl, envs.Acrobot):
    """Acrobot with one start, or a pool."""

    name = "ClassicControlAcrobotEnv"


class Pendulum(_ClassicControl, envs.Pendulum):
    """Pendulum with one start, or a pool, and WarpDrive's gravity."""

    name = "ClassicControlPendulumEnv"
    defaults: ClassVar = {"gravity": 9.81}


class SingleAgentEnv:
    """Base of users' single-agent environments; the agent's id is 0.

    Args:
        episode_length: Steps until truncation.
        env_backend: Backend.
        reset_pool_size: Number of starts; below 2 every start is the same.
        seed: Seed of the starts.

    Raises:
        ConfigError: The length is not positive.
    """

    def __init__(
        self, episode_length: int = 500, env_backend: str = "cpu", reset_pool_size: int = 0, seed: int | None = None
    ) -> None:
        require(episode_length > 0, "SingleAgentEnv", "episode_length must be positive", episode_length)
        self.num_agents = 1
        self.agents = {0: True}
        self.episode_length, self.env_backend = episode_length, env_backend
        self.reset_pool_size, self.seed = reset_pool_size, seed
        self.action_space: Any = None
        self.observation_space: Any = None
        self.timestep: int | None = None


def map_to_single_agent(value: Value) -> dict[int, Value]:
    """Return a value as a dict of agent 0."""
    return {0: value}


def get_action_for_single_agent(action: Mapping[int, Value]) -> Value:
    """Return the action of agent 0.

    Raises:
        ConfigError: The actions are not a dict of agent 0 alone.
    """
    require(isinstance(action, Mapping) and list(action) == [0], "action", "must be a dict of agent 0 alone", action)
    return action[0]


# ------------------------------------------------------------------ sources

_ALL: Final = (TagGridWorld, TagContinuous, CartPole, MountainCar, ContinuousMountainCar, Acrobot, Pendulum)
_CLASSES: Final[dict[str, type[Environment]]] = {each.name: each for each in _ALL}


def _source(language: Language, env_name: str) -> str | None:
    """Return the source of an example environment's kernels; None if unknown.

    WarpDrive's source comes before ours.
    """
    found = default_source(env_name, language)
    if found is None and env_name in _CLASSES:
        found = _CLASSES[env_name].kernel_sources[language]
    return None if found is None else str(found)


source_in_cuda_c = functools.partial(_source, "cuda_c")
"""WarpDrive's ``get_default_env_directory`` for PyCUDA."""
source_in_numba = functools.partial(_source, "numba")
"""WarpDrive's ``get_default_env_directory`` for Numba."""


def _build(env_name: str, c: Any) -> Any:
    """Return an example environment's Numba kernels for its constants."""
    return importlib.import_module(str(_CLASSES[env_name].kernel_sources["numba"])).build(c)


build_tag_gridworld = functools.partial(_build, TagGridWorld.name)
build_tag_continuous = functools.partial(_build, TagContinuous.name)
build_cartpole = functools.partial(_build, CartPole.name)
build_mountain_car = functools.partial(_build, MountainCar.name)
build_continuous_mountain_car = functools.partial(_build, ContinuousMountainCar.name)
build_acrobot = functools.partial(_build, Acrobot.name)
build_pendulum = functools.partial(_build, Pendulum.name)

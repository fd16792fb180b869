"""The subject of a validation: an environment class, found by path or name, with a config on a backend."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min import backends
from warpdrive_min.backends.base import Language
from warpdrive_min.constants import TIMESTEP, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import CUDAEnvironmentContext, Environment, agent_sets, push_environment, seed_resets
from warpdrive_min.errors import ConfigError, known, require
from warpdrive_min.policies import random_policy

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""Arrays with a row for each environment, by name."""
Actions = dict[str, torch.Tensor]
"""Actions of a step, by the names of their arrays."""
Trace = list[Arrays]
"""Arrays of a run: at the start and after each step."""

STAGGER = 3
"""Environment `i` of a run starts ``1 + STAGGER * i`` steps before the end of its episode."""


# ------------------------------------------------------------------ the class


def load_class(target: str, name: str | None = None) -> type[CUDAEnvironmentContext]:
    """Import an environment class.

    Args:
        target: Folder of a package, path of a module, or ``package.module:ClassName``. By path nothing need be
            installed: the folder above the outermost package goes on ``sys.path``.
        name: Of the class, where there are several.

    Raises:
        ConfigError: There is no such module or class, several classes, or another module of that name.
    """
    dotted, _, after = target.partition(":")
    path = Path(target)
    if path.exists():
        module = _import_path(path)
    elif after or "/" not in target:
        is_name = all(part.isidentifier() for part in dotted.split("."))
        require(is_name, "environment", "must be a path, or a module's dotted name", target, "give it as module:Class")
        module = _import(dotted, target)
        name = after or name
    else:
        raise ConfigError(f"environment: the path must exist (got {target})")
    found = {
        each.__name__: each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, CUDAEnvironmentContext) and each not in BASES
    }
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is None and not found:
        raise ConfigError(f"environment: {target} must have a class derived from Environment (got none); add one")
    if name is None:
        rule = f"must have one environment, or be followed by its name (got {known(found)})"
        raise ConfigError(f"environment: {target} {rule}; give one as module:Class")
    if name not in found:
        rule = f"has no environment {name!r} (known: {known(found)})"
        raise ConfigError(f"environment: {target} {rule}; give one of these")
    return found[name]


BASES = (Environment, CUDAEnvironmentContext)


def _import_path(path: Path) -> ModuleType:
    path = path.resolve()
    if path.is_dir() and not (path / "__init__.py").exists():
        raise ConfigError(f"environment: {path} must be a package (got a folder without __init__.py); add one")
    top = path.parent
    while (top / "__init__.py").exists():
        top = top.parent
    if str(top) not in sys.path:
        sys.path.insert(0, str(top))
    dotted = ".".join(path.relative_to(top).with_suffix("").parts)
    module = _import(dotted, str(path))
    file = path / "__init__.py" if path.is_dir() else path
    if Path(module.__file__ or "").resolve() != file:
        raise ConfigError(
            f"environment: {path} must not have the name of another module (got {dotted!r}, which is "
            f"{module.__file__}); rename it"
        )
    return module


def _import(dotted: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(dotted)
    except ImportError as error:
        raise ConfigError(f"environment: cannot import {dotted!r} of {target}: {error}") from error


# ------------------------------------------------------------------ the subject


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Environment with one config on one backend, and how much of it to run."""

    target: str
    """As for `load_class`: a process of its own imports the class again."""
    cls: type[CUDAEnvironmentContext]
    backend: str
    config: Mapping[str, Any] = field(default_factory=dict)
    n_envs: int = 37
    n_steps: int = 40
    seed: int = 0
    tolerance: float = 1e-4
    """Largest absolute difference from the reference in a build that is not exact."""

    @property
    def language(self) -> Language:
        """Language that the backend runs."""
        return backends.get(self.backend).language

    @property
    def has_reference(self) -> bool:
        """The environment has NumPy kernels."""
        return "numpy" in self.cls.kernel_sources

    def wrapper(self, **options: Any) -> EnvWrapper:
        """Build a wrapper that is not started; ``options`` are `EnvWrapper`'s."""
        cls: Any = self.cls
        defaults = {"num_envs": self.n_envs, "env_backend": self.backend, "seed": self.seed}
        return EnvWrapper(cls(**self.config), **{**defaults, **options})

    def start(self, **options: Any) -> EnvWrapper:
        """Build and start a wrapper whose environments are in different parts of their episodes.

        So a run that is shorter than an episode meets ends too. Where an environment stands depends on its number
        alone, not on how many there are.
        """
        wrapper = self.wrapper(**options)
        wrapper.reset()
        timestep = wrapper.cuda_data_manager.tensor(TIMESTEP)
        timestep.copy_((-1 - STAGGER * torch.arange(wrapper.n_envs, device="cpu")) % wrapper.episode_length)
        return wrapper

    @functools.cached_property
    def trace(self) -> Trace:
        """The run that most checks look at: exact, with auto-reset."""
        return self.play()

    def play(self, **options: Any) -> Trace:
        """Run with random actions of the subject's seed, exact and with auto-reset; ``options`` as for `start`."""
        wrapper = self.start(**{"exact": True, "auto_reset": True, **options})
        return play(wrapper, draw_actions(wrapper, self.n_steps, int(options.get("seed", self.seed))))


def play(wrapper: EnvWrapper, actions: Iterable[Actions]) -> Trace:
    """Step with these actions; returns the arrays at the start and after each step."""
    return [snapshot(wrapper), *(replay(wrapper, each) for each in actions)]


def snapshot(wrapper: EnvWrapper) -> Arrays:
    """Return host copies of the arrays with a row for each environment; synchronises."""
    data = wrapper.cuda_data_manager
    return {
        name: np.asarray(data.pull_data_from_device(name))
        for name in data.array_names()
        if data.get_shape(name)[:1] == (wrapper.n_envs,)
    }


def replay(wrapper: EnvWrapper, actions: Actions, step: Callable[[], None] | None = None) -> Arrays:
    """Take a step, the wrapper's or another one, with these actions and return the arrays."""
    for name, values in actions.items():
        wrapper.cuda_data_manager.tensor(name).copy_(values)
    (step or wrapper.step)()
    return snapshot(wrapper)


def draw_actions(wrapper: EnvWrapper, n_steps: int, seed: int) -> list[Actions]:
    """Draw the actions of so many steps; a wrapper can have this done once."""
    draw, data = random_policy(wrapper, seed), wrapper.cuda_data_manager
    arrays = {name: data.tensor(name) for name in (Constants.ACTIONS + each for each in agent_sets(wrapper.env))}
    drawn = []
    for _ in range(n_steps):
        draw()
        drawn.append({name: array.clone() for name, array in arrays.items()})
    return drawn


def push_unstarted(wrapper: EnvWrapper, seed: int) -> None:
    """Push the arrays of a wrapper without starting it, so that they can be moved before a kernel is bound to them."""
    wrapper.env.reset()
    push_environment(wrapper.env, wrapper.cuda_data_manager)
    seed_resets(wrapper.cuda_data_manager, seed)
    wrapper.reset_on_host = False

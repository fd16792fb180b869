"""WarpDrive's helper functions: launch limits, contexts, configs, sizes."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch

from warpdrive_min import backends
from warpdrive_min.errors import require
from warpdrive_min.function_manager import MAX_THREADS

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def calculate_blocks_per_env(num_agents: int) -> int:
    """Return the number of blocks that gives each agent a thread."""
    return max(1, -(-num_agents // MAX_THREADS))


def make_current_context(device_id: int | None = None) -> Any:
    """Push a device's primary context, which torch also uses; the caller pops it.

    Raises:
        BackendUnavailable: PyCUDA or a GPU is missing.
    """
    backends.get("pycuda")
    import pycuda.driver as driver  # noqa: PLC0415  (optional)

    torch.cuda.init()
    driver.init()
    device = driver.Device(torch.cuda.current_device() if device_id is None else device_id)
    context = device.retain_primary_context()
    context.push()
    return context


class Argfix:
    """Decorator that renames keyword arguments with a `DeprecationWarning`.

    Args:
        arg_mapping: New names by old name.
    """

    def __init__(self, arg_mapping: Mapping[str, str]) -> None:
        self.arg_mapping = arg_mapping

    def __call__(self, function: Function) -> Function:
        """Return the function that accepts both names."""

        @functools.wraps(function)
        def renamed(*arguments: Any, **named: Any) -> Any:
            for old, new in self.arg_mapping.items():
                if old in named:
                    warnings.warn(
                        f"{function.__name__}: {old} is the old name of {new}", DeprecationWarning, stacklevel=2
                    )
                    named[new] = named.pop(old)
            return function(*arguments, **named)

        return cast(Function, renamed)


registrar_renamed: Final = Argfix(dict.fromkeys(("customized_env_registrar", "env_registry"), "env_registrar"))
"""Renames the registrar argument of WarpDrive before 1.5."""

# ------------------------------------------------------------------ parts of WarpDrive's trainers

BIG_NUMBER: Final = 1e20
"""Bound of WarpDrive's observation spaces."""


def all_equal(values: Iterable[Hashable]) -> bool:
    """True if all values are equal, or there are no values."""
    return len(set(values)) <= 1


def recursive_merge_config_dicts(config: dict[str, Any], default_config: Mapping[str, Any]) -> dict[str, Any]:
    """Add missing defaults to a config in place, at every depth, and return it."""
    for key, value in default_config.items():
        if isinstance(config.setdefault(key, value), dict) and isinstance(value, Mapping):
            recursive_merge_config_dicts(config[key], value)
    return config


def verbose_print(message: str, device_id: int | None = None) -> None:
    """Print a message with the number of its device."""
    print(f"[Device {device_id or 0}]: {message} ")


def soft_update(target: torch.nn.Module, source: torch.nn.Module, tau: float) -> None:
    """Move a network's parameters towards another's by a fraction ``tau``; enqueues."""
    with torch.no_grad():
        for to, towards in zip(target.parameters(), source.parameters(), strict=True):
            to.lerp_(towards, tau)


def hard_update(target: torch.nn.Module, source: torch.nn.Module) -> None:
    """Copy a network's parameters into another of the same shape; enqueues."""
    with torch.no_grad():
        for to, value in zip(target.parameters(), source.parameters(), strict=True):
            to.copy_(value)


header_sizes: dict[str, int] = {"n_envs": 1, "n_agents": 1, "blocks_per_env": 1}
"""Sizes for ``PyCUDAFunctionManager.compile``, set by `update_env_header`."""


def update_env_header(
    template_header_file: str,
    path: str | Path | None = None,
    num_envs: int = 1,
    num_agents: int = 1,
    blocks_per_env: int = 1,
) -> None:
    """Store the sizes of the next manual build; the template file is ignored."""
    header_sizes.update(n_envs=num_envs, n_agents=num_agents, blocks_per_env=blocks_per_env)


def check_env_header(
    header_file: str = "env_config.h",
    path: str | Path | None = None,
    num_envs: int = 1,
    num_agents: int = 1,
    blocks_per_env: int = 1,
) -> None:
    """Raise `ConfigError` unless the stored sizes match; the file is ignored."""
    want = {"n_envs": num_envs, "n_agents": num_agents, "blocks_per_env": blocks_per_env}
    require(header_sizes == want, header_file, f"must have the sizes {want}", header_sizes, "call update_env_header")


def update_env_runner(
    template_runner_file: str,
    path: str | Path | None = None,
    env_name: str | None = None,
    customized_env_registrar: Any = None,
) -> None:
    """Do nothing: a build reads its source directly; all arguments are ignored."""

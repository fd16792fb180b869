"""WarpDrive's small functions: launch limits, the device context, renamed arguments."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch

from warpdrive_min import backends
from warpdrive_min.backends.cuda_c import MAX_CLUSTER
from warpdrive_min.function_manager import MAX_THREADS

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def calculate_blocks_per_env(num_agents: int) -> int:
    """Return the blocks that give each agent a thread."""
    return max(1, -(-num_agents // MAX_THREADS))


def validate_device_setup(arch: str, num_blocks: int, threads_per_block: int, blocks_per_env: int) -> bool:
    """Tell whether a launch can run; logs a warning where not.

    The number of blocks does not matter: blocks that share an environment are a cluster, which is scheduled as one.

    Args:
        arch: Architecture, ``"sm_90"``.
        num_blocks: Blocks of the grid; any number will do.
        threads_per_block: Threads of each.
        blocks_per_env: Blocks that share an environment.
    """
    if threads_per_block > MAX_THREADS:
        log.warning("a block has at most %d threads (got %d)", MAX_THREADS, threads_per_block)
        return False
    has_clusters = int(arch.removeprefix("sm_").rstrip("af")) >= 90
    if blocks_per_env > (MAX_CLUSTER if has_clusters else 1):
        log.warning("%s cannot run %d blocks for an environment", arch, blocks_per_env)
        return False
    return True


def make_current_context(device_id: int | None = None) -> Any:
    """Push a device's primary context, which torch uses too, and return it; the caller pops it.

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
    """Decorator that renames keyword arguments, with a `DeprecationWarning`, before it calls the function.

    Args:
        arg_mapping: New name of each old one.
    """

    def __init__(self, arg_mapping: Mapping[str, str]) -> None:
        self.arg_mapping = arg_mapping

    def __call__(self, function: Function) -> Function:
        """Return the function that takes both."""

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

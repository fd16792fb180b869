"""Multi-agent reinforcement learning on the GPU, with WarpDrive's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warpdrive_min import stopping

if stopping.is_starting():  # the other imports take seconds
    stopping.end_at_once()

from warpdrive_min import forks  # noqa: F401  (notes forks from now on)
from warpdrive_min.lazy import AfterImport, MovedModules, on_first_use

if TYPE_CHECKING:
    from warpdrive_min.agreement import EnvironmentCPUvsGPU as EnvironmentCPUvsGPU
    from warpdrive_min.backends import BACKENDS as BACKENDS
    from warpdrive_min.backends import availability as availability
    from warpdrive_min.constants import Constants as Constants
    from warpdrive_min.data_feed import DataFeed as DataFeed
    from warpdrive_min.data_manager import CUDADataManager as CUDADataManager
    from warpdrive_min.env_wrapper import EnvWrapper as EnvWrapper
    from warpdrive_min.environment import CUDAEnvironmentContext as CUDAEnvironmentContext
    from warpdrive_min.environment import Environment as Environment
    from warpdrive_min.function_manager import (
        CUDAFunctionFeed as CUDAFunctionFeed,
    )
    from warpdrive_min.function_manager import (
        CUDAFunctionManager as CUDAFunctionManager,
    )
    from warpdrive_min.graph import capture as capture
    from warpdrive_min.logger import CUDALogController as CUDALogController
    from warpdrive_min.registrar import EnvironmentRegistrar as EnvironmentRegistrar
    from warpdrive_min.registrar import env_registrar as env_registrar
    from warpdrive_min.resetter import CUDAEnvironmentReset as CUDAEnvironmentReset
    from warpdrive_min.ring_buffer import RingBuffer as RingBuffer
    from warpdrive_min.ring_buffer import RingBufferManager as RingBufferManager
    from warpdrive_min.sampler import CUDASampler as CUDASampler

NAMES: Final = {
    "agreement": ("EnvironmentCPUvsGPU",),
    "backends": ("BACKENDS", "availability"),
    "constants": ("Constants",),
    "data_feed": ("DataFeed",),
    "data_manager": ("CUDADataManager",),
    "env_wrapper": ("EnvWrapper",),
    "environment": ("CUDAEnvironmentContext", "Environment"),
    "function_manager": ("CUDAFunctionFeed", "CUDAFunctionManager"),
    "graph": ("capture",),
    "logger": ("CUDALogController",),
    "registrar": ("EnvironmentRegistrar", "env_registrar"),
    "resetter": ("CUDAEnvironmentReset",),
    "ring_buffer": ("RingBuffer", "RingBufferManager"),
    "sampler": ("CUDASampler",),
}
"""Public names of each module, imported on first use."""
__all__ = sorted(name for names in NAMES.values() for name in names)
if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    __getattr__ = on_first_use(__name__, {**NAMES, "consistency": (), "validation": ()})

MovedModules(
    {
        f"{__name__}.{old}": f"{__name__}.agreement{new}"
        for old, new in {
            "consistency": "",
            "consistency.arrays": ".compare",
            "consistency.checker": ".checker",
            "consistency.steps": ".stepping",
            "validation": "",
            "validation.checks": ".checks",
            "validation.subject": ".subject",
        }.items()
    }
)

AfterImport("gymnasium", f"{__name__}.bridges.registration:register_envs")  # Gymnasium itself has no plugins


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

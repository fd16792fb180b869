"""Multi-agent reinforcement learning on the GPU, with WarpDrive's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpdrive_min import stopping

if stopping.is_starting():  # the other imports take seconds
    stopping.end_at_once()

from warpdrive_min import forks  # noqa: F401  (notes forks from now on)
from warpdrive_min.lazy import AfterImport, MovedModules, on_first_use

if TYPE_CHECKING:
    from warpdrive_min.agreement import EnvironmentCPUvsGPU
    from warpdrive_min.backends import BACKENDS, availability
    from warpdrive_min.constants import Constants
    from warpdrive_min.data_feed import DataFeed
    from warpdrive_min.data_manager import CUDADataManager
    from warpdrive_min.env_wrapper import EnvWrapper
    from warpdrive_min.environment import CUDAEnvironmentContext, Environment
    from warpdrive_min.function_manager import CUDAFunctionFeed, CUDAFunctionManager
    from warpdrive_min.graph import capture
    from warpdrive_min.logger import CUDALogController
    from warpdrive_min.registrar import EnvironmentRegistrar, env_registrar
    from warpdrive_min.resetter import CUDAEnvironmentReset
    from warpdrive_min.ring_buffer import RingBuffer, RingBufferManager
    from warpdrive_min.sampler import CUDASampler
else:  # hidden from type checkers, which would accept any name
    __getattr__ = on_first_use(
        __name__,
        {
            "agreement": ("EnvironmentCPUvsGPU",),
            "backends": ("BACKENDS", "availability"),
            "consistency": (),
            "validation": (),
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
        },
    )

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

__all__ = [
    "BACKENDS",
    "CUDADataManager",
    "CUDAEnvironmentContext",
    "CUDAEnvironmentReset",
    "CUDAFunctionFeed",
    "CUDAFunctionManager",
    "CUDALogController",
    "CUDASampler",
    "Constants",
    "DataFeed",
    "EnvWrapper",
    "Environment",
    "EnvironmentCPUvsGPU",
    "EnvironmentRegistrar",
    "RingBuffer",
    "RingBufferManager",
    "availability",
    "capture",
    "env_registrar",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

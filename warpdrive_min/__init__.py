"""warpdrive_min: end-to-end multi-agent reinforcement learning on the GPU, with WarpDrive's names."""

from __future__ import annotations

from warpdrive_min import stopping

if stopping.is_starting():  # to import the rest takes seconds
    stopping.end_at_once()

from warpdrive_min.backends import BACKENDS, availability
from warpdrive_min.consistency import EnvironmentCPUvsGPU
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

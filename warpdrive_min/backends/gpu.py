"""GPU state from torch for both GPU backends: device and stream."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from warpdrive_min.backends.base import Availability, Backend
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())


class GpuBackend(Backend):
    """Backend on torch's current GPU."""

    captures_graphs: ClassVar[bool] = True

    @property
    def device(self) -> torch.device:
        """Current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def threads(self) -> int | None:
        """None: a GPU."""
        return None

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()


def gpu_availability() -> Availability:
    """Return the availability of a GPU in torch.

    A CPU-only build is detected without importing torch, which takes seconds.
    """
    is_for_cpus = _is_for_cpus()
    if not is_for_cpus and torch.cuda.is_available():
        return Availability(True, torch.cuda.get_device_name())
    if is_for_cpus or torch.version.cuda is None:
        return Availability(
            False, "torch is a build without CUDA", "install a CUDA build of torch on a machine with an NVIDIA GPU"
        )
    return Availability(False, "torch finds no NVIDIA GPU", "run on a machine with an NVIDIA GPU and its driver")


def _is_for_cpus() -> bool:
    """True if torch is not imported and its version file is CPU-only.

    The file then names neither CUDA nor ROCm.
    """
    found = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        versions = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    except OSError:
        return False
    return "cuda" in versions and versions["cuda"] is None and versions.get("hip") is None


def current_stream() -> int:
    """Return the handle of torch's current stream; 0 is the default stream."""
    return int(torch.cuda.current_stream().cuda_stream)

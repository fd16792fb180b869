"""Answers of torch to both GPU backends: whether there is a GPU, which is current, and which stream."""

from __future__ import annotations

from typing import ClassVar

import torch

from warpdrive_min.backends.base import Availability, Backend


class GpuBackend(Backend):
    """A backend on torch's current GPU."""

    captures_graphs: ClassVar[bool] = True

    @property
    def device(self) -> torch.device:
        """The current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def threads(self) -> int | None:
        """None: a GPU."""
        return None

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()


def gpu_availability() -> Availability:
    """Say whether torch sees a GPU."""
    if torch.cuda.is_available():
        return Availability(True, torch.cuda.get_device_name())
    if torch.version.cuda is None:
        return Availability(
            False, "torch is a build without CUDA", "install a CUDA build of torch on a machine with an NVIDIA GPU"
        )
    return Availability(False, "torch finds no NVIDIA GPU", "run on a machine with an NVIDIA GPU and its driver")


def current_stream() -> int:
    """Return the handle of torch's current stream; 0 is the default one."""
    return int(torch.cuda.current_stream().cuda_stream)

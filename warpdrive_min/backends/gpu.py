"""Questions of both GPU backends to torch: is there a GPU, and which stream is current."""

from __future__ import annotations

import torch

from warpdrive_min.backends.base import Availability


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

"""Free memory of a device, and a check before large allocations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warpdrive_min.errors import DeviceMemoryError
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

SMALL: Final = 2**28
"""Largest allocation that is not checked, bytes."""


def free_bytes(device: torch.device) -> int:
    """Return a device's free memory, in bytes.

    On a GPU: the driver's free memory plus torch's cache. On a CPU: memory that Linux provides without swapping.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # total memory; only Linux reports free memory


def require_room(what: str, n_bytes: int, device: torch.device, do: str) -> None:
    """Raise an error if a CPU allocation exceeds the free memory.

    Without this check the system would overcommit.

    Raises:
        DeviceMemoryError: The allocation does not fit.
    """
    if device.type == "cpu" and n_bytes > SMALL and n_bytes > (free := free_bytes(device)):
        raise DeviceMemoryError(
            f"{what}: the CPU has too little memory (asked for {n_bytes:,} bytes, {free:,} are free); {do}"
        )

"""Free memory of a device, and the check that something large fits into it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch

from warpdrive_min.errors import DeviceMemoryError

SMALL: Final = 2**28
"""Bytes below which nobody looks whether they fit."""


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device, in bytes.

    On a GPU it is that of the driver and of torch's own cache; on a CPU what Linux can give without swapping.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # no system but Linux tells more


def require_room(what: str, n_bytes: int, device: torch.device, do: str) -> None:
    """Raise an error, before a CPU's memory is overcommitted, if an allocation does not fit.

    Raises:
        DeviceMemoryError: It does not.
    """
    if device.type == "cpu" and n_bytes > SMALL and n_bytes > (free := free_bytes(device)):
        raise DeviceMemoryError(f"{what}: cpu is full (asked for {n_bytes:,} bytes, {free:,} are free); {do}")

"""Arrays of the data manager in every library that speaks DLPack: NumPy, CuPy, JAX and others; no copy, no package."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import DataError


def export(data_manager: CUDADataManager, name: str) -> torch.Tensor:
    """Return an array for any ``from_dlpack``, which then shares its memory.

    The consumer's stream waits for the kernels that are enqueued; nothing synchronises. The memory lives as long as any
    of its users; write to it only while no kernel does.

    Raises:
        DataError: There is no array of that name.
    """
    return data_manager.tensor(name).detach()


def assign(data_manager: CUDADataManager, name: str, source: Any) -> None:
    """Copy an array of another library into one of the data manager.

    Enqueues, and synchronises only if the array comes from another device.

    Args:
        data_manager: With the array.
        name: Its name.
        source: What has ``__dlpack__``, or a DLPack capsule; of the same shape, and of numbers that the array can hold:
            integers of another size are converted, real numbers do not become integers.

    Raises:
        DataError: There is no array of that name, its shape differs, its numbers are of another kind, or the source is
            no such array.
    """
    target = data_manager.tensor(name)
    try:
        given = from_dlpack(source)
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise DataError.of("assign", f"{name!r} must get an array that speaks DLPack", f"{error}") from None
    if given.shape != target.shape:
        raise DataError(f"assign: {name!r} must get shape {tuple(target.shape)} (got {tuple(given.shape)})")
    if not torch.can_cast(given.dtype, target.dtype):
        raise DataError.of("assign", f"{name!r} must get numbers of {target.dtype}", given.dtype, "convert them first")
    target.copy_(given)

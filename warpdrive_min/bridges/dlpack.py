"""Arrays of the data manager as DLPack, for NumPy, CuPy, JAX and others.

No array is copied on export; no package is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from warpdrive_min.conversion import require_range
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import DataError


def export(data_manager: CUDADataManager, name: str) -> torch.Tensor:
    """Return an array for any ``from_dlpack``; the consumer shares its memory.

    The consumer's stream waits for enqueued kernels; nothing synchronises. The memory lives as long as any user. Write
    to it only while no kernel does.

    Raises:
        DataError: No array has that name.
    """
    return data_manager.tensor(name).detach()


def assign(data_manager: CUDADataManager, name: str, source: Any) -> None:
    """Copy an array of another library into one of the data manager.

    Enqueues, and synchronises only if the array comes from another device or has another dtype.

    Args:
        data_manager: Owner of the target array.
        name: Name of the target array.
        source: An object with ``__dlpack__``, or a DLPack capsule of an array without negative strides. The shape must
            match and the array must be able to hold the numbers: integers of another size are converted, real numbers
            do not become integers.

    Raises:
        DataError: The array does not exist, its shape differs, its numbers are of another kind or out of range,
            or the source is not such an array.
    """
    target = data_manager.tensor(name)
    try:
        if min(getattr(source, "strides", None) or (0,)) < 0:  # of NumPy and CuPy; torch would abort the process
            raise ValueError("negative strides: copy it first")
        given = source.detach() if isinstance(source, torch.Tensor) else from_dlpack(source)
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise DataError.of("assign", f"{name!r} must get an array that supports DLPack", f"{error}") from None
    if given.shape != target.shape:
        raise DataError(f"assign: {name!r} must get shape {tuple(target.shape)} (got {tuple(given.shape)})")
    if not torch.can_cast(given.dtype, target.dtype):
        raise DataError.of("assign", f"{name!r} must get numbers of {target.dtype}", given.dtype, "convert them first")
    require_range(f"assign: {name!r}", given, target.dtype)
    target.copy_(given)

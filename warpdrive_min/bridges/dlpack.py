"""Arrays of the data manager as DLPack, for NumPy, CuPy, JAX and others.

No array is copied on export; no package is needed.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

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
        source: An object with ``__dlpack__``, or a DLPack capsule. The shape must match and the array must be able to
            hold the numbers: integers of another size are converted, real numbers do not become integers. No
            negative strides.

    Raises:
        DataError: The array does not exist, its shape differs, its numbers are of another kind or out of range,
            or the source is not such an array.
    """
    target = data_manager.tensor(name)
    try:
        if isinstance(source, torch.Tensor):
            given = source.detach()
        elif hasattr(source, "__dlpack__"):
            given = from_dlpack(_Checked(source))
        else:
            given = from_dlpack(_checked(source))
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise DataError.of("assign", f"{name!r} must get an array that supports DLPack", f"{error}") from None
    if given.shape != target.shape:
        raise DataError(f"assign: {name!r} must get shape {tuple(target.shape)} (got {tuple(given.shape)})")
    if not torch.can_cast(given.dtype, target.dtype):
        raise DataError.of("assign", f"{name!r} must get numbers of {target.dtype}", given.dtype, "convert them first")
    require_range(f"assign: {name!r}", given, target.dtype)
    target.copy_(given)


class _Checked:
    """Array of another library; strides are checked before torch reads them."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return _checked(self._source.__dlpack__(**options))


class _Array(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


_OFFSETS: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Offset of the array in a capsule's struct by capsule name, bytes."""


def _checked(capsule: Any) -> Any:
    """Return a DLPack capsule; raise `ValueError` for negative strides.

    Torch aborts the process on them.
    """
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    for name, offset in _OFFSETS.items():
        if api.PyCapsule_IsValid(ctypes.py_object(capsule), name):
            array = _Array.from_address(api.PyCapsule_GetPointer(capsule, name) + offset)
            if array.strides and min(array.strides[: array.ndim], default=0) < 0:
                raise ValueError("negative strides: copy it first")
    return capsule

"""Conversion of users' numbers to tensors, and checks of their range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warpdrive_min.errors import DataError, WarpDriveError, require
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())


def as_tensor(value: Any) -> torch.Tensor:
    """Convert an array, list or number to a tensor without gradient.

    Raises:
        TypeError, ValueError, RuntimeError: The value holds no numbers.
    """
    if isinstance(value, torch.Tensor):
        return value.detach()
    # Copies arrays with negative strides, which torch rejects.
    given = np.asarray(value, order="C") if isinstance(value, np.ndarray | np.generic) else value
    return torch.as_tensor(given, device="cpu")


def require_range(what: str, given: torch.Tensor, dtype: torch.dtype, error: type[WarpDriveError] = DataError) -> None:
    """Raise an error unless all numbers fit another dtype.

    NaN and infinities pass. Synchronises if the dtypes differ.
    """
    if given.dtype == dtype or given.numel() == 0 or dtype == torch.bool:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if given.is_floating_point():
        ends = torch.where(given.isfinite(), given, 0).aminmax()
    elif given.dtype == torch.uint64:  # torch compares only the lower half of its range
        ends = (given.view(torch.int64) ^ -(2**63)).aminmax()
    else:
        ends = given.long().aminmax()
    shift = 2**63 if given.dtype == torch.uint64 else 0
    for end in ends:
        number = end.item() + shift
        rule = f"must be from {limits.min} to {limits.max}, the range of {dtype}"
        require(limits.min <= number <= limits.max, what, rule, number, error=error)

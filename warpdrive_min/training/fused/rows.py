"""Rows of an array, gathered: torch gives each row a block of threads, which is slow for short ones."""

from __future__ import annotations

from typing import Final

import torch

from warpdrive_min.training.fused.sizes import power_of_two

WIDEST: Final = 128
"""Numbers of a row that are gathered here."""
TILE: Final = 1_024
"""Numbers of a block."""


def take(array: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return rows of a contiguous array (n, ...) of 4-byte numbers, in the order of ``indices`` (rows,); enqueues."""
    width = array[0].numel()
    if width > WIDEST:
        return array.index_select(0, indices)
    from warpdrive_min.training.fused import rows_kernels

    out = torch.empty(len(indices), *array.shape[1:], dtype=array.dtype, device=array.device)
    columns = power_of_two(width)
    block = TILE // columns
    rows_kernels.take[(-(-len(indices) // block),)](
        array, indices, out, len(indices), WIDTH=width, ROWS=block, COLUMNS=columns
    )
    return out

"""Short rows of arrays, gathered and scattered: torch gives each row a block of threads, which is slow for them."""

from __future__ import annotations

from typing import Any, Final

import torch

from warpdrive_min.training.paths.triton.sizes import power_of_two

WIDEST: Final = 128
"""Numbers of a row that are moved here."""
TILE: Final = 1_024
"""Numbers of a block."""


def take(array: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return rows of a contiguous array (n, ...) of 4-byte numbers, in the order of ``indices`` (rows,); enqueues."""
    width = array[0].numel()
    if width > WIDEST:
        return array.index_select(0, indices)
    from warpdrive_min.training.paths.triton import rows_kernels

    out = torch.empty(len(indices), *array.shape[1:], dtype=array.dtype, device=array.device)
    grid, blocks = _cut(len(indices), width)
    rows_kernels.take[grid](array, indices, out, len(indices), **blocks)
    return out


def can_move(some: torch.Tensor, whole: torch.Tensor) -> bool:
    """Return whether `move` can move rows between two arrays."""
    is_even = all(_is_whole(array) for array in (some, whole))
    return is_even and some.dtype == whole.dtype and some[0, 0].numel() <= WIDEST


def move(some: torch.Tensor, whole: torch.Tensor, agents: torch.Tensor, *, is_placing: bool) -> None:
    """Copy the rows of some agents from an array of all, or into it; enqueues.

    Args:
        some: (n_envs, n, ...).
        whole: (n_envs, n_all, ...).
        agents: Places among all, (n,).
        is_placing: Write ``whole``; else ``some``.
    """
    from warpdrive_min.training.paths.triton import rows_kernels

    (n_envs, n), width = some.shape[:2], some[0, 0].numel()
    grid, blocks = _cut(n_envs * n, width)
    strides = {"STRIDE": some.stride(1), "STRIDE_ALL": whole.stride(1)}
    sizes = {"N": n, "N_ALL": whole.shape[1], **strides, **blocks}
    rows_kernels.of_agents[grid](some, whole, agents, n_envs * n, IS_PLACING=is_placing, **sizes)


def _is_whole(array: torch.Tensor) -> bool:
    """Return whether rows (n_envs, n, ...) lie one as far after the other, each in one piece."""
    return array[0, 0].is_contiguous() and array.stride(0) == array.shape[1] * array.stride(1)


def _cut(n_rows: int, width: int) -> tuple[tuple[int], dict[str, Any]]:
    """Return the grid of a kernel, and the sizes of its blocks."""
    columns = power_of_two(width)
    rows = TILE // columns
    return (-(-n_rows // rows),), {"WIDTH": width, "ROWS": rows, "COLUMNS": columns}

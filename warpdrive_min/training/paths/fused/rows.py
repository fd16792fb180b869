"""Gather and scatter of array rows.

Torch is slower, most of all for short rows, because it uses one block of threads for each row.
"""

from __future__ import annotations

from typing import Final

import torch

from warpdrive_min.training.paths.triton.launch import launch

WIDEST: Final = 128
"""Largest row that `move` moves, in numbers."""
TILE: Final = 1_024
"""Numbers per program."""


def take(array: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the rows ``indices`` (rows,) of a contiguous array (n, ...); enqueues.

    Numbers have 4 bytes.
    """
    assert array.is_contiguous()
    from warpdrive_min.training.paths.triton import rows_kernels

    out = torch.empty(len(indices), *array.shape[1:], dtype=array.dtype, device=array.device)
    width = array[0].numel()
    launch(rows_kernels.take, _grid(len(indices), width))(array, indices, out, len(indices), WIDTH=width, TILE=TILE)
    return out


def can_move(some: torch.Tensor, whole: torch.Tensor) -> bool:
    """Return True if `move` can move rows between two arrays."""
    is_even = all(_is_whole(array) for array in (some, whole))
    return is_even and some.dtype == whole.dtype and some[0, 0].numel() <= WIDEST


def move(some: torch.Tensor, whole: torch.Tensor, agents: torch.Tensor, *, is_placing: bool) -> None:
    """Copy the rows of some agents from or to an array of all agents; enqueues.

    Args:
        some: Array of some agents, (n_envs, n, ...).
        whole: Array of all agents, (n_envs, n_all, ...).
        agents: Indices of the agents among all, (n,).
        is_placing: Write into ``whole``; else into ``some``.
    """
    from warpdrive_min.training.paths.triton import rows_kernels

    (n_envs, n), width = some.shape[:2], some[0, 0].numel()
    strides = {"STRIDE": some.stride(1), "STRIDE_ALL": whole.stride(1)}
    sizes = {"N": n, "N_ALL": whole.shape[1], **strides, "WIDTH": width, "TILE": TILE}
    grid = _grid(n_envs * n, width)
    launch(rows_kernels.of_agents, grid)(some, whole, agents, n_envs * n, IS_PLACING=is_placing, **sizes)


def _is_whole(array: torch.Tensor) -> bool:
    """Return True if rows (n_envs, n, ...) are contiguous and equally spaced."""
    return array[0, 0].is_contiguous() and array.stride(0) == array.shape[1] * array.stride(1)


def _grid(n_rows: int, width: int) -> tuple[int]:
    """Return the number of a kernel's programs."""
    return (-(-n_rows * width // TILE),)

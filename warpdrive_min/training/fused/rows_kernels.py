"""Triton kernel that gathers short rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take(array, indices, out, n_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write row ``indices[i]`` of ``array`` (..., WIDTH) into row i of ``out`` (n_rows, WIDTH)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_inside = (row < n_rows)[:, None] & (column < WIDTH)[None, :]
    source = tl.load(indices + row, row < n_rows, 0).to(tl.int64)
    numbers = tl.load(array + source[:, None] * WIDTH + column[None, :], is_inside)
    tl.store(out + row[:, None] * WIDTH + column[None, :], numbers, is_inside)

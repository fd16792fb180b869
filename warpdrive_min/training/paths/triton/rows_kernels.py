"""Triton kernels that move short rows to other places."""

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


@triton.jit
def of_agents(
    some,  # (n_rows / N, N, WIDTH), whose rows lie STRIDE apart
    whole,  # (n_rows / N, N_ALL, WIDTH), STRIDE_ALL apart
    agents,  # (N,)
    n_rows,
    N: tl.constexpr,
    N_ALL: tl.constexpr,
    STRIDE: tl.constexpr,
    STRIDE_ALL: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_PLACING: tl.constexpr,
):
    """Write rows ``agents`` of each environment of ``whole`` into ``some``; where IS_PLACING, the other way round."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    is_row = row < n_rows
    is_inside = is_row[:, None] & (column < WIDTH)
    agent = tl.load(agents + row % N, is_row, 0).to(tl.int64)
    at_some = some + row[:, None] * STRIDE + column
    at_whole = whole + (row // N * N_ALL + agent)[:, None] * STRIDE_ALL + column
    if IS_PLACING:
        tl.store(at_whole, tl.load(at_some, is_inside), is_inside)
    else:
        tl.store(at_some, tl.load(at_whole, is_inside), is_inside)

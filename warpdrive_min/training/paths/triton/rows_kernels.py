"""Triton kernels that gather and scatter rows."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take(array, indices, out, n_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Gather rows: ``out[i] = array[indices[i]]``.

    ``array`` is (..., WIDTH), and ``out`` is (n_rows, WIDTH).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = (row < n_rows)[:, None] & (column < WIDTH)[None, :]
    source = tl.load(indices + row, row < n_rows, 0).to(tl.int64)
    numbers = tl.load(array + source[:, None] * WIDTH + column[None, :], is_inside)
    tl.store(out + row[:, None] * WIDTH + column[None, :], numbers, is_inside)


@triton.jit
def of_agents(
    some,  # (n_rows / N, N, WIDTH), with row stride STRIDE
    whole,  # (n_rows / N, N_ALL, WIDTH), with row stride STRIDE_ALL
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
    """Copy rows ``agents`` of each environment from ``whole`` to ``some``.

    With IS_PLACING, copy from ``some`` to ``whole``.
    """
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

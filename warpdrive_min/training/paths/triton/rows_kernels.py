"""Triton kernels that gather and scatter rows.

A program moves TILE consecutive numbers of the rows, so that no thread is idle whatever a row's width.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take(array, indices, out, n_rows, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Gather rows: ``out[i] = array[indices[i]]``.

    ``array`` is (..., WIDTH), and ``out`` is (n_rows, WIDTH).
    """
    first, row, column = _places(WIDTH, TILE)
    is_inside = first + row < n_rows
    source = tl.load(indices + first + row, is_inside, 0).to(tl.int64)
    numbers = tl.load(array + source * WIDTH + column, is_inside)
    tl.store(out + first * WIDTH + (row * WIDTH + column), numbers, is_inside)


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
    TILE: tl.constexpr,
    IS_PLACING: tl.constexpr,
):
    """Copy rows ``agents`` of each environment from ``whole`` to ``some``.

    With IS_PLACING, copy from ``some`` to ``whole``.
    """
    first, row, column = _places(WIDTH, TILE)
    is_inside = first + row < n_rows
    first_env = first // N
    place = (first - first_env * N).to(tl.int32) + row  # among the agents of `first_env` and the next environments
    agent = tl.load(agents + place % N, is_inside, 0).to(tl.int64)
    at_some = some + first * STRIDE + (row * STRIDE + column)
    at_whole = whole + first_env * (N_ALL * STRIDE_ALL) + ((place // N * N_ALL + agent) * STRIDE_ALL + column)
    if IS_PLACING:
        tl.store(at_whole, tl.load(at_some, is_inside), is_inside)
    else:
        tl.store(at_some, tl.load(at_whole, is_inside), is_inside)


@triton.jit
def _places(WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Return the program's first row, int64, and rows from it on and columns."""
    start = tl.program_id(0).to(tl.int64) * TILE
    first = start // WIDTH
    number = (start - first * WIDTH).to(tl.int32) + tl.arange(0, TILE)
    return first, number // WIDTH, number % WIDTH

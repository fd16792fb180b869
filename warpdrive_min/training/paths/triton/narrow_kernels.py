"""Triton kernels of a perceptron with two narrow hidden layers.

A block of rows stays on the chip through all layers. If the first layer has too many weights for the chip
(IS_STREAMED), its inputs and weights are loaded in chunks of features. `forward` then stores the first hidden layer,
from which `backward` continues. `first_layer` reads the inputs again for the gradient of the first weights, which would
not fit into the registers of `backward`.

Weights are those of `torch.nn.Linear`, (outputs, inputs) row by row. With IS_MANY, several networks are computed. The
last axis of the grid counts them, and it is the first axis of all arrays. Names in capitals are constants of a kernel.
Block sizes are powers of two; entries beyond the true sizes are filled with zeros and never stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpdrive_min.training.paths.triton.tiles import (
    across,
    activate,
    chained,
    fold,
    matrix,
    pull_back,
    store_behind_first,
    store_transposed,
    times,
    unfold,
    vector,
)


@triton.jit
def _rows(at, first, n_rows, n_columns: tl.constexpr, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a block of rows from ``first`` on.

    The matrix is (n_rows, n_columns), with row stride ``stride``.
    """
    row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    return tl.load(at + row * stride + column, mask=(row < n_rows) & (column < n_columns), other=0.0)


@triton.jit
def _chunk(at, first, n_left, start, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load columns from ``start`` on of ``n_left`` rows from ``first`` on.

    If ``n_left`` is ROWS, no row is masked.
    """
    row, column = tl.arange(0, ROWS)[:, None], start + tl.arange(0, COLUMNS)[None, :]
    return tl.load(at + first * n_columns + row * n_columns + column, (row < n_left) & (column < n_columns), 0.0)


@triton.jit
def _store_rows(at, block, first, n_rows, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    tl.store(at + row * n_columns + column, block, mask=(row < n_rows) & (column < n_columns))


@triton.jit(do_not_specialize=["n_rows"])
def forward(
    x,
    w1,
    b1,
    w2,
    b2,
    w3,
    b3,
    out,
    kept,
    n_rows,
    F: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    O: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    BLOCK_H2: tl.constexpr,
    BLOCK_O: tl.constexpr,
    ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCT: tl.constexpr,
    IS_STREAMED: tl.constexpr,
    IS_SHORT: tl.constexpr,
    KEEPS: tl.constexpr,
    IS_MANY: tl.constexpr,
    STAGES: tl.constexpr = 1,
):
    """Write ``out`` (n_rows, O) for ``x`` (n_rows, F).

    A program strides over blocks of rows.

    With IS_STREAMED, a chunk has BLOCK_F features, and IS_SHORT means fewer than ROWS rows. With KEEPS the first hidden
    layer is written into ``kept`` (n_rows, H1).
    """
    if IS_MANY:
        network = tl.program_id(1).to(tl.int64)
        x, out, kept = x + network * n_rows * F, out + network * n_rows * O, kept + network * n_rows * H1
        w1, b1 = w1 + network * (H1 * F), b1 + network * H1
        w2, b2 = w2 + network * (H2 * H1), b2 + network * H2
        w3, b3 = w3 + network * (O * H2), b3 + network * O
    if not IS_STREAMED:
        first_weights = tl.trans(matrix(w1, H1, F, BLOCK_H1, BLOCK_F))
    second_weights = tl.trans(matrix(w2, H2, H1, BLOCK_H2, BLOCK_H1))
    third_weights = tl.trans(matrix(w3, O, H2, BLOCK_O, BLOCK_H2))
    first_bias, second_bias = vector(b1, H1, BLOCK_H1)[None, :], vector(b2, H2, BLOCK_H2)[None, :]
    third_bias = vector(b3, O, BLOCK_O)[None, :]
    block = tl.program_id(0).to(tl.int64) * ROWS
    while block < n_rows:
        first = block
        if IS_STREAMED:
            if not IS_SHORT:  # the last block overlaps the one before, with the same results, so that no row is masked
                first = tl.minimum(first, n_rows - ROWS)
            total = tl.zeros((ROWS, BLOCK_H1), tl.float32)
            for start in tl.range(0, F, BLOCK_F, num_stages=STAGES):
                seen = _chunk(x, first, n_rows if IS_SHORT else ROWS, start, F, ROWS, BLOCK_F)
                total += times(seen, tl.trans(_chunk(w1, 0, H1, start, F, BLOCK_H1, BLOCK_F)), PRODUCT)
        else:
            total = times(_rows(x, first, n_rows, F, F, ROWS, BLOCK_F), first_weights, PRODUCT)
        hidden = activate(total + first_bias, ACTIVATION)
        if KEEPS:
            _store_rows(kept, hidden, first, n_rows, H1, ROWS, BLOCK_H1)
        hidden = activate(chained(hidden, second_weights, PRODUCT) + second_bias, ACTIVATION)
        outputs = chained(hidden, third_weights, PRODUCT) + third_bias
        _store_rows(out, outputs, first, n_rows, O, ROWS, BLOCK_O)
        block += tl.num_programs(0) * ROWS


@triton.jit(do_not_specialize=["d_out_stride"])
def backward(
    x,
    w1,
    b1,
    w2,
    b2,
    w3,
    d_out,
    d_x,
    partial,
    n_rows,
    d_out_stride,
    F: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    O: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    BLOCK_H2: tl.constexpr,
    BLOCK_O: tl.constexpr,
    ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCT: tl.constexpr,
    IS_STREAMED: tl.constexpr,
    NEEDS_X: tl.constexpr,
    IS_MANY: tl.constexpr,
):
    """Write each program's gradients of w1, b1, w2, b2, w3 and b3 into ``partial``.

    A program writes one row, the sum over its rows. Hidden layers are recomputed from ``x``. With NEEDS_X the gradient
    of ``x`` is written into ``d_x``.

    Rows of ``d_out`` have the stride ``d_out_stride``. Triton must not know that it is 1: a single output would then be
    loaded along the rows, and the following products accessed memory illegally on an H200 (ADR 0013).

    With IS_STREAMED, ``x`` is the first hidden layer, ``d_x`` gets its gradient before the activation, and ``partial``
    starts with b1.
    """
    program = tl.program_id(0).to(tl.int64)
    if IS_MANY:
        n_seen: tl.constexpr = H1 if IS_STREAMED else F
        network = tl.program_id(1).to(tl.int64)
        program += network * tl.num_programs(0)
        x, d_x = x + network * n_rows * n_seen, d_x + network * n_rows * n_seen
        w1, b1 = w1 + network * (H1 * F), b1 + network * H1
        w2, b2 = w2 + network * (H2 * H1), b2 + network * H2
        w3, d_out = w3 + network * (O * H2), d_out + network * n_rows * d_out_stride
    # Matrix units that read shared memory compute 64 rows at once: use w1 or its transpose, whichever has 64 rows.
    is_upright: tl.constexpr = BLOCK_H1 >= 64 and BLOCK_H2 >= 64 and BLOCK_F == 16 and BLOCK_O == 16
    if not IS_STREAMED:
        first_weights = matrix(w1, H1, F, BLOCK_H1, BLOCK_F)
        d_w1 = tl.zeros((BLOCK_H1, BLOCK_F) if is_upright else (BLOCK_F, BLOCK_H1), tl.float32)
    second_weights = matrix(w2, H2, H1, BLOCK_H2, BLOCK_H1)
    third_weights = matrix(w3, O, H2, BLOCK_O, BLOCK_H2)
    d_w2 = tl.zeros((BLOCK_H1, BLOCK_H2), tl.float32)
    d_w3 = tl.zeros((BLOCK_H2, BLOCK_O), tl.float32)
    d_b1 = tl.zeros((ROWS // 16, 8, BLOCK_H1), tl.float32)
    d_b2 = tl.zeros((ROWS // 16, 8, BLOCK_H2), tl.float32)
    d_b3 = tl.zeros((ROWS // 16, 8, BLOCK_O), tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    while first < n_rows:  # to save registers, biases are loaded in each iteration
        d_outputs = _rows(d_out, first, n_rows, O, d_out_stride, ROWS, BLOCK_O)
        if IS_STREAMED:
            hidden1 = _rows(x, first, n_rows, H1, H1, ROWS, BLOCK_H1)
        else:
            seen = _rows(x, first, n_rows, F, F, ROWS, BLOCK_F)
            first_sum = times(seen, tl.trans(first_weights), PRODUCT)
            hidden1 = activate(first_sum + vector(b1, H1, BLOCK_H1)[None, :], ACTIVATION)
        second_sum = chained(hidden1, tl.trans(second_weights), PRODUCT)
        hidden2 = activate(second_sum + vector(b2, H2, BLOCK_H2)[None, :], ACTIVATION)
        d_z2, d_w3, d_b3 = pull_back(d_outputs, hidden2, third_weights, d_w3, d_b3, ACTIVATION, PRODUCT)
        d_z1, d_w2, d_b2 = pull_back(d_z2, hidden1, second_weights, d_w2, d_b2, ACTIVATION, PRODUCT)
        d_b1 += fold(d_z1)
        if IS_STREAMED:
            _store_rows(d_x, d_z1, first, n_rows, H1, ROWS, BLOCK_H1)
        else:
            if is_upright:
                d_w1 += across(d_z1, seen, PRODUCT)
            else:
                d_w1 += across(seen, d_z1, PRODUCT)
            if NEEDS_X:
                _store_rows(d_x, times(d_z1, first_weights, PRODUCT), first, n_rows, F, ROWS, BLOCK_F)
        first += tl.num_programs(0) * ROWS
    n_first: tl.constexpr = 0 if IS_STREAMED else F * H1
    at = partial + program * (n_first + H1 + H1 * H2 + H2 + H2 * O + O)
    if not IS_STREAMED:
        store_transposed(at, tl.trans(d_w1) if is_upright else d_w1, 0, F, H1, BLOCK_F, BLOCK_H1)
        at += n_first
    store_behind_first(at, unfold(d_b1), d_w2, d_b2, d_w3, d_b3, H1, H2, O, BLOCK_H1, BLOCK_H2, BLOCK_O)


@triton.jit
def first_layer(
    x,
    slopes,
    partial,
    n_rows,
    F: tl.constexpr,
    H1: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    ROWS: tl.constexpr,
    PRODUCT: tl.constexpr,
    IS_MANY: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write each program's gradient of w1 into ``partial``, rows of (H1, F).

    It is the sum over the program's rows, for BLOCK_F features. ``slopes``, (n_rows, H1), are the gradient of the first
    layer before its activation. Programs that share rows are neighbours, so all but the first find the slopes in the
    cache.
    """
    program = tl.program_id(1).to(tl.int64)
    if IS_MANY:
        network = tl.program_id(2).to(tl.int64)
        program += network * tl.num_programs(1)
        x, slopes = x + network * n_rows * F, slopes + network * n_rows * H1
    start = tl.program_id(0) * BLOCK_F
    d_w1 = tl.zeros((BLOCK_F, BLOCK_H1), tl.float32)
    n_whole = n_rows // ROWS * ROWS
    first_of_program = tl.program_id(1).to(tl.int64) * ROWS
    for first in tl.range(first_of_program, n_whole, tl.num_programs(1) * ROWS, num_stages=STAGES):
        seen = _chunk(x, first, ROWS, start, F, ROWS, BLOCK_F)
        d_w1 += times(tl.trans(seen), _chunk(slopes, first, ROWS, 0, H1, ROWS, BLOCK_H1), PRODUCT)
    if tl.program_id(1) == 0:
        first = tl.cast(n_whole, tl.int64)
        seen = _chunk(x, first, n_rows - n_whole, start, F, ROWS, BLOCK_F)
        d_w1 += times(tl.trans(seen), _chunk(slopes, first, n_rows - n_whole, 0, H1, ROWS, BLOCK_H1), PRODUCT)
    at = partial + program * (F * H1)
    store_transposed(at, d_w1, start, F, H1, BLOCK_F, BLOCK_H1)

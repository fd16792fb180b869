"""Triton kernels of a perceptron with two narrow hidden layers; a block of rows stays on the chip all the way through.

Weights are those of `torch.nn.Linear`, (outputs, inputs) row by row. Names in capitals are constants of a kernel: sizes
of blocks are powers of two, what they exceed the true sizes by is filled with zeros and never stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpdrive_min.training.fused.activation_kernels import activate, derivative


@triton.jit
def _times(a, b, PRECISION: tl.constexpr):
    """Multiply matrices: bfloat16 operands, one product of TF32, or the three that come to float32."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif PRECISION == "tf32":
        return tl.dot(a, b, input_precision="tf32")
    else:
        return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def _matrix(at, n_rows: tl.constexpr, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a matrix (n_rows, n_columns) that lies row by row into a block."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.load(at + row * n_columns + column, mask=(row < n_rows) & (column < n_columns), other=0.0)


@triton.jit
def _vector(at, n: tl.constexpr, BLOCK: tl.constexpr):
    """Load a vector into a block."""
    index = tl.arange(0, BLOCK)
    return tl.load(at + index, mask=index < n, other=0.0)


@triton.jit
def _rows(at, first, n_rows, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load rows ``first`` and following of a matrix (n_rows, n_columns)."""
    row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    return tl.load(at + row * n_columns + column, mask=(row < n_rows) & (column < n_columns), other=0.0)


@triton.jit
def _store_rows(at, block, first, n_rows, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
    column = tl.arange(0, COLUMNS)[None, :]
    tl.store(at + row * n_columns + column, block, mask=(row < n_rows) & (column < n_columns))


@triton.jit
def _store_matrix(at, block, n_rows: tl.constexpr, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store a block that holds the transpose of a matrix (n_columns, n_rows) which lies row by row."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(at + column * n_rows + row, block, mask=(row < n_rows) & (column < n_columns))


@triton.jit
def forward(
    x,
    w1,
    b1,
    w2,
    b2,
    w3,
    b3,
    out,
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
    IS_TANH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write ``out`` (n_rows, O) of ``x`` (n_rows, F); each program takes every so many-th block of rows."""
    first_weights = tl.trans(_matrix(w1, H1, F, BLOCK_H1, BLOCK_F))
    second_weights = tl.trans(_matrix(w2, H2, H1, BLOCK_H2, BLOCK_H1))
    third_weights = tl.trans(_matrix(w3, O, H2, BLOCK_O, BLOCK_H2))
    first_bias, second_bias = _vector(b1, H1, BLOCK_H1)[None, :], _vector(b2, H2, BLOCK_H2)[None, :]
    third_bias = _vector(b3, O, BLOCK_O)[None, :]
    first = tl.program_id(0).to(tl.int64) * ROWS
    while first < n_rows:
        seen = _rows(x, first, n_rows, F, ROWS, BLOCK_F)
        hidden = activate(_times(seen, first_weights, PRECISION) + first_bias, IS_TANH)
        hidden = activate(_times(hidden, second_weights, PRECISION) + second_bias, IS_TANH)
        outputs = _times(hidden, third_weights, PRECISION) + third_bias
        _store_rows(out, outputs, first, n_rows, O, ROWS, BLOCK_O)
        first += tl.num_programs(0) * ROWS


@triton.jit
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
    F: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    O: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    BLOCK_H2: tl.constexpr,
    BLOCK_O: tl.constexpr,
    ROWS: tl.constexpr,
    IS_TANH: tl.constexpr,
    PRECISION: tl.constexpr,
    NEEDS_X: tl.constexpr,
):
    """Write into a program's row of ``partial`` what its rows add to the gradients of w1, b1, w2, b2, w3 and b3.

    Hidden layers are computed once more from ``x``. With NEEDS_X the gradient of ``x`` is written into ``d_x``.
    """
    first_weights = _matrix(w1, H1, F, BLOCK_H1, BLOCK_F)
    second_weights = _matrix(w2, H2, H1, BLOCK_H2, BLOCK_H1)
    third_weights = _matrix(w3, O, H2, BLOCK_O, BLOCK_H2)
    first_bias, second_bias = _vector(b1, H1, BLOCK_H1)[None, :], _vector(b2, H2, BLOCK_H2)[None, :]
    d_w1 = tl.zeros((BLOCK_F, BLOCK_H1), tl.float32)
    d_w2 = tl.zeros((BLOCK_H1, BLOCK_H2), tl.float32)
    d_w3 = tl.zeros((BLOCK_H2, BLOCK_O), tl.float32)
    d_b1, d_b2 = tl.zeros((BLOCK_H1,), tl.float32), tl.zeros((BLOCK_H2,), tl.float32)
    d_b3 = tl.zeros((BLOCK_O,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    while first < n_rows:
        seen = _rows(x, first, n_rows, F, ROWS, BLOCK_F)
        d_outputs = _rows(d_out, first, n_rows, O, ROWS, BLOCK_O)
        hidden1 = activate(_times(seen, tl.trans(first_weights), PRECISION) + first_bias, IS_TANH)
        hidden2 = activate(_times(hidden1, tl.trans(second_weights), PRECISION) + second_bias, IS_TANH)
        d_w3 += _times(tl.trans(hidden2), d_outputs, PRECISION)
        d_b3 += tl.sum(d_outputs, 0)
        d_z2 = _times(d_outputs, third_weights, PRECISION) * derivative(hidden2, IS_TANH)
        d_w2 += _times(tl.trans(hidden1), d_z2, PRECISION)
        d_b2 += tl.sum(d_z2, 0)
        d_z1 = _times(d_z2, second_weights, PRECISION) * derivative(hidden1, IS_TANH)
        d_w1 += _times(tl.trans(seen), d_z1, PRECISION)
        d_b1 += tl.sum(d_z1, 0)
        if NEEDS_X:
            _store_rows(d_x, _times(d_z1, first_weights, PRECISION), first, n_rows, F, ROWS, BLOCK_F)
        first += tl.num_programs(0) * ROWS
    at = partial + tl.program_id(0).to(tl.int64) * (F * H1 + H1 + H1 * H2 + H2 + H2 * O + O)
    _store_matrix(at, d_w1, F, H1, BLOCK_F, BLOCK_H1)
    at += F * H1
    tl.store(at + tl.arange(0, BLOCK_H1), d_b1, mask=tl.arange(0, BLOCK_H1) < H1)
    at += H1
    _store_matrix(at, d_w2, H1, H2, BLOCK_H1, BLOCK_H2)
    at += H1 * H2
    tl.store(at + tl.arange(0, BLOCK_H2), d_b2, mask=tl.arange(0, BLOCK_H2) < H2)
    at += H2
    _store_matrix(at, d_w3, H2, O, BLOCK_H2, BLOCK_O)
    at += H2 * O
    tl.store(at + tl.arange(0, BLOCK_O), d_b3, mask=tl.arange(0, BLOCK_O) < O)

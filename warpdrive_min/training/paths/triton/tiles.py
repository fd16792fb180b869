"""Operations on tiles in Triton: activations, products, loads and stores.

ACTIVATION is a name from `activations.in_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

FAR_TANH = tl.constexpr("""{
    .reg .f32 shrunk, over, under;
    abs.f32 shrunk, $1;
    mul.f32 shrunk, shrunk, 0fC038AA3B;
    ex2.approx.ftz.f32 shrunk, shrunk;
    sub.f32 over, 0f3F800000, shrunk;
    add.f32 under, 0f3F800000, shrunk;
    rcp.approx.ftz.f32 under, under;
    mul.f32 over, over, under;
    copysign.f32 $0, $1, over;
}""")
"""PTX code of tanh: (1 - s) / (1 + s) with s = exp(-2 |z|) and the sign of z.

It omits the extra instructions of exp and / for denormal results.
"""


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """Return the activation of z.

    "tanh" is within a few ulp. NaN propagates, as in torch.
    """
    if ACTIVATION == "tanh.approx":
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z], tl.float32, is_pure=True, pack=1)
    if ACTIVATION == "tanh" or ACTIVATION == "tanh.ptx":
        if ACTIVATION == "tanh":
            shrunk = tl.exp(-2.0 * tl.abs(z))
            far = (1.0 - shrunk) / (1.0 + shrunk)
            far = tl.where(z < 0, -far, far)
        else:
            far = tl.inline_asm_elementwise(FAR_TANH, "=f,f", [z], tl.float32, is_pure=True, pack=1)
        square = z * z
        near = z * (1.0 + square * (-1.0 / 3 + square * (2.0 / 15 - square * (17.0 / 315))))
        return tl.where(tl.abs(z) < 0.15, near, far)
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def derivative(hidden, ACTIVATION: tl.constexpr):
    """Return the activation's derivative from its outputs ``hidden``."""
    if ACTIVATION == "relu":
        return tl.where(hidden > 0, 1.0, 0.0)
    return 1.0 - hidden * hidden


@triton.jit
def times(a, b, PRODUCT: tl.constexpr):
    """Multiply matrices, with bfloat16 operands or a precision of `tl.dot`."""
    if PRODUCT == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a, b, input_precision=PRODUCT)


@triton.jit
def exchanged(tile):
    """Reorder a product's float32 columns for the next product.

    Their number is a multiple of eight. Matrix units leave neighbouring columns in one thread, but read columns four
    apart from one thread. In this order no data moves between threads. A sum over columns changes only by rounding, if
    the other operand's rows have the same order.
    """
    eights = tl.reshape(tile, (tile.shape[0], tile.shape[1] // 8, 4, 2))
    return tl.reshape(tl.permute(eights, (0, 1, 3, 2)), tile.shape)


@triton.jit
def chained(a, b, PRODUCT: tl.constexpr):
    """Multiply ``a``, the result of a product, by ``b``."""
    if PRODUCT == "tf32" or PRODUCT == "tf32x3":
        return times(exchanged(a), tl.trans(exchanged(tl.trans(b))), PRODUCT)
    else:  # for two-byte numbers matrix units read columns in the order in which they write them
        return times(a, b, PRODUCT)


@triton.jit
def matrix(at, n_rows: tl.constexpr, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a row-major matrix (n_rows, n_columns) into a block."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return tl.load(at + row * n_columns + column, mask=(row < n_rows) & (column < n_columns), other=0.0)


@triton.jit
def vector(at, n: tl.constexpr, BLOCK: tl.constexpr):
    """Load a vector into a block."""
    index = tl.arange(0, BLOCK)
    return tl.load(at + index, mask=index < n, other=0.0)


@triton.jit
def store_transposed(
    at, block, start, n_rows: tl.constexpr, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Store a block of the transpose of a matrix (n_columns, n_rows).

    The block has the transpose's rows from ``start`` on.
    """
    row, column = start + tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(at + column * n_rows + row, block, mask=(row < n_rows) & (column < n_columns))


@triton.jit
def fold(tile):
    """Sum pairs of a tile's rows (rows, n), to (rows / 16, 8, n).

    Matrix units leave both rows of a pair in one thread.
    """
    return tl.sum(tl.reshape(tile, (tile.shape[0] // 16, 2, 8, tile.shape[1])), 1)


@triton.jit
def unfold(folded):
    """Return the sums over all rows of a folded tile, (n,)."""
    return tl.sum(tl.sum(folded, 1), 0)


@triton.jit
def across(a, b, PRODUCT: tl.constexpr):
    """Multiply the transpose of ``a`` (rows, n) by ``b`` (rows, m), to (n, m).

    If ``b`` has 32 columns, it computes the transposed product. Its 32 rows are too few for the matrix units that read
    shared memory, so other units compute it. On Hopper the former read wrong numbers or beyond shared memory (ADR
    0013).
    """
    if a.shape[1] >= 64 and b.shape[1] == 32:
        return tl.trans(times(tl.trans(b), a, PRODUCT))
    else:
        return times(tl.trans(a), b, PRODUCT)


@triton.jit
def pull_back(d_out, hidden, weights, d_weights, d_bias, ACTIVATION: tl.constexpr, PRODUCT: tl.constexpr):
    """Compute a layer's backward pass for a block of rows.

    Returns the gradient of ``hidden`` before its activation, and the gradients of weights and bias with these rows
    added. ``d_out`` (rows, outputs) is the gradient of the layer's outputs; ``d_weights`` is transposed.
    """
    d_weights += across(hidden, d_out, PRODUCT)
    d_bias += fold(d_out)
    return chained(d_out, weights, PRODUCT) * derivative(hidden, ACTIVATION), d_weights, d_bias


@triton.jit
def store_behind_first(
    at,
    d_b1,
    d_w2,
    d_b2,
    d_w3,
    d_b3,
    H1: tl.constexpr,
    H2: tl.constexpr,
    O: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    BLOCK_H2: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Store the gradients of all but the first weights, one after the other.

    ``d_b2`` and ``d_b3`` are folded.
    """
    tl.store(at + tl.arange(0, BLOCK_H1), d_b1, mask=tl.arange(0, BLOCK_H1) < H1)
    at += H1
    store_transposed(at, d_w2, 0, H1, H2, BLOCK_H1, BLOCK_H2)
    at += H1 * H2
    tl.store(at + tl.arange(0, BLOCK_H2), unfold(d_b2), mask=tl.arange(0, BLOCK_H2) < H2)
    at += H2
    store_transposed(at, d_w3, 0, H2, O, BLOCK_H2, BLOCK_O)
    at += H2 * O
    tl.store(at + tl.arange(0, BLOCK_O), unfold(d_b3), mask=tl.arange(0, BLOCK_O) < O)

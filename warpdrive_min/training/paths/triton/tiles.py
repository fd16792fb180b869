"""Operations on tiles in Triton: activations, products, loads and stores.

ACTIVATION is a name as `activations.in_kernels` gives it.
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
"""(1 - s) / (1 + s), s = exp(-2 |z|), with the sign of z, without the steps that exp and / take for tiny results."""


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """Return the activation of z, "tanh" within a few ulp; what is not a number stays so, as in torch."""
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
    """Return the derivative of the activation by what came out of it."""
    if ACTIVATION == "relu":
        return tl.where(hidden > 0, 1.0, 0.0)
    return 1.0 - hidden * hidden


@triton.jit
def times(a, b, PRODUCT: tl.constexpr):
    """Multiply matrices: of bfloat16 operands, or as `tl.dot` knows it."""
    if PRODUCT == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a, b, input_precision=PRODUCT)


@triton.jit
def exchanged(tile):
    """Return float32 columns, a multiple of eight, of a product in the order in which the next one takes them.

    Matrix units leave neighbouring columns in one thread, and take such that are four apart from one: in this order
    nothing moves. A sum over columns does not depend on it, but for rounding, if the other operand's rows follow suit.
    """
    eights = tl.reshape(tile, (tile.shape[0], tile.shape[1] // 8, 4, 2))
    return tl.reshape(tl.permute(eights, (0, 1, 3, 2)), tile.shape)


@triton.jit
def chained(a, b, PRODUCT: tl.constexpr):
    """Multiply ``a``, which comes from a product, by ``b``."""
    if PRODUCT == "tf32" or PRODUCT == "tf32x3":
        return times(exchanged(a), tl.trans(exchanged(tl.trans(b))), PRODUCT)
    else:  # of two bytes matrix units take columns as they leave them
        return times(a, b, PRODUCT)


@triton.jit
def matrix(at, n_rows: tl.constexpr, n_columns: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a matrix (n_rows, n_columns) that lies row by row into a block."""
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
    """Store a block that holds rows ``start`` and following of the transpose of a matrix (n_columns, n_rows)."""
    row, column = start + tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(at + column * n_rows + row, block, mask=(row < n_rows) & (column < n_columns))


@triton.jit
def fold(tile):
    """Return a tile (rows, n) as sums of two rows each, (rows / 16, 8, n): matrix units leave both in one thread."""
    return tl.sum(tl.reshape(tile, (tile.shape[0] // 16, 2, 8, tile.shape[1])), 1)


@triton.jit
def unfold(folded):
    """Return the sums over all rows of a folded tile, (n,)."""
    return tl.sum(tl.sum(folded, 1), 0)


@triton.jit
def across(a, b, PRODUCT: tl.constexpr):
    """Multiply the transpose of ``a`` (rows, n) by ``b`` (rows, m), to (n, m).

    Of 32 columns of ``b`` it makes the transpose, whose 32 rows are too few for the matrix units that read shared
    memory: on Hopper these read other numbers there, or none of theirs (ADR 0013).
    """
    if a.shape[1] >= 64 and b.shape[1] == 32:
        return tl.trans(times(tl.trans(b), a, PRODUCT))
    else:
        return times(tl.trans(a), b, PRODUCT)


@triton.jit
def pull_back(d_out, hidden, weights, d_weights, d_bias, ACTIVATION: tl.constexpr, PRODUCT: tl.constexpr):
    """Return the gradient of what ``hidden`` is the activation of, and those of a layer with these rows added.

    ``d_out`` (rows, outputs) is the gradient of what the layer makes of ``hidden``; ``d_weights`` is transposed.
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
    """Store the gradients of all but the first weights, one after the other; other biases' are folded."""
    tl.store(at + tl.arange(0, BLOCK_H1), d_b1, mask=tl.arange(0, BLOCK_H1) < H1)
    at += H1
    store_transposed(at, d_w2, 0, H1, H2, BLOCK_H1, BLOCK_H2)
    at += H1 * H2
    tl.store(at + tl.arange(0, BLOCK_H2), unfold(d_b2), mask=tl.arange(0, BLOCK_H2) < H2)
    at += H2
    store_transposed(at, d_w3, 0, H2, O, BLOCK_H2, BLOCK_O)
    at += H2 * O
    tl.store(at + tl.arange(0, BLOCK_O), unfold(d_b3), mask=tl.arange(0, BLOCK_O) < O)

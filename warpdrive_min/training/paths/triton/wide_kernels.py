"""Triton kernels of a perceptron with two wide hidden layers.

One pass, forward or backward, computes both hidden layers of a tile of rows. A program owns BLOCK_ROWS rows. It
computes BLOCK_COLUMNS columns of the pass's first product, and multiplies them into the accumulator of the second one
at once. So hidden layers stay on the chip, and are written only if a later pass needs them. Kept arrays have n_padded
rows, so that no row is masked. They are stored by row, or by column (BY_COLUMN) as matrix units need float32 operands
of a sum over rows. Weights are padded with zeros to whole blocks. All operands of products have the weights' type.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpdrive_min.training.paths.triton.tiles import activate, derivative, exchanged


@triton.jit(do_not_specialize=["n_rows"])
def forward(
    x,  # (n_rows, N_INPUTS) float32
    w1,  # (WIDTH_1, N_CHUNKS * BLOCK_INPUTS)
    b1,  # (WIDTH_1,) float32, like all biases
    w2,  # (WIDTH_2, WIDTH_1), like w3 with columns in the order of `_chained`
    b2,
    w3,  # (BLOCK_OUTPUTS, WIDTH_2)
    b3,  # (N_OUTPUTS,)
    out,  # (n_rows, N_OUTPUTS) float32
    kept_x,  # (n_padded, KEPT_INPUTS), of the weights' type, like all kept arrays
    kept_1,  # (n_padded, WIDTH_1)
    kept_2,  # (n_padded, WIDTH_2)
    n_rows,
    n_padded,
    N_INPUTS: tl.constexpr,
    KEPT_INPUTS: tl.constexpr,
    N_CHUNKS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    WIDTH_1: tl.constexpr,
    WIDTH_2: tl.constexpr,
    N_OUTPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    KEEPS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Write the outputs of a tile; with KEEPS also inputs and hidden layers.

    Inputs are padded with zeros.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = (rows < n_rows)[:, None]
    inputs = ()
    for chunk in tl.static_range(N_CHUNKS):
        features = chunk * BLOCK_INPUTS + tl.arange(0, BLOCK_INPUTS)
        part = tl.load(x + rows[:, None] * N_INPUTS + features[None, :], is_row & (features < N_INPUTS)[None, :], 0.0)
        part = part.to(w1.dtype.element_ty)
        if KEEPS:
            places = kept_x + _place(rows, features, n_padded, KEPT_INPUTS, BY_COLUMN)
            tl.store(places, part, (features < KEPT_INPUTS)[None, :])
        inputs = inputs + (part,)

    units = tl.arange(0, WIDTH_2)
    total = tl.zeros((BLOCK_ROWS, WIDTH_2), tl.float32)
    for start in range(0, WIDTH_1, BLOCK_COLUMNS):
        columns = start + tl.arange(0, BLOCK_COLUMNS)
        first = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
        for chunk in tl.static_range(N_CHUNKS):
            features = chunk * BLOCK_INPUTS + tl.arange(0, BLOCK_INPUTS)
            weights = tl.load(w1 + columns[:, None] * (N_CHUNKS * BLOCK_INPUTS) + features[None, :])
            first = tl.dot(inputs[chunk], weights.T, first, input_precision="tf32")
        hidden = activate(first + tl.load(b1 + columns)[None, :], ACTIVATION).to(w2.dtype.element_ty)
        if KEEPS:
            tl.store(kept_1 + _place(rows, columns, n_padded, WIDTH_1, BY_COLUMN), hidden)
        weights = tl.load(w2 + units[:, None] * WIDTH_1 + columns[None, :])
        total = _chained(hidden, weights, total)

    outputs = tl.arange(0, BLOCK_OUTPUTS)
    last = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    quarters = _quarters(total)
    for quarter in tl.static_range(4):
        units = _units(quarter, WIDTH_2)
        hidden = activate(quarters[quarter] + tl.load(b2 + units)[None, :], ACTIVATION).to(w3.dtype.element_ty)
        if KEEPS:
            tl.store(kept_2 + _place(rows, units, n_padded, WIDTH_2, BY_COLUMN), hidden)
        weights = tl.load(w3 + outputs[:, None] * WIDTH_2 + units[None, :])
        last = _chained(hidden, weights, last)
    last += tl.load(b3 + outputs, outputs < N_OUTPUTS, 0.0)[None, :]
    tl.store(out + rows[:, None] * N_OUTPUTS + outputs[None, :], last, is_row & (outputs < N_OUTPUTS)[None, :])


@triton.jit
def backward(
    slope,  # (n_rows, N_OUTPUTS) float32: gradient of the outputs
    w3,  # (WIDTH_2, BLOCK_OUTPUTS): transposed
    w2,  # (WIDTH_1, WIDTH_2): transposed, with columns in the order of `_chained`
    kept_1,
    kept_2,
    slope_3,  # (n_padded, KEPT_OUTPUTS): of the outputs, padded with zeros
    slope_2,  # (n_padded, WIDTH_2): of the second layer before its activation
    slope_1,  # (n_padded, WIDTH_1): of the first one
    sums,  # (n_programs, WIDTH_1 + WIDTH_2 + BLOCK_OUTPUTS) float32: of slopes 1, 2, 3 over each tile's rows
    n_rows,
    n_padded,
    N_OUTPUTS: tl.constexpr,
    KEPT_OUTPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    WIDTH_1: tl.constexpr,
    WIDTH_2: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Compute a tile's gradients of both hidden layers from that of the outputs."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    sums += tl.program_id(0).to(tl.int64) * (WIDTH_1 + WIDTH_2 + BLOCK_OUTPUTS)
    outputs = tl.arange(0, BLOCK_OUTPUTS)
    is_given = (rows < n_rows)[:, None] & (outputs < N_OUTPUTS)[None, :]
    third = tl.load(slope + rows[:, None] * N_OUTPUTS + outputs[None, :], is_given, 0.0)
    tl.store(sums + WIDTH_1 + WIDTH_2 + outputs, tl.sum(third, 0))
    third = third.to(w3.dtype.element_ty)
    kept = slope_3 + _place(rows, outputs, n_padded, KEPT_OUTPUTS, BY_COLUMN)
    tl.store(kept, third, (outputs < KEPT_OUTPUTS)[None, :])

    units = tl.arange(0, WIDTH_1)
    total = tl.zeros((BLOCK_ROWS, WIDTH_1), tl.float32)
    for start in range(0, WIDTH_2, BLOCK_COLUMNS):
        columns = start + tl.arange(0, BLOCK_COLUMNS)
        weights = tl.load(w3 + columns[:, None] * BLOCK_OUTPUTS + outputs[None, :])
        places = _place(rows, columns, n_padded, WIDTH_2, BY_COLUMN)
        second = tl.dot(third, weights.T, input_precision="tf32")
        second *= derivative(tl.load(kept_2 + places).to(tl.float32), ACTIVATION)
        tl.store(sums + WIDTH_1 + columns, tl.sum(second, 0))
        second = second.to(w2.dtype.element_ty)
        tl.store(slope_2 + places, second)
        weights = tl.load(w2 + units[:, None] * WIDTH_2 + columns[None, :])
        total = _chained(second, weights, total)

    quarters = _quarters(total)
    for quarter in tl.static_range(4):
        units = _units(quarter, WIDTH_1)
        places = _place(rows, units, n_padded, WIDTH_1, BY_COLUMN)
        first = quarters[quarter] * derivative(tl.load(kept_1 + places).to(tl.float32), ACTIVATION)
        tl.store(sums + units, tl.sum(first, 0))
        tl.store(slope_1 + places, first.to(w2.dtype.element_ty))


@triton.jit
def _chained(a, weights, total):
    """Add to ``total`` the product of ``a``, itself a product's result, and weights.

    Float32 weights have their columns in the order of `exchanged`.
    """
    if weights.dtype == tl.float32:
        a = exchanged(a)
    return tl.dot(a, weights.T, total, input_precision="tf32")


@triton.jit
def _quarters(total):
    """Split a tile into four parts, with the columns of `_units`.

    Processing one part at a time needs fewer registers. Each part has equally many columns of the left and of the right
    half. The halves may belong to different warps, so this moves no data.
    """
    first, second = _parts(total)
    return _parts(first) + _parts(second)


@triton.jit
def _parts(total):
    """Return the even and the odd quarters of a tile's columns."""
    n_rows: tl.constexpr = total.shape[0]
    n_columns: tl.constexpr = total.shape[1]
    quarters = tl.reshape(total, (n_rows, 2, 2, n_columns // 4)).permute(0, 1, 3, 2)
    return tl.split(tl.reshape(quarters, (n_rows, n_columns // 2, 2)))


@triton.jit
def _units(quarter: tl.constexpr, WIDTH: tl.constexpr):
    """Return the column indices of one of `_quarters`."""
    order = tl.arange(0, WIDTH // 4)
    return order // (WIDTH // 8) * (WIDTH // 2) + quarter * (WIDTH // 8) + order % (WIDTH // 8)


@triton.jit
def _place(rows, columns, n_rows, n_columns, BY_COLUMN: tl.constexpr):
    """Return the offsets of elements in a kept array, (rows, columns) int64."""
    if BY_COLUMN:
        return rows[:, None] + columns[None, :].to(tl.int64) * n_rows
    return rows[:, None] * n_columns + columns[None, :]

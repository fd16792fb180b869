"""Perceptrons with two wide hidden layers.

One kernel computes both layers in the forward pass, another in the backward pass. cuBLAS sums over rows. Kernels are in
Triton, here, or in CUDA C, in `cuda_c.warp_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.training.paths.facts import Facts, rule
from warpdrive_min.training.paths.triton.launch import launch
from warpdrive_min.training.paths.triton.sizes import power_of_two

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision
    from warpdrive_min.training.paths.fused.narrow import Weights

Sizes = tuple[int, int, int]
"""Number of features, and units of both hidden layers."""

MOST_UNITS: Final = 512
"""Largest number of units of a hidden layer.

A tile of 64 rows and 512 columns fills half the registers of a multiprocessor.
"""
LEAST_UNITS: Final = 64
"""Width to which narrower layers are padded."""
MOST_FEATURES: Final = 128
MOST_OUTPUTS: Final = 128
BLOCK_INPUTS: Final = 32
"""Multiple to which features are padded, instead of to a power of two."""
LEAST_TILES: Final = 16
"""Fewest tiles of rows in a part; fewer rows are one part."""


class Tile(NamedTuple):
    """Tile sizes of one kernel; they change only rounding."""

    rows: int
    columns: int
    """Columns of a pass's first product per step; at most LEAST_UNITS."""
    n_warps: int
    n_stages: int
    """Loads of weights in flight."""


class TileSizes(NamedTuple):
    """Tiles of the kernels, and the memory layout of kept arrays."""

    alone: Tile
    """Tile of a forward pass that keeps nothing."""
    forward: Tile
    backward: Tile
    by_column: bool
    """True if kept arrays are stored by column, else by row."""
    n_parts: int
    """Number of parts of the rows, which cuBLAS sums separately.

    They keep all multiprocessors busy; their sums are added afterwards.
    """


PLANS: Final[dict[Precision, tuple[TileSizes, TileSizes]]] = {
    "tf32": (
        TileSizes(Tile(128, 64, 8, 2), Tile(128, 32, 8, 3), Tile(64, 32, 4, 2), by_column=False, n_parts=64),
        TileSizes(Tile(64, 32, 8, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2), by_column=True, n_parts=16),
    ),
    "bf16": (
        TileSizes(Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), by_column=False, n_parts=64),
        TileSizes(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), by_column=False, n_parts=16),
    ),
}
"""Tile sizes for layers of up to 256 units, and for wider ones.

They are the fastest of those tried on an H200. They are not tuned at run time, so the same seed gives the same bits.
There are none for fp32, because three products of TF32 take longer than cuBLAS's one.
"""


@rule(
    f"up to {MOST_FEATURES} features, {MOST_UNITS} units per layer and {MOST_OUTPUTS} outputs, in "
    + " or ".join(f"`{name}`" for name in PLANS)
)
def fits(facts: Facts) -> str | None:
    """Refuse networks whose tiles do not fit on the chip."""
    layers = facts.layers
    is_small = layers.n_features <= MOST_FEATURES and max(layers.hidden) <= MOST_UNITS
    if is_small and layers.n_columns <= MOST_OUTPUTS and facts.precision in PLANS:
        return None
    known = " or ".join(PLANS)
    rule = f"needs up to {MOST_FEATURES} features, {MOST_UNITS} units per layer and {MOST_OUTPUTS} outputs, in {known}"
    return f"{rule} (got {layers}, in {facts.precision})"


@rule("kept layers are stored row by row, so in `tf32` have up to 256 units")
def keeps_by_row(facts: Facts) -> str | None:
    """Refuse layers that are stored by column."""
    if not _plan(facts.precision, *facts.layers.hidden).by_column:
        return None
    return f"layers of more than 256 units cannot be kept in {facts.precision} (got {facts.layers})"


class Layers(NamedTuple):
    """Padded inputs and hidden layers of rows, kept for gradients.

    They have the precision's type and all the same number of rows. A pass over fewer rows leaves the others finite.
    """

    x: torch.Tensor
    hidden_1: torch.Tensor
    hidden_2: torch.Tensor

    @classmethod
    def empty(cls, n_rows: int, sizes: Sizes, precision: Precision, device: torch.device) -> Layers:
        """Allocate the layers of ``n_rows`` rows."""
        plan, dtype = _plan(precision, *sizes[1:]), _dtype(precision)
        return cls(*(_kept(n_rows, width, plan, dtype, device) for width in _widths(sizes)))

    def part(self, first: int, n_rows: int) -> Layers:
        """Return views of the layers of ``n_rows`` rows from ``first`` on."""
        return Layers(*(array[first : first + n_rows] for array in self))


class OfAgents(NamedTuple):
    """Rows of some agents in an array of all agents."""

    whole: torch.Tensor
    """All agents' rows, (n_envs, n_all, n_features) float32, contiguous."""
    agents: torch.Tensor | None
    """Indices of the agents, (n,) int32; None: all."""


class Kernels(NamedTuple):
    """Functions that launch the kernels of one language, and enqueue."""

    ordered: Callable[[Weights, str, Precision], Any]
    """Returns weights in the form for `evaluate`, from weights, activation and precision."""
    evaluate: Callable[..., None]
    """Writes outputs and layers; has the parameters of `evaluate` in this module."""
    slopes: Callable[..., list[torch.Tensor]]
    """Returns the gradients of layers, and sums; has the parameters of `_slopes` in this module."""
    reads_in_place: bool = False
    """True if `evaluate` takes rows `OfAgents`, too."""


def wide(
    x: torch.Tensor, weights: Weights, activation: str, precision: Precision, kernels: Kernels | None = None
) -> torch.Tensor:
    """Return the network's outputs, ``(rows, n_outputs)`` float32; enqueues.

    If gradients are needed, keeps inputs and hidden layers in the precision's type.

    Args:
        x: ``(rows, n_features)`` float32.
        weights: Float32 weights of a network that `fits`.
        activation: Activation after each hidden layer, as named by `activations.in_kernels`.
        precision: Precision of products, tf32 or bf16. The gradients' sums over rows are torch's products: in tf32
            they follow torch's current setting.
        kernels: Kernels that `fits` the network; None: in Triton.
    """
    kernels = kernels or TRITON
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights)):
        outputs: torch.Tensor = _Wide.apply(x, activation, precision, kernels, *weights)  # type: ignore[no-untyped-call]
        return outputs
    out = torch.empty(len(x), len(weights[4]), device=x.device, dtype=torch.float32)
    kernels.evaluate(x, kernels.ordered(weights, activation, precision), activation, precision, out)
    return out


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activation: str, precision: Precision, kernels: Kernels, *weights: Any
    ) -> torch.Tensor:
        out = torch.empty(len(x), len(weights[4]), device=x.device, dtype=torch.float32)
        sizes = (x.shape[1], len(weights[0]), len(weights[2]))
        layers = Layers.empty(n_padded(len(x), sizes, precision), sizes, precision, x.device)
        kernels.evaluate(x, kernels.ordered(weights, activation, precision), activation, precision, out, layers)
        ctx.save_for_backward(*layers, *weights[::2])
        ctx.how = activation, precision, kernels
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layers, matrices = Layers(*ctx.saved_tensors[:3]), ctx.saved_tensors[3:]
        slope_1, found = gradients(slope, layers, matrices, *ctx.how)
        d_x = None
        if ctx.needs_input_grad[0]:
            w1 = matrices[0]
            d_x = (slope_1[: len(slope), : len(w1)] @ w1.to(slope_1.dtype)).float()
        return d_x, None, None, None, *found


def padded(weights: Weights, activation: str, precision: Precision) -> Weights:
    """Return a network's weights in the form that `evaluate` needs; enqueues."""
    w1, b1, w2, b2, w3, b3 = weights
    dtype = _dtype(precision)
    _, width_1, width_2 = _widths((w1.shape[1], len(w1), len(w2)))
    return (
        _padded(w1, (width_1, multiple(w1.shape[1], BLOCK_INPUTS)), dtype),
        _padded(b1, (width_1,)),
        _exchanged(_padded(w2, (width_2, width_1), dtype)),
        _padded(b2, (width_2,)),
        _exchanged(_padded(w3, (power_of_two(len(w3), 16), width_2), dtype)),
        b3.contiguous(),
    )


def evaluate(
    x: torch.Tensor,
    weights: Weights,
    activation: str,
    precision: Precision,
    out: torch.Tensor,
    layers: Layers | None = None,
) -> None:
    """Write the outputs (n_rows, n_outputs), and the layers if passed; enqueues.

    The weights are `padded`. The layers are whole tiles of rows; those after the last row of ``x`` are computed from
    zeros.
    """
    from warpdrive_min.training.paths.triton import wide_kernels

    w1, _, w2, _, w3, b3 = weights
    (n_rows, n_features), (width_2, width_1) = x.shape, w2.shape
    plan = _plan(precision, width_1, width_2)
    tile = plan.alone if layers is None else plan.forward
    kept = layers or Layers.empty(0, (n_features, width_1, width_2), precision, x.device)
    n_kept = len(kept.x)
    launch(wide_kernels.forward, (-(-max(n_rows, n_kept, 1) // tile.rows),))(
        x.contiguous(),
        *weights,
        out,
        *kept,
        n_rows,
        n_kept,
        N_INPUTS=n_features,
        KEPT_INPUTS=kept.x.shape[1],
        N_CHUNKS=w1.shape[1] // BLOCK_INPUTS,
        BLOCK_INPUTS=BLOCK_INPUTS,
        N_OUTPUTS=len(b3),
        BLOCK_OUTPUTS=len(w3),
        KEEPS=layers is not None,
        **_constants(activation, plan, tile, width_1, width_2),
    )


def gradients(
    slope: torch.Tensor,
    layers: Layers,
    matrices: Sequence[torch.Tensor],
    activation: str,
    precision: Precision,
    kernels: Kernels,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the gradients of a network; enqueues.

    The first is that of the first layer before its activation, padded; then those of weights and biases.

    Args:
        slope: Gradient of the outputs, (n_rows, n_outputs) float32.
        layers: Layers from `evaluate`, of `n_padded` rows.
        matrices: Weights of each layer.
        activation: As in `wide`.
        precision: As in `wide`.
        kernels: As in `wide`.
    """
    _, w2, w3 = matrices
    *slopes, sums = kernels.slopes(slope, layers, w2, w3, activation, precision)
    width_1, width_2 = layers.hidden_1.shape[1], layers.hidden_2.shape[1]
    n_parts = _n_parts(len(slope), _plan(precision, width_1, width_2))
    found: list[torch.Tensor] = []
    of_biases = torch.split(sums.sum(0), [width_1, width_2, sums.shape[1] - width_1 - width_2])
    for w, of_layer, inputs, of_bias in zip(matrices, slopes, layers, of_biases, strict=True):
        found += [_over_rows(of_layer, inputs, n_parts)[: len(w), : w.shape[1]], of_bias[: len(w)]]
    return slopes[0], found


def n_padded(n_rows: int, sizes: Sizes, precision: Precision) -> int:
    """Return the padded number of rows of layers for `gradients`."""
    plan = _plan(precision, *sizes[1:])
    return multiple(max(n_rows, 1), _most_rows(plan) * _n_parts(n_rows, plan))


def whole_tiles(n_rows: int, sizes: Sizes, precision: Precision) -> int:
    """Return the smallest padded number of rows of layers."""
    return multiple(max(n_rows, 1), _most_rows(_plan(precision, *sizes[1:])))


def most_padding(sizes: Sizes, precision: Precision) -> int:
    """Return an upper bound of the rows that `n_padded` adds."""
    plan = _plan(precision, *sizes[1:])
    return _most_rows(plan) * plan.n_parts


def bytes_of_row(sizes: Sizes, precision: Precision) -> int:
    """Return the memory of one row's layers, bytes."""
    return sum(_widths(sizes)) * _dtype(precision).itemsize


def _slopes(
    slope: torch.Tensor, layers: Layers, w2: torch.Tensor, w3: torch.Tensor, activation: str, precision: Precision
) -> list[torch.Tensor]:
    """Return the padded gradient of each layer before its activation, then sums.

    The first layer's comes first. The sums are over the rows of each tile.
    """
    from warpdrive_min.training.paths.triton import wide_kernels

    _, hidden_1, hidden_2 = layers
    (n_rows, n_outputs), (n_kept, width_1), width_2 = slope.shape, hidden_1.shape, hidden_2.shape[1]
    plan, dtype, block = _plan(precision, width_1, width_2), hidden_1.dtype, power_of_two(n_outputs, 16)
    kept_widths = (width_1, width_2, multiple(n_outputs, 8))
    slopes = [_kept(n_kept, width, plan, dtype, slope.device) for width in kept_widths]
    n_programs = n_kept // plan.backward.rows
    sums = torch.empty(n_programs, width_1 + width_2 + block, device=slope.device, dtype=torch.float32)
    launch(wide_kernels.backward, (n_programs,))(
        slope.contiguous(),
        _padded(w3.T, (width_2, block), dtype),
        _exchanged(_padded(w2.T, (width_1, width_2), dtype)),
        hidden_1,
        hidden_2,
        *reversed(slopes),
        sums,
        n_rows,
        n_kept,
        N_OUTPUTS=n_outputs,
        KEPT_OUTPUTS=kept_widths[2],
        BLOCK_OUTPUTS=block,
        **_constants(activation, plan, plan.backward, width_1, width_2),
    )
    return [*slopes, sums]


def _plan(precision: Precision, *widths: int) -> TileSizes:
    return PLANS[precision][max(widths) > 256]


def _widths(sizes: Sizes) -> tuple[int, ...]:
    """Return the padded widths of kept inputs and hidden layers."""
    return multiple(sizes[0], 8), *(power_of_two(units, LEAST_UNITS) for units in sizes[1:])


def _dtype(precision: Precision) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _most_rows(plan: TileSizes) -> int:
    return max(plan.forward.rows, plan.backward.rows)


def _n_parts(n_rows: int, plan: TileSizes) -> int:
    """Return the number of parts; few rows are one part, to avoid wasteful padding."""
    return plan.n_parts if n_rows >= LEAST_TILES * _most_rows(plan) * plan.n_parts else 1


def _constants(activation: str, plan: TileSizes, tile: Tile, width_1: int, width_2: int) -> dict[str, Any]:
    return {
        "WIDTH_1": width_1,
        "WIDTH_2": width_2,
        "BLOCK_ROWS": tile.rows,
        "BLOCK_COLUMNS": tile.columns,
        "ACTIVATION": activation,
        "BY_COLUMN": plan.by_column,
        "num_warps": tile.n_warps,
        "num_stages": tile.n_stages,
    }


def _kept(n_rows: int, width: int, plan: TileSizes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate ``(n_rows, width)`` in the memory layout of a plan."""
    shape = (width, n_rows) if plan.by_column else (n_rows, width)
    array = torch.empty(shape, dtype=dtype, device=device)
    return array.T if plan.by_column else array


def _over_rows(slopes: torch.Tensor, inputs: torch.Tensor, n_parts: int) -> torch.Tensor:
    """Return ``slopes.T @ inputs`` in float32, (n_slopes, n_inputs).

    Products of the parts of the rows are summed in order.
    """
    left, right = (array.view(n_parts, -1, array.shape[1]) for array in (slopes, inputs))
    return torch.bmm(left.mT, right).sum(0, dtype=torch.float32)


def _padded(array: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a contiguous array, padded with zeros at the end of each axis."""
    if array.shape == shape:
        return array.to(dtype).contiguous()
    padded = array.new_zeros(shape, dtype=dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


def _exchanged(weights: torch.Tensor) -> torch.Tensor:
    """Return weights; float32 columns are reordered as by `tiles.exchanged`."""
    return weights.unflatten(1, (-1, 4, 2)).mT.flatten(1) if weights.dtype == torch.float32 else weights


def multiple(size: int, of: int) -> int:
    """Return the smallest multiple of a number that is not below a size."""
    return -(-size // of) * of


TRITON: Final = Kernels(padded, evaluate, _slopes)
"""Kernels in Triton."""

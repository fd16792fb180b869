"""Kernels of a perceptron with two narrow hidden layers.

One kernel computes the outputs. Another computes the gradients, and recomputes the hidden layers for them. A first
layer of many features does not fit on the chip and is streamed: its output is stored, and another kernel computes the
gradient of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.training.paths.facts import Facts, rule
from warpdrive_min.training.paths.triton.launch import launch
from warpdrive_min.training.paths.triton.sizes import PRODUCTS, block_of, n_programs

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""``(w1, b1, w2, b2, w3, b3)`` of three layers, (outputs, inputs) and (outputs,).

As in `torch.nn.Linear`. For several networks each has an additional first axis of networks.
"""


class Tile(NamedTuple):
    """Tile sizes of a pass over streamed features; they change only rounding."""

    rows: int
    features: int
    """Features per chunk."""
    n_warps: int
    n_stages: int
    """Chunks on the chip; all but one are in flight."""
    n_programs: int
    """Programs per multiprocessor."""
    product: str
    """Kind of product: a value of PRODUCTS, or "tf32x3"."""


WIDEST: Final = 64
"""Largest number of units of a hidden layer."""
MOST_FEATURES: Final = 512
MOST_RESIDENT: Final = 4_096
"""Most weights of a first layer that stays on the chip; larger ones are streamed.

Both sizes of the layer are rounded up to powers of two.
"""
ROWS: Final = (64, 32)
"""Rows per block: for small networks, and for those with more than SMALL weights.

Weights of streamed layers do not count.
"""
SMALL: Final = 6_144
WARPS: Final = 4
PROGRAMS_PER_PROCESSOR: Final = 2
"""Programs of the gradient kernel per multiprocessor, each with its own sums."""
FORWARD: Final[dict[Precision, Tile]] = {
    "fp32": Tile(64, 32, 4, 3, 3, "tf32x3"),
    "tf32": Tile(64, 32, 4, 3, 4, "tf32"),
    "bf16": Tile(128, 32, 4, 3, 3, "bf16"),
}
"""Tiles of streamed networks' forward pass: the fastest of those tried on an H200."""
FIRST_LAYER: Final[dict[Precision, Tile]] = {
    "fp32": Tile(32, 128, 4, 3, 3, "tf32x3"),
    "tf32": Tile(32, 128, 4, 2, 3, "tf32"),
    "bf16": Tile(64, 64, 4, 2, 3, "bf16"),
}
"""Tiles for the gradient of a streamed first layer's weights."""


@rule(f"up to {MOST_FEATURES} features, {WIDEST} units per layer and {WIDEST} outputs")
def fits(facts: Facts) -> str | None:
    """Refuse layers that do not fit on the chip."""
    layers = facts.layers
    if max(*layers.hidden, layers.n_columns) <= WIDEST and layers.n_features <= MOST_FEATURES:
        return None
    rule = f"layers must fit on the chip: up to {MOST_FEATURES} features, {WIDEST} units per layer and {WIDEST} outputs"
    return f"{rule} (got {layers})"


def narrow(x: torch.Tensor, weights: Weights, activation: str, precision: Precision) -> torch.Tensor:
    """Return the network's outputs, ``(rows, n_outputs)`` float32; enqueues.

    Under `torch.func.vmap` over networks and their rows, one kernel computes all networks.

    Args:
        x: ``(rows, n_features)`` float32.
        weights: Float32 weights of a network that `fits`.
        activation: Activation after each hidden layer, as named by `activations.in_kernels`.
        precision: Precision of products, a key of PRODUCTS.
    """
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights))
    outputs: torch.Tensor
    outputs, _ = _Narrow.apply(x.contiguous(), activation, precision, keeps, *weights)  # type: ignore[no-untyped-call]
    return outputs


class _Narrow(torch.autograd.Function):
    """Forward and backward pass of networks of one structure.

    Inputs (rows, n_features), without an axis of networks, are of one network.
    """

    @staticmethod
    def forward(
        x: torch.Tensor, activation: str, precision: Precision, keeps: bool, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from warpdrive_min.training.paths.triton import narrow_kernels

        weights = tuple(weight.contiguous() for weight in weights)
        (*networks, n_rows, _), (n_units, n_outputs) = x.shape, (weights[0].shape[-2], weights[-1].shape[-1])
        is_streamed = _is_streamed(weights)
        keeps = keeps and is_streamed
        kept = torch.empty(*networks, n_rows if keeps else 0, n_units, device=x.device, dtype=torch.float32)
        out = torch.empty(*networks, n_rows, n_outputs, device=x.device, dtype=torch.float32)
        constants, n_programs = _constants(x, weights, activation, precision), 4
        if is_streamed:
            tile = FORWARD[precision]
            constants, n_programs = constants | _cut(tile), tile.n_programs
        block = constants["ROWS"]
        launch(narrow_kernels.forward, (_n_programs(x, block, n_programs), _n_networks(x)))(
            x, *weights, out, kept, n_rows, KEEPS=keeps, IS_SHORT=is_streamed and n_rows < block, **constants
        )
        return out, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        (x, ctx.activation, ctx.precision, _, *weights), (_, kept) = inputs, output
        ctx.save_for_backward(x, kept, *weights)
        ctx.mark_non_differentiable(kept)
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, tuple[int, int]]:
        x, activation, precision, _, *weights = inputs
        dims = (in_dims[0], *in_dims[4:])
        x, *weights = (
            each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
            for each, dim in zip((x, *weights), dims, strict=True)
        )
        keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights))
        outputs = _Narrow.apply(x.contiguous(), activation, precision, keeps, *weights)  # type: ignore[no-untyped-call]
        return outputs, (0, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor, _: None) -> tuple[torch.Tensor | None, ...]:
        from warpdrive_min.training.paths.triton import narrow_kernels

        x, kept, *weights = ctx.saved_tensors
        weights = [weight.contiguous() for weight in weights]
        (*networks, n_rows, _), needs_x = x.shape, ctx.needs_input_grad[0]
        is_streamed = _is_streamed(weights)
        seen = kept if is_streamed else x
        d_seen = torch.empty_like(seen) if needs_x or is_streamed else seen
        n_programs = _n_programs(x, _rows(weights), PROGRAMS_PER_PROCESSOR)
        sizes = [weight.numel() // _n_networks(x) for weight in weights][is_streamed:]
        partial = torch.empty(*networks, n_programs, sum(sizes), device=x.device, dtype=torch.float32)
        d_out = d_out if d_out.stride(-1) == 1 and not networks else d_out.contiguous()
        launch(narrow_kernels.backward, (n_programs, _n_networks(x)))(
            seen,
            *weights[:-1],
            d_out,
            d_seen,
            partial,
            n_rows,
            d_out.stride(-2),
            NEEDS_X=needs_x,
            **_constants(x, weights, ctx.activation, ctx.precision),
        )
        gradients = list(torch.split(partial.sum(-2), sizes, -1))
        if is_streamed:
            gradients.insert(0, _first_layer(x, d_seen, weights, ctx.precision))
            d_seen = (d_seen @ weights[0]).float() if needs_x else d_seen
        of_weights = (each.reshape(weight.shape) for each, weight in zip(gradients, weights, strict=True))
        return d_seen if needs_x else None, None, None, None, *of_weights


def _first_layer(
    x: torch.Tensor, slopes: torch.Tensor, weights: Sequence[torch.Tensor], precision: Precision
) -> torch.Tensor:
    """Return the gradient of the first layer's weights.

    ``slopes`` is the gradient of the layer's outputs before their activation.
    """
    from warpdrive_min.training.paths.triton import narrow_kernels

    tile = FIRST_LAYER[precision]
    (*networks, n_units, n_features), n_chunks = weights[0].shape, -(-x.shape[-1] // tile.features)
    n_parts = _n_programs(x, tile.rows, tile.n_programs / n_chunks)
    partial = torch.empty(*networks, n_parts, n_units, n_features, device=x.device, dtype=torch.float32)
    launch(narrow_kernels.first_layer, (n_chunks, n_parts, _n_networks(x)))(
        x,
        slopes,
        partial,
        x.shape[-2],
        F=n_features,
        H1=n_units,
        BLOCK_H1=block_of(n_units),
        IS_MANY=bool(networks),
        **_cut(tile),
    )
    return partial.sum(-3)


def _constants(
    x: torch.Tensor, weights: Sequence[torch.Tensor], activation: str, precision: Precision
) -> dict[str, Any]:
    sizes = {"F": x.shape[-1]} | {name: weights[i].shape[-2] for name, i in (("H1", 0), ("H2", 2), ("O", 4))}
    blocks = {f"BLOCK_{name}": block_of(size) for name, size in sizes.items()}
    is_streamed = _is_streamed(weights)
    chosen = {"ROWS": _rows(weights), "ACTIVATION": activation, "PRODUCT": PRODUCTS[precision]}
    return {**sizes, **blocks, **chosen, "IS_STREAMED": is_streamed, "IS_MANY": x.dim() == 3, "num_warps": WARPS}


def _cut(tile: Tile) -> dict[str, Any]:
    return {
        "ROWS": tile.rows,
        "BLOCK_F": tile.features,
        "PRODUCT": tile.product,
        "STAGES": tile.n_stages,
        "num_warps": tile.n_warps,
    }


def _is_streamed(weights: Sequence[torch.Tensor]) -> bool:
    return _n_padded(weights[0]) > MOST_RESIDENT


def _rows(weights: Sequence[torch.Tensor]) -> int:
    resident = weights[2 * _is_streamed(weights) :: 2]
    return ROWS[sum(map(_n_padded, resident)) > SMALL]


def _n_padded(weight: torch.Tensor) -> int:
    """Return the size of a layer's weights, padded to blocks."""
    return block_of(weight.shape[-2]) * block_of(weight.shape[-1])


def _n_networks(x: torch.Tensor) -> int:
    return len(x) if x.dim() == 3 else 1


def _n_programs(x: torch.Tensor, rows_of_block: int, per_processor: float) -> int:
    return n_programs(x.shape[-2], rows_of_block, per_processor, x.device, _n_networks(x))

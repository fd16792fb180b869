"""A perceptron with two narrow hidden layers in one kernel; its gradients in another, which computes them once more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.training.fused.sizes import power_of_two
from warpdrive_min.training.precision import Precision

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""``(w1, b1, w2, b2, w3, b3)`` of three layers, (outputs, inputs) and (outputs,) each, as in `torch.nn.Linear`."""

WIDEST: Final = 64
"""Units of a hidden layer."""
MOST_WEIGHTS: Final = 8_192
"""Of the first layer, its sizes rounded up to powers of two: its gradient stays in registers."""
ROWS: Final = (64, 32)
"""Rows of a block, of small networks and of those with more weights than SMALL."""
SMALL: Final = 6_144
WARPS: Final = 4
PROGRAMS_PER_PROCESSOR: Final = 2
"""Programs of the kernel of gradients, each of which keeps sums of its own."""


def fits(n_features: int, hidden: tuple[int, int], n_outputs: int) -> bool:
    """Return whether a network's blocks stay on the chip."""
    widths = [_block(width) for width in (*hidden, n_outputs)]
    return max(widths) <= WIDEST and _block(n_features) * widths[0] <= MOST_WEIGHTS


def narrow(x: torch.Tensor, weights: Weights, activation: str, precision: Precision) -> torch.Tensor:
    """Return what comes out of the last layer, ``(rows, n_outputs)`` float32; enqueues.

    Args:
        x: ``(rows, n_features)`` float32.
        weights: Of a network that `fits`, float32.
        activation: "relu" or "tanh", after each hidden layer.
        precision: Of products; fp32 is three products of TF32, whose errors are those of float32.
    """
    outputs: torch.Tensor = _Narrow.apply(x.contiguous(), activation, precision, *weights)  # type: ignore[no-untyped-call]
    return outputs


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activation: str, precision: Precision, *weights: torch.Tensor
    ) -> torch.Tensor:
        from warpdrive_min.training.fused import narrow_kernels

        weights = tuple(weight.contiguous() for weight in weights)
        ctx.save_for_backward(x, *weights)
        ctx.activation, ctx.precision = activation, precision
        out = torch.empty(len(x), len(weights[-1]), device=x.device)
        n_blocks = -(-len(x) // _rows(weights))
        narrow_kernels.forward[(max(1, min(n_blocks, 4 * _processors(x.device))),)](
            x, *weights, out, len(x), **_constants(x, weights, activation, precision)
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from warpdrive_min.training.fused import narrow_kernels

        x, *weights = ctx.saved_tensors
        needs_x = ctx.needs_input_grad[0]
        d_x = torch.empty_like(x) if needs_x else None
        n_programs = max(1, min(-(-len(x) // _rows(weights)), PROGRAMS_PER_PROCESSOR * _processors(x.device)))
        sizes = [weight.numel() for weight in weights]
        partial = torch.empty(n_programs, sum(sizes), device=x.device)
        narrow_kernels.backward[(n_programs,)](
            x,
            *weights[:-1],
            d_out.contiguous(),
            d_x if needs_x else x,
            partial,
            len(x),
            NEEDS_X=needs_x,
            **_constants(x, weights, ctx.activation, ctx.precision),
        )
        gradients = torch.split(partial.sum(0), sizes)
        return d_x, None, None, *(each.view_as(weight) for each, weight in zip(gradients, weights, strict=True))


def _constants(
    x: torch.Tensor, weights: Sequence[torch.Tensor], activation: str, precision: Precision
) -> dict[str, Any]:
    sizes = {"F": x.shape[1], "H1": len(weights[0]), "H2": len(weights[2]), "O": len(weights[4])}
    blocks = {f"BLOCK_{name}": _block(size) for name, size in sizes.items()}
    chosen = {"ROWS": _rows(weights), "IS_TANH": activation == "tanh", "PRECISION": precision, "num_warps": WARPS}
    return {**sizes, **blocks, **chosen}


def _rows(weights: Sequence[torch.Tensor]) -> int:
    sizes = [_block(size) for weight in weights[::2] for size in weight.shape]
    return ROWS[sum(after * before for after, before in zip(sizes[::2], sizes[1::2], strict=True)) > SMALL]


def _block(size: int) -> int:
    """Return the size of a block that holds a size; matrix units take 16 at least."""
    return power_of_two(size, 16)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1

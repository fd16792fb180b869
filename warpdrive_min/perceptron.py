"""Small actor-critic networks for kernels: compile-time sizes and weight order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

ACTIVATIONS: Final = ("relu", "tanh")
"""Activations that kernels support."""
WIDEST: Final = 128
"""Most units of a hidden layer in kernels."""
MOST_INPUTS: Final = 64
"""Most features, and most outputs, in kernels."""

Layout = Literal["rows", "columns", "tiles"]
"""Order of a kernel's weights; see `Perceptron.order`."""

Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Perceptron:
    """Policy network with an optional value head, shared or separate."""

    policy: Sequence[torch.Tensor]
    """Weights and biases of each layer; the last layer returns logits.

    Shapes (outputs, inputs) and (outputs,), as in `torch.nn.Linear`.
    """
    value: Sequence[torch.Tensor]
    """Weights and biases of the value network; empty without a value.

    Shared hidden layers are the policy's tensors.
    """
    activation: str
    """Activation after each hidden layer."""
    in_order: bool = False
    """True if kernels must use exact training's order of operations."""

    @property
    def is_shared(self) -> bool:
        """True if the value uses the policy's hidden layers."""
        return bool(self.value) and self.value[0] is self.policy[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of features, units of each hidden layer, and logits."""
        return (self.policy[0].shape[1], *(len(weights) for weights in self.policy[::2]))

    def constants(self, layout: Layout) -> dict[str, int]:
        """Return the compile-time constants."""
        n_features, first, *second, n_outputs = self.sizes
        return {
            "N_SEEN": n_features,
            "HIDDEN1": first,
            "HIDDEN2": second[0] if second else 0,
            "IS_TANH": self.activation == "tanh",
            "HAS_VALUE": bool(self.value),
            "IS_SHARED": self.is_shared,
            "N_WEIGHTS": len(self.order(layout)),
            "N_CATEGORIES": n_outputs,
            "IN_ORDER": self.in_order,
        }

    @cached_property
    def parameters(self) -> list[torch.Tensor]:
        """All tensors, without duplicates."""
        return list({id(each): each for each in (*self.policy, *self.value)}.values())

    def order(self, layout: Layout) -> Indices:
        """Return the index of each kernel weight among the parameters.

        Indices count the concatenated parameters, followed by a zero. The order is layer by layer: weights, then
        biases, first of the policy's network. A value on shared hidden layers is a further output of its last layer.
        Zeros pad the length to a multiple of 4.

        Args:
            layout: ``"rows"``: weights are (outputs, inputs). ``"columns"``: weights of each network's first and last
                layer are (inputs, outputs), for `perceptron_lane.cuh`. ``"tiles"``, for `perceptron_warp.cuh`: sizes
                are rounded up to multiples of 8. A tile has 8 outputs and 8 inputs. For each of 32 lanes it stores the
                weights of output ``lane // 4`` and inputs ``2 (lane % 4)`` and ``2 (lane % 4) + 1``.
        """
        places, n = dict[int, Indices](), 0
        for each in self.parameters:
            size = math.prod(each.shape)
            places[id(each)] = np.arange(n, n + size).reshape(each.shape)
            n += size
        networks = [[places[id(each)] for each in self.policy]]
        value = [places[id(each)] for each in self.value]
        if self.is_shared:
            networks[0][-2:] = (np.concatenate(pair) for pair in zip(networks[0][-2:], value[-2:], strict=True))
        elif value:
            networks.append(value)
        if layout == "columns":
            for network in networks:
                network[0], network[-2] = network[0].T, network[-2].T
        rows = [tiled(each, n) if layout == "tiles" else each for network in networks for each in network]
        order = np.concatenate([each.ravel() for each in rows])
        return np.pad(order, (0, -len(order) % 4), constant_values=n)


def perceptron_of(policy: Any) -> Perceptron | str:
    """Return a policy's layers, or the reason why kernels cannot use it."""
    found = getattr(policy, "as_perceptron", None)
    return found() if found else f"{type(policy).__name__} has no method as_perceptron() that describes its layers"


def why_no_kernel(sizes: Sequence[int], activation: str) -> str | None:
    """Return the reason why kernels do not support these sizes, or None."""
    n_features, *hidden, n_outputs = sizes
    if activation not in ACTIVATIONS:
        return f"its activation is {activation!r}, and kernels have {' and '.join(ACTIVATIONS)}"
    if len(hidden) not in (1, 2):
        return f"it has {len(hidden)} hidden layers, and kernels one or two"
    if max(hidden) > WIDEST:
        return f"a hidden layer has {max(hidden)} units, and in kernels at most {WIDEST}"
    if max(n_features, n_outputs) > MOST_INPUTS:
        return f"it has {n_features} features and {n_outputs} outputs, and in kernels at most {MOST_INPUTS} each"
    return None


def tiled(places: Indices, zero: int) -> Indices:
    """Arrange indices of weights or biases in tiles of 8.

    Padding has the index ``zero``.
    """
    filled = np.pad(places, [(0, -size % 8) for size in places.shape], constant_values=zero)
    if filled.ndim == 1:
        return filled
    n_outputs, n_inputs = (size // 8 for size in filled.shape)
    return filled.reshape(n_outputs, 8, n_inputs, 4, 2).transpose(0, 2, 1, 3, 4)


class Packed:
    """Parameters in a kernel's order, on their device.

    Args:
        parameters: Tensors that each `pack` reads.
        order: Index of each number in the concatenated parameters, followed by a zero.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], order: Indices) -> None:
        self._parameters = parameters
        device, n = parameters[0].device, sum(each.numel() for each in parameters)
        self._order = torch.from_numpy(order).to(device)
        self._flat, self._zero = (
            torch.zeros(n + 1, device=device, dtype=torch.float32),
            torch.zeros(1, device=device, dtype=torch.float32),
        )
        self.numbers = torch.zeros(len(self._order), device=device, dtype=torch.float32)
        """Numbers for the kernel, (n,) float32."""

    def pack(self) -> None:
        """Fill `numbers` from the parameters; enqueues."""
        with torch.no_grad():
            torch.cat([*(each.detach().reshape(-1) for each in self._parameters), self._zero], out=self._flat)
            torch.index_select(self._flat, 0, self._order, out=self.numbers)

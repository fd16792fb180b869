"""A small actor-critic as kernels take it: the sizes that are compiled in, and its weights in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import torch

ACTIVATIONS: Final = ("relu", "tanh")
"""Activations that kernels have."""
WIDEST: Final = 128
"""Most units of a hidden layer."""
MOST_INPUTS: Final = 64
"""Most features, and most outputs."""

Layout = Literal["rows", "columns", "tiles"]
"""Order of a kernel's weights, see `Perceptron.order`."""

Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Perceptron:
    """A network that acts, and one that values on the same hidden layers, on its own, or not at all."""

    policy: Sequence[torch.Tensor]
    """Weights and biases of each layer, (outputs, inputs) and (outputs,), as in `torch.nn.Linear`; the last puts out
    logits."""
    value: Sequence[torch.Tensor]
    """The same of the value, with the policy's tensors where hidden layers are shared; none: there is no value."""
    activation: str
    """After each hidden layer."""
    in_order: bool = False
    """Kernels must have the order of operations of exact training."""

    @property
    def is_shared(self) -> bool:
        """The value comes from the policy's hidden layers."""
        return bool(self.value) and self.value[0] is self.policy[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Features, units of each hidden layer, and logits."""
        return (self.policy[0].shape[1], *(len(weights) for weights in self.policy[::2]))

    def constants(self, layout: Layout) -> dict[str, int]:
        """Return what is compiled in."""
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
        """All tensors, each once."""
        return list({id(each): each for each in (*self.policy, *self.value)}.values())

    def order(self, layout: Layout) -> Indices:
        """Return the place of each weight of a kernel among the parameters, laid end to end with a zero after them.

        Layer by layer, first those of the policy's network, on whose last layer a value on the same hidden layers is a
        further output: weights, then biases; zeros make the whole a multiple of 4.

        Args:
            layout: ``"rows"``: weights are (outputs, inputs). ``"columns"``: those of each network's first and last
                layer are (inputs, outputs), as `perceptron_lane.cuh` has them. ``"tiles"``: sizes are rounded up to
                multiples of 8, and of each 8 outputs and 8 inputs lie together, for each of 32 lanes, the weights of
                output ``lane // 4`` and inputs ``2 (lane % 4)`` and one more, as `perceptron_warp.cuh` has them.
        """
        places, n = dict[int, Indices](), 0
        for each in self.parameters:
            places[id(each)] = np.arange(n, n + each.numel()).reshape(each.shape)
            n += each.numel()
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
    """Return the layers of a policy, or why there are none for kernels."""
    found = getattr(policy, "as_perceptron", None)
    return found() if found else f"{type(policy).__name__} does not say what its layers are, by as_perceptron()"


def why_no_kernel(sizes: Sequence[int], activation: str) -> str | None:
    """Return why kernels cannot take a network of some features, units and outputs; None: they can."""
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
    """Return places of weights (outputs, inputs), or of biases, by tiles of 8; what fills them up is ``zero``."""
    filled = np.pad(places, [(0, -size % 8) for size in places.shape], constant_values=zero)
    if filled.ndim == 1:
        return filled
    n_outputs, n_inputs = (size // 8 for size in filled.shape)
    return filled.reshape(n_outputs, 8, n_inputs, 4, 2).transpose(0, 2, 1, 3, 4)


class Packed:
    """Parameters in the order of a kernel, on their device.

    Args:
        parameters: Read whenever `pack` is called.
        order: Place of each number among them, laid end to end with a zero after them.
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
        """(n,) float32."""

    @torch.no_grad()
    def pack(self) -> None:
        """Fill `numbers`; enqueues."""
        torch.cat([*(each.detach().reshape(-1) for each in self._parameters), self._zero], out=self._flat)
        torch.index_select(self._flat, 0, self._order, out=self.numbers)

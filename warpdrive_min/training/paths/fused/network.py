"""Layers of a policy and its value as kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from torch import Tensor

SIZES: Final = ("n_features", "n_first", "n_second", "n_outputs")


class Network(NamedTuple):
    """A policy and its value, two hidden layers each, which they may share."""

    policy: Sequence[Tensor]
    """Weights and biases of three layers, (outputs, inputs) and (outputs,) each, as in `torch.nn.Linear`."""
    value: Sequence[Tensor]
    """The same, whose first four are the policy's where hidden layers are shared; all of them without a value."""
    is_tanh: bool
    """Activation after each hidden layer; else relu."""
    is_box: bool
    """The head is ``scale * tanh(outputs) + offset``, the mean of a Gaussian; else logits."""
    scale: float
    offset: float
    log_std: Tensor | None
    """Logarithm of a Gaussian's deviation, (n_types,); None of logits."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the features, the units of both hidden layers, and the outputs, by the kernels' names."""
        w1, _, w2, _, w3, _ = self.policy
        return dict(zip(SIZES, (w1.shape[1], len(w1), len(w2), len(w3)), strict=True))


def offset_of(part: Tensor, parameters: Tensor) -> int:
    """Return where among all parameters a view of some begins."""
    return (part.data_ptr() - parameters.data_ptr()) // parameters.element_size()

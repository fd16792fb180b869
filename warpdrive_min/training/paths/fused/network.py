"""Layers of a policy and its value, as arguments of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from torch import Tensor

SIZES: Final = ("n_features", "n_first", "n_second", "n_outputs")


class Network(NamedTuple):
    """Policy and value networks with two hidden layers each, possibly shared."""

    policy: Sequence[Tensor]
    """Weights and biases of three layers, as in `torch.nn.Linear`.

    Shapes are (outputs, inputs) and (outputs,).
    """
    value: Sequence[Tensor]
    """The same for the value.

    Its first four are the policy's if hidden layers are shared; all are the policy's if there is no value.
    """
    is_tanh: bool
    """True if hidden layers use tanh, else relu."""
    is_box: bool
    """True if the head is a Gaussian's mean, else logits.

    The mean is ``scale * tanh(outputs) + offset``.
    """
    scale: float
    offset: float
    log_std: Tensor | None
    """Log standard deviation of the Gaussian, (n_types,); None for logits."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes of the policy's layers, by the kernels' names."""
        w1, _, w2, _, w3, _ = self.policy
        return dict(zip(SIZES, (w1.shape[1], len(w1), len(w2), len(w3)), strict=True))


def offset_of(part: Tensor, parameters: Tensor) -> int:
    """Return the offset of a view within the vector of all parameters."""
    return (part.data_ptr() - parameters.data_ptr()) // parameters.element_size()

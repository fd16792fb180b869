"""Forward passes that acting makes and learning goes back from, where a rollout is learned from once, whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.training.config import Precision
from warpdrive_min.training.fused import wide
from warpdrive_min.training.fused.activations import in_kernels
from warpdrive_min.training.fused.narrow import Weights

Tensor = torch.Tensor


class KeptPasses:
    """Outputs and layers of a wide perceptron for all rows of a rollout, in the order of steps, environments, agents.

    Args:
        shape: Steps, environments and agents of a rollout.
        sizes: Of a network that `wide.fits`, whose layers lie by rows.
        n_outputs: Of all heads.
        precision: Of products.
        device: GPU.

    Raises:
        torch.cuda.OutOfMemoryError: They do not fit.
    """

    def __init__(
        self, shape: tuple[int, int, int], sizes: wide.Sizes, n_outputs: int, precision: Precision, device: torch.device
    ) -> None:
        n_steps, n_envs, self.n_agents = shape
        self._sizes, self._precision = sizes, precision
        self.outputs = torch.zeros(*shape, n_outputs, device=device)
        """(n_steps, n_envs, n_agents, n_outputs) float32."""
        self._rows_of_step = n_envs * self.n_agents
        n_rows = n_steps * self._rows_of_step
        # The last tile of a step reaches into the next one, which is written after it; padding reaches behind the end.
        n_rows += wide.most_padding(self._sizes, precision)
        self._layers = wide.Layers.empty(n_rows, self._sizes, precision, device, is_zero=True)

    def step(self, t: int, observations: Tensor) -> StepRows:
        """Return observations (n_envs, n_agents, n_features) of a step as models take them, whose pass is kept."""
        first = t * self._rows_of_step
        n_rows = wide.whole_tiles(self._rows_of_step, self._sizes, self._precision)
        return StepRows(observations, self.outputs[t], self._layers.part(first, n_rows), self._precision)

    def rows(self, part: slice) -> KeptRows:
        """Return rows (step, environment) of the rollout as models take them, which go no way forward but back."""
        first, n_rows = part.start * self.n_agents, (part.stop - part.start) * self.n_agents
        layers = self._layers.part(first, wide.n_padded(n_rows, self._sizes, self._precision))
        return KeptRows(self.outputs.flatten(0, 1)[part], layers, self._precision)


class StepRows(NamedTuple):
    """Observations of a step, and where its outputs and layers are kept."""

    observations: Tensor
    outputs: Tensor
    layers: wide.Layers
    precision: Precision

    def under(self, weights: Sequence[Tensor], activation: str) -> Tensor:
        """Return the outputs of a perceptron, (n_envs, n_agents, n_outputs), once they are kept; enqueues."""
        name = in_kernels(activation, self.precision, self.outputs.device)
        out = self.outputs.flatten(0, 1)
        wide.evaluate(self.observations.flatten(0, 1), _six(weights), name, self.precision, out, self.layers)
        return self.outputs


class KeptRows(NamedTuple):
    """Outputs and layers of some rows, with the weights that they came from."""

    outputs: Tensor
    layers: wide.Layers
    precision: Precision

    def under(self, weights: Sequence[Tensor], activation: str) -> Tensor:
        """Return the outputs (rows, n_agents, n_outputs), which have gradients by the weights; enqueues."""
        name = in_kernels(activation, self.precision, self.outputs.device)
        outputs: Tensor = _WayBack.apply(self, name, *_six(weights))  # type: ignore[no-untyped-call]
        return outputs


class _WayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: KeptRows, activation: str, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(*weights[::2])
        ctx.rows, ctx.activation = rows, activation
        return rows.outputs.view_as(rows.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows: KeptRows = ctx.rows
        _, found = wide.gradients(slope.flatten(0, -2), rows.layers, ctx.saved_tensors, ctx.activation, rows.precision)
        return None, None, *found


def _six(weights: Sequence[Tensor]) -> Weights:
    w1, b1, w2, b2, w3, b3 = weights
    return w1, b1, w2, b2, w3, b3

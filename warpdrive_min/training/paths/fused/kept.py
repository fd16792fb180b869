"""Forward passes of acting, kept for learning.

An update on the whole rollout then needs only the backward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.training.paths.facts import Facts, rule, where
from warpdrive_min.training.paths.fused import wide
from warpdrive_min.training.paths.fused.activations import in_kernels

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision
    from warpdrive_min.training.paths.fused.narrow import Weights

Tensor = torch.Tensor

MOST_MEMORY: Final = 0.5
"""Largest share of a GPU's memory for kept passes and observations.

It does not apply if ``trainer.kept_passes`` is true.
"""

in_fp32 = where(
    "`trainer.precision` is `fp32`",
    lambda facts: facts.precision == "fp32",
    "torch keeps forward passes in fp32 only (got {facts.precision})",
)


@rule(
    f"kept layers and observations take at most {MOST_MEMORY:.0%} of the GPU's memory, or `trainer.kept_passes` is true"
)
def fits_memory(facts: Facts) -> str | None:
    """Refuse rollouts whose passes need too much memory."""
    if facts.kept_passes is not None or facts.gpu_bytes is None:
        return None
    layers, is_wide = facts.layers, wide.fits.why_not(facts) is None
    sizes = layers.n_features, layers.hidden[0], layers.hidden[1]
    of_layers = wide.bytes_of_row(sizes, facts.precision) if is_wide else 4 * sum(layers.hidden)
    n_bytes, most = facts.n_bytes + facts.n_rows * (4 * layers.n_columns + of_layers), MOST_MEMORY * facts.gpu_bytes
    if n_bytes <= most:
        return None
    much = f"{n_bytes / 1e9:.1f} GB, more than {most / 1e9:.1f}"
    return f"trainer.kept_passes is null, and kept layers and observations take {much}"


class SavedPasses(ABC):
    """Saved outputs and hidden layers of a rollout.

    Rows are ordered by step, environment, agent. Acting evaluates and keeps each step; learning computes the gradients
    of some rows.

    Args:
        shape: Steps, environments and agents of a rollout.
        n_outputs: Number of outputs of all heads.
        device: GPU.

    Raises:
        torch.cuda.OutOfMemoryError: The arrays do not fit.
    """

    def __init__(self, shape: tuple[int, int, int], n_outputs: int, device: torch.device) -> None:
        self.outputs = torch.zeros(*shape, n_outputs, device=device, dtype=torch.float32)
        """Outputs, (n_steps, n_envs, n_agents, n_outputs) float32."""
        self.layers: Sequence[Tensor] = ()
        """Other kept arrays, each with a first axis of rows."""
        self.weights: Weights | None = None
        """The network's weights at the first step of the rollout."""
        self.activation = ""
        """Activation after each hidden layer, from that step on."""
        self.source: wide.OfAgents | None = None
        """Rows that steps read, in the environment's array; None: they read copies of them."""
        self.reads_in_place = False
        """True if steps can read a `source`."""
        _, n_envs, self.n_agents = shape
        self._rows_of_step = n_envs * self.n_agents

    @property
    def n_bytes(self) -> int:
        """Memory of outputs and layers, bytes."""
        return sum(array.nbytes for array in (self.outputs, *self.layers))

    def step(self, t: int, observations: Tensor) -> ActingInput:
        """Model input for acting at step ``t``; its forward pass is kept.

        Args:
            t: Step of the rollout, from 0; weights must not change within a rollout.
            observations: ``(n_envs, n_agents, n_features)``; not read if there is a `source`.
        """
        return ActingInput(self, t, observations.flatten(0, 1) if self.source is None else self.source)

    @property
    def observations(self) -> Tensor:
        """Return the kept observations, (n_steps, n_envs, n_agents, n_features).

        In bfloat16 they are rounded.
        """
        raise NotImplementedError

    def rows(self, part: slice) -> LearningInput:
        """Model input for learning from rows (step, environment).

        It has only a backward pass.
        """
        return LearningInput(self, part)

    def begin(self, weights: Weights, activation: str) -> None:
        """Take the weights and the activation of the next steps; enqueues."""
        self.weights, self.activation = weights, activation

    @abstractmethod
    def evaluate(self, t: int, x: Tensor | wide.OfAgents) -> None:
        """Write the outputs of a step and keep its layers; enqueues.

        ``x`` has the step's rows, (n_envs * n_agents, n_features).
        """

    @abstractmethod
    def gradients(self, first: int, slope: Tensor, matrices: Sequence[Tensor], activation: str) -> list[Tensor]:
        """Return the gradients of weights and biases; enqueues.

        Args:
            first: First of the rows.
            slope: Gradient of the rows' outputs, (n_rows, n_outputs).
            matrices: Weights of each layer at the time of evaluation.
            activation: Activation after each hidden layer.
        """


class KernelSavedPasses(SavedPasses):
    """Kept passes by the kernels of `wide`, in TF32 or bfloat16.

    Args:
        shape: Steps, environments and agents of a rollout.
        sizes: Sizes of a network that `wide.fits`, with layers stored by row.
        n_outputs: Number of outputs of all heads.
        precision: Precision of products.
        device: GPU.
        kernels: Kernels that fit the network.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        sizes: wide.Sizes,
        n_outputs: int,
        precision: Precision,
        device: torch.device,
        kernels: wide.Kernels,
    ) -> None:
        super().__init__(shape, n_outputs, device)
        self._sizes, self._precision, self._kernels = sizes, precision, kernels
        self.reads_in_place = kernels.reads_in_place
        # The last tile of a step overlaps the next step, which is written later. Padding extends beyond the last step.
        n_rows = shape[0] * self._rows_of_step + wide.most_padding(sizes, precision)
        self.layers: wide.Layers = wide.Layers.empty(n_rows, sizes, precision, device)
        for array in self.layers:
            array.zero_()
        self._ordered: Any = None

    def begin(self, weights: Weights, activation: str) -> None:
        """Order the weights for the kernels."""
        super().begin(weights, activation)
        name = in_kernels(activation, self._precision, self.outputs.device)
        self._ordered = self._kernels.ordered(weights, name, self._precision)

    @property
    def observations(self) -> Tensor:
        """Return the first layer's inputs, without their padding."""
        kept: Tensor = self.layers.x[: len(self.outputs) * self._rows_of_step, : self._sizes[0]]
        rows: Tensor = kept.unflatten(0, self.outputs.shape[:3])
        return rows

    def evaluate(self, t: int, x: Tensor | wide.OfAgents) -> None:
        """Write outputs and layers of a step in one kernel."""
        name = in_kernels(self.activation, self._precision, self.outputs.device)
        n_rows = wide.whole_tiles(self._rows_of_step, self._sizes, self._precision)
        layers, out = self.layers.part(t * self._rows_of_step, n_rows), self.outputs[t].flatten(0, 1)
        self._kernels.evaluate(x, self._ordered, name, self._precision, out, layers)

    def gradients(self, first: int, slope: Tensor, matrices: Sequence[Tensor], activation: str) -> list[Tensor]:
        """Compute the backward pass in one kernel, then sum over the rows."""
        layers = self.layers.part(first, wide.n_padded(len(slope), self._sizes, self._precision))
        name = in_kernels(activation, self._precision, slope.device)
        return wide.gradients(slope, layers, matrices, name, self._precision, self._kernels)[1]


class TorchSavedPasses(SavedPasses):
    """Kept passes by torch's matrix products, in float32.

    Args:
        observations: Rollout's observations, (n_steps, n_envs, n_agents, n_features) float32, at a fixed address.
        units: Units of both hidden layers.
        n_outputs: Number of outputs of all heads.
    """

    def __init__(self, observations: Tensor, units: tuple[int, int], n_outputs: int) -> None:
        n_steps, n_envs, n_agents, _ = observations.shape
        super().__init__((n_steps, n_envs, n_agents), n_outputs, observations.device)
        self._x = observations.flatten(0, 2)
        self.layers = [torch.zeros(len(self._x), n, device=observations.device, dtype=torch.float32) for n in units]

    def evaluate(self, t: int, x: Tensor | wide.OfAgents) -> None:
        """Write outputs and layers of a step, layer by layer."""
        assert self.weights is not None
        assert not isinstance(x, wide.OfAgents)
        inputs: Tensor = x
        weights, step = self.weights, slice(t * self._rows_of_step, (t + 1) * self._rows_of_step)
        for hidden, weight, bias in zip(self.layers, weights[0:4:2], weights[1:4:2], strict=True):
            inputs = getattr(torch, f"{self.activation}_")(torch.addmm(bias, inputs, weight.t(), out=hidden[step]))
        torch.addmm(weights[5], inputs, weights[4].t(), out=self.outputs[t].flatten(0, 1))

    def gradients(self, first: int, slope: Tensor, matrices: Sequence[Tensor], activation: str) -> list[Tensor]:
        """Compute the backward pass layer by layer."""
        rows, found = slice(first, first + len(slope)), list[Tensor]()
        for layer in (2, 1, 0):
            inputs = (self._x, *self.layers)[layer][rows]
            found = [slope.t() @ inputs, slope.sum(0), *found]
            if layer:
                slope = slope @ matrices[layer]
                if activation == "relu":
                    torch.ops.aten.threshold_backward.grad_input(slope, inputs, 0, grad_input=slope)
                else:
                    torch.ops.aten.tanh_backward.grad_input(slope, inputs, grad_input=slope)
        return found


class ActingInput(NamedTuple):
    """Input of an acting network whose forward pass is saved."""

    passes: SavedPasses
    t: int
    rows: Tensor | wide.OfAgents

    def head_outputs(self, weights: Callable[[], Sequence[Tensor]], activation: str) -> Tensor:
        """Compute and keep the outputs, (n_envs, n_agents, n_outputs); enqueues.

        ``weights`` is called at the first step of a rollout.
        """
        if self.t == 0 or self.passes.weights is None:
            self.passes.begin(_six(weights()), activation)
        self.passes.evaluate(self.t, self.rows)
        return self.passes.outputs[self.t]


class LearningInput(NamedTuple):
    """Input of a learning network: rows whose forward passes were saved."""

    passes: SavedPasses
    part: slice

    def head_outputs(self, weights: Sequence[Tensor], activation: str) -> Tensor:
        """Return the kept outputs (rows, n_agents, n_outputs), differentiable; enqueues.

        Gradients are with respect to the weights.
        """
        outputs: Tensor = _SavedBackward.apply(self, activation, *_six(weights))  # type: ignore[no-untyped-call]
        return outputs


class _SavedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: LearningInput, activation: str, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(*weights[::2])
        ctx.rows, ctx.activation = rows, activation
        return rows.passes.outputs.flatten(0, 1)[rows.part]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        passes, part = ctx.rows
        found = passes.gradients(part.start * passes.n_agents, slope.flatten(0, -2), ctx.saved_tensors, ctx.activation)
        return None, None, *found


def _six(weights: Sequence[Tensor]) -> Weights:
    w1, b1, w2, b2, w3, b3 = weights
    return w1, b1, w2, b2, w3, b3


def by_kernels(observations: Tensor, facts: Facts, kernels: wide.Kernels = wide.TRITON) -> KernelSavedPasses:
    """Build passes kept by kernels, in Triton or other ones.

    Observations are (n_steps, n_envs, n_agents, n_features).
    """
    layers, (n_steps, n_envs, n_agents, _) = facts.layers, observations.shape
    sizes = layers.n_features, layers.hidden[0], layers.hidden[1]
    shape, n_outputs = (n_steps, n_envs, n_agents), layers.n_columns
    return KernelSavedPasses(shape, sizes, n_outputs, facts.precision, observations.device, kernels)


def by_torch(observations: Tensor, facts: Facts) -> TorchSavedPasses:
    """Build passes kept by torch.

    Observations are (n_steps, n_envs, n_agents, n_features).
    """
    layers = facts.layers
    return TorchSavedPasses(observations, (layers.hidden[0], layers.hidden[1]), layers.n_columns)

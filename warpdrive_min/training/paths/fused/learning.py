"""One-pass A2C and PPO of narrow networks on a GPU.

The pass over a minibatch's rows computes the loss and its gradients. Outputs and hidden layers stay on the chip, and
the rows of a minibatch are not gathered first. This takes half the time of separate passes for forward, loss and
backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.facts import Facts, Layers, rule
from warpdrive_min.training.paths.fused import narrow, shared
from warpdrive_min.training.paths.fused.activations import in_kernels
from warpdrive_min.training.paths.fused.loss import Learned, Rows
from warpdrive_min.training.paths.fused.network import Network, offset_of
from warpdrive_min.training.paths.fused.rows import take
from warpdrive_min.training.paths.triton import sizes as triton_sizes
from warpdrive_min.training.paths.triton.launch import launch
from warpdrive_min.training.paths.triton.sizes import PRODUCTS, block_of

if TYPE_CHECKING:
    from warpdrive_min.training.actions import ActionSpace
    from warpdrive_min.training.config import Precision

Tensor = torch.Tensor

ROWS: Final = 64
"""Rows per block."""
WARPS: Final = 4
PROGRAMS_PER_PROCESSOR: Final = 2
"""Programs per multiprocessor, each with its own sums."""
COLUMNS: Final = 32
"""Entries of the gradient that one program sums."""


@rule(f"up to {narrow.WIDEST} units and {narrow.WIDEST - 1} logits")
def is_narrow(facts: Facts) -> str | None:
    """Refuse wide layers and continuous actions."""
    layers = facts.layers
    if facts.is_box:
        return "actions are continuous (a Box)"
    if max(*layers.hidden, layers.n_outputs + 1) > narrow.WIDEST:
        return f"needs up to {narrow.WIDEST} units and {narrow.WIDEST - 1} logits (got {layers})"
    return None


@rule(
    f"features times units of the first layer, both rounded up to powers of two, are at most {narrow.MOST_RESIDENT:,}, "
    "or agents share a row of observations"
)
def first_layer_stays(facts: Facts) -> str | None:
    """Refuse first layers that do not fit on the chip."""
    if facts.own_columns is not None or first_layer_is_small(facts.layers):
        return None
    return f"the first layer needs at most {narrow.MOST_RESIDENT:,} weights, padded (got {facts.layers})"


def first_layer_is_small(layers: Layers) -> bool:
    """Return True if the first layer's weights fit on the chip."""
    return block_of(layers.n_features) * block_of(layers.hidden[0]) <= narrow.MOST_RESIDENT


class Learning:
    """Loss of A2C and PPO, and its gradients, in one pass.

    If parameters have an axis of members, all members of a population are computed together.

    Args:
        network: Network whose parameters are views of those learned; for a population the first member's.
        learned: Parameters, rows and loss.
        precision: Precision of products.
        own_columns: `AgentArrays.own_columns`, for observations with one row for all agents.
    """

    normalises: ClassVar[bool] = False

    def __init__(
        self, network: Network, learned: Learned, *, precision: Precision, own_columns: int | None = None
    ) -> None:
        parameters, gradient, space, rollout, rule, n_rows = learned
        observations, actions = rollout["observations"], rollout["actions"]
        assert observations is not None
        assert actions is not None
        device, n_agents = observations.device, actions.shape[-2]
        *members, n_parameters = parameters.shape
        self._n_networks = math.prod(members)
        self.terms = torch.zeros(N_TERMS, *members, device=device, dtype=torch.float32)
        n_items = n_rows * n_agents
        self._gradient, self._n_rows = gradient, n_items if own_columns is None else n_rows
        self._total = torch.full((), float(n_items), device=device, dtype=torch.float32)
        sizes = network.sizes
        heads: list[Sequence[Tensor | None]] = [(*network.value[:4], None, None, *network.value[4:])]
        heads.append((*network.policy, None, None))  # after the value, because advantages may depend on it
        if network.policy[0] is network.value[0]:
            heads = [(*network.policy, *network.value[4:])]
        n_programs = triton_sizes.n_programs(n_items, ROWS, PROGRAMS_PER_PROCESSOR, device, self._n_networks)
        first_layers: list[_SharedLayer | None] = [None for _ in heads]
        if own_columns is not None:
            n_programs = shared.n_programs(n_agents, n_rows, PROGRAMS_PER_PROCESSOR, device)
            seen = shared.SharedRows(observations, n_agents, own_columns)
            first_layers = [_SharedLayer(head, parameters, gradient, seen, n_rows, n_programs) for head in heads]
        both = zip(heads, first_layers, strict=True)
        self._passes = [
            _Pass(head, first_layer, space, parameters.view(-1, n_parameters)[0]) for head, first_layer in both
        ]
        places = [each.places for each in self._passes]
        self._places = torch.cat(places).to(device)
        partial = torch.zeros(self._n_networks, n_programs, len(self._places), device=device, dtype=torch.float32)
        self._parts = partial.split([len(each) for each in places], -1)
        self._partial = partial
        self._arrays = {name: rollout[name] for name in ("observations", "actions", "log_probs", "returns", "masks")}
        self._arrays["old_values"] = None if rule.value_clip is None else rollout["old_values"]
        self._given_advantages, self._values = rollout["advantages"], rollout["old_values"]
        is_apart = device.type == "cuda" and len(heads) > 1 and own_columns is None
        self._side = torch.cuda.Stream(device) if is_apart else None
        """Stream on which the value network learns, parallel to the policy network.

        With few rows both fit on the GPU at once.
        """
        clips = rule.clip_param if isinstance(rule.clip_param, Tensor) else None
        self._numbers = {
            "vf_loss_coeff": rule.vf_loss_coeff,
            "entropy_coeff": rule.entropy_coeff,
            "clip_param": clips,
            "n_parameters": n_parameters,
        }
        activation = in_kernels("tanh" if network.is_tanh else "relu", precision, device)
        self._constants: dict[str, Any] = {
            "F": sizes["n_features"],
            "H1": sizes["n_first"],
            "H2": sizes["n_second"],
            "BLOCK_F": block_of(sizes["n_features"]),
            "BLOCK_H1": block_of(sizes["n_first"]),
            "BLOCK_H2": block_of(sizes["n_second"]),
            "N_AGENTS": n_agents,
            "OWN_COLUMNS": own_columns,
            "SIZES": space.categories,
            "CLIP_PARAM": rule.clip_param if clips is None else 0.0,
            "IS_MANY": bool(members),
            "IS_CLIPPED": rule.is_clipped,
            "VALUE_CLIP": rule.value_clip,
            "ROWS": ROWS if own_columns is None else shared.ROWS,
            "ACTIVATION": activation,
            "PRODUCT": PRODUCTS[precision],
            "num_warps": WARPS,
        }

    def find(self, rows: Rows) -> None:
        """Write the gradient and `terms`, as `loss.Learning.find`; enqueues."""
        from warpdrive_min.training.paths.triton import learning_kernels

        indices, values, advantages, weights, total = rows
        total = self._total if total is None else total
        is_taken = advantages is not None
        if advantages is None:
            advantages = self._given_advantages
        side = None if advantages is None else self._side  # without advantages the policy needs the values first
        for number, (each, partial) in enumerate(zip(self._passes, self._parts, strict=True)):
            with nullcontext() if side is None or number else _beside(side):
                launch(learning_kernels.learn, (partial.shape[1], self._n_networks))(
                    **{**self._arrays, **each.begin(indices)},
                    **each.arguments,
                    advantages=advantages,
                    values=self._values,
                    weights=weights,
                    indices=indices,
                    total=total,
                    **self._numbers,
                    partial=partial,
                    partial_stride=partial.stride(1),
                    n_rows=self._n_rows,
                    IS_TAKEN=is_taken,
                    STORES=values is not None and each.has_value,
                    **self._constants,
                )
                each.end()
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        _, n_programs, n_columns = self._partial.shape
        launch(learning_kernels.add_up, (-(-n_columns // COLUMNS), self._n_networks))(
            self._partial,
            self._places,
            total,
            self._gradient,
            self.terms,
            n_programs,
            n_columns,
            self._gradient.shape[-1],
            ROWS=128,
            COLUMNS=COLUMNS,
        )


@contextmanager
def _beside(stream: torch.cuda.Stream) -> Iterator[None]:
    """Enqueue on another stream, after all work enqueued so far."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


class _Pass:
    """Arguments of one launch: a network and the loss on its outputs.

    Also its first layer, if that is computed separately.
    """

    def __init__(
        self,
        layers: Sequence[Tensor | None],
        first_layer: _SharedLayer | None,
        space: ActionSpace,
        parameters: Tensor,
    ) -> None:
        self._first_layer = first_layer
        names = ("w1", "b1", "w2", "b2", "w3", "b3", "v3", "c3")
        self.arguments: dict[str, Any] = dict(zip(names, layers, strict=True))
        has_policy, self.has_value = layers[4] is not None, layers[6] is not None
        self.arguments["N_TYPES"] = space.n_types if has_policy else 0
        self.arguments["N_OUTPUTS"] = space.n_outputs if has_policy else 0
        self.arguments["BLOCK_O"] = block_of(self.arguments["N_OUTPUTS"] + self.has_value)
        in_order = (0, 1, 2, 3, 4, 6, 5, 7) if first_layer is None else (1, 2, 3, 4, 6, 5, 7)
        parts = [part for part in (layers[k] for k in in_order) if part is not None]
        ranges = [torch.arange(part.numel(), device="cpu") + offset_of(part, parameters) for part in parts]
        terms = [parameters.numel() + k if (self.has_value if k == 1 else has_policy) else -1 for k in range(N_TERMS)]
        self.places = torch.cat([*ranges, torch.tensor(terms, dtype=torch.int64, device="cpu")]).int()
        """Index of each of a program's numbers in the result, (n,) int32.

        The result is the gradient followed by the terms; -1 means neither.
        """

    def begin(self, indices: Tensor | None) -> dict[str, Tensor | None]:
        """Return the first layer's arguments; enqueues their computation."""
        if self._first_layer is None:
            return {"slopes": None, "of_agents": None}
        return self._first_layer.forward(indices)

    def end(self) -> None:
        """Write the gradient of a separate first layer; enqueues."""
        if self._first_layer is not None:
            self._first_layer.backward()


class _SharedLayer:
    """First layer on rows that agents share: forward and backward pass.

    The kernel computes the steps between the two.

    Args:
        layers: Layers of the network.
        parameters: All parameters, of which the layers are views.
        gradient: Output for the gradient of the layer's weights.
        seen: Observations of the rollout, with rows (n_steps + 1, n_envs, 1, n_features).
        n_rows: Rows of a minibatch.
        n_programs: Programs of the kernel.
    """

    def __init__(
        self,
        layers: Sequence[Tensor | None],
        parameters: Tensor,
        gradient: Tensor,
        seen: shared.SharedRows,
        n_rows: int,
        n_programs: int,
    ) -> None:
        weight, bias = layers[:2]
        assert weight is not None
        assert bias is not None
        self._weight, self._bias = weight, bias
        first, n_units = offset_of(weight, parameters), len(weight)
        self._gradient = gradient[first : first + weight.numel()].view_as(weight)
        self._own = seen.table(self._gradient)
        self._observed = seen.rows.flatten(0, -2)
        self._rows = self._observed[:n_rows]
        n_blocks, device = shared.n_blocks(seen.n_agents), seen.rows.device
        self._sums = torch.empty(n_rows, n_units, device=device, dtype=torch.float32)
        self._slopes = torch.empty(n_rows, n_blocks, n_units, device=device, dtype=torch.float32)
        self._of_agents = torch.empty(
            n_programs // n_blocks, n_blocks * shared.ROWS, n_units, device=device, dtype=torch.float32
        )

    def forward(self, indices: Tensor | None) -> dict[str, Tensor | None]:
        """Return the kernel's inputs, and arrays for its gradients.

        The gradients are summed over agents (``slopes``) and over rows (``of_agents``).
        """
        self._rows = self._observed[: len(self._sums)] if indices is None else take(self._observed, indices)
        torch.addmm(self._bias.detach(), self._rows, self._weight.detach().t(), out=self._sums)
        return {"observations": self._sums, "slopes": self._slopes, "of_agents": self._of_agents}

    def backward(self) -> None:
        """Write the gradient of the weights."""
        torch.mm(self._slopes.sum(1).t(), self._rows, out=self._gradient)
        self._own.copy_(self._of_agents.sum(0)[: len(self._own)])

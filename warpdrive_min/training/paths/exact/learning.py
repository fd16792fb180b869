"""One-pass exact A2C and PPO of small networks.

The pass computes loss and gradients. They are bit-identical to those of `Exact`'s separate kernels, which write each
layer of each row to memory and read it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from warpdrive_min.perceptron import Packed, Perceptron, why_no_kernel
from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.exact.exact import Exact, loss_constants
from warpdrive_min.training.paths.exact.layers import SHARED_BYTES, THREADS, WIDEST, Indices, Layers, order
from warpdrive_min.training.paths.facts import Facts, rule
from warpdrive_min.training.paths.fused.loss import Learned, Rows
from warpdrive_min.training.paths.fused.network import offset_of

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Argument

Tensor = torch.Tensor

FROM_VALUES, OF_ROWS, OF_ITEMS = 0, 1, 2
"""Source of advantages: returns minus values, the rollout, the minibatch."""


@rule(
    f"one or two hidden layers of up to {WIDEST} units, "
    f"which on a GPU fit into {SHARED_BYTES // 1024} KiB with a tile of rows"
)
def fits(facts: Facts) -> str | None:
    """Refuse networks that the kernels do not support."""
    if isinstance(facts.network, str):
        return facts.network
    layers, n_sums, on_gpu = facts.network, N_TERMS + facts.n_types, facts.device == "cuda"
    below, n_outputs = (layers.n_features, *layers.hidden), layers.n_outputs
    if reason := why_no_kernel((*below, n_outputs), layers.activation):
        return reason
    if facts.n_other_parameters:
        return f"learns only layers and the log_std of a Box (got {facts.n_other_parameters} other parameters)"
    networks = [n_outputs + 1] if layers.is_shared else [1, n_outputs]
    if all(Layers((*below, n)).fits(on_gpu=on_gpu, sums=n_sums) for n in networks):
        return None
    return f"needs one or two layers of up to {WIDEST} units, on a GPU in {SHARED_BYTES // 1024} KiB (got {layers})"


class ExactLearning:
    """Loss of A2C and PPO and its gradients.

    Args:
        exact: Kernels of the backend.
        model: Model whose parameters are views of those learned.
        network: Layers of the model.
        learned: Parameters, rows and loss.
        at_once: Rows per pass through the network; the gradients of several passes are summed.
    """

    normalises: ClassVar[bool] = False

    def __init__(self, exact: Exact, model: Any, network: Perceptron, learned: Learned, *, at_once: int) -> None:
        parameters, gradient, space, rollout, rule, n_rows = learned
        observations = rollout["observations"]
        assert observations is not None
        device, n_agents = parameters.device, observations.shape[-2]
        self._exact, self._gradient = exact, gradient
        self._n_items, self._at_once = n_rows * n_agents, at_once * n_agents
        self._own_advantages = rollout["advantages"]
        self._total = torch.full((), float(self._n_items), device=device, dtype=torch.float32)
        self._none, self._no_ints = (
            torch.zeros(1, device=device, dtype=torch.float32),
            torch.zeros(1, dtype=torch.int32, device=device),
        )
        self.terms = torch.zeros(N_TERMS, device=device, dtype=torch.float32)
        self._passes = [
            (each.constants(parameters), Packed([parameters], each.order(parameters))) for each in _passes(network)
        ]
        factor, centre = model.policy_head.bounds
        log_std = model.log_std.detach() if space.is_continuous else None
        given = {name: rollout[name] for name in ("observations", "log_probs", "returns", "old_values")} | {
            "values": rollout["old_values"],
            "choices": self._no_ints if space.is_continuous else rollout["actions"],
            "drawn": rollout["actions"] if space.is_continuous else self._none,
            "mask": self._no_ints if rollout["masks"] is None else rollout["masks"],
            "log_std": self._none if log_std is None else log_std,
            "value_weight": rule.vf_loss_coeff,
            "entropy_weight": rule.entropy_coeff,
        }
        self._given: dict[str, Argument] = {name: each for name, each in given.items() if each is not None}
        self._constants: dict[str, Any] = {
            **loss_constants(space, rule, is_masked=rollout["masks"] is not None),
            "THREADS": THREADS,
            "FACTOR": factor,
            "CENTRE": centre,
            "PLACE_LOG_STD": 0 if log_std is None else offset_of(log_std, parameters),
            "AGENTS": n_agents,
            "IS_TANH": network.activation == "tanh",
            "N_COLUMNS": parameters.numel() + N_TERMS,
        }

    def find(self, rows: Rows) -> None:
        """Write the gradient and `terms`; enqueues.

        As `loss.Learning.find`, without weights.
        """
        indices, values, advantages, weights, total = rows
        assert weights is None, "exact training counts all rows"
        own = self._own_advantages if advantages is None else advantages
        kind = OF_ITEMS if advantages is not None else FROM_VALUES if own is None else OF_ROWS
        total = self._total if total is None else total
        how = {"IS_DEALT": indices is not None, "ADVANTAGES": kind, "STORES": values is not None}
        chosen = {
            "indices": self._no_ints if indices is None else indices,
            "advantages": self._none if own is None else own.contiguous(),
            "total": total,
        }
        for first in range(0, self._n_items, self._at_once):
            share = self._exact.share(min(self._at_once, self._n_items - first))
            parts = self._gradient.new_empty(share.n_parts, self._constants["N_COLUMNS"])
            of_rows: dict[str, Argument] = {
                "parts": parts,
                "first": first + share.start,
                "n_rows": share.stop - share.start,
                "rows_of_a_part": share.rows_of_a_part,
            }
            for sizes, packed in self._passes:
                packed.pack()
                given = {**self._given, **chosen, **of_rows, "weights": packed.numbers}
                constants = {**self._constants, **sizes, **how}
                self._exact.launch_blocks("exact_learn.cu", constants, "learn", (share.n_parts, THREADS), **given)
            with self._exact.sharing(share):
                sums = self._exact.sum_parts(parts)
            if values is not None and self._exact.world.size > 1:
                items = values.view(-1)[first : first + share.n_rows]
                items.copy_(self._exact.whole(items[share.start : share.stop], share))
            gradient, terms = sums[:-N_TERMS], sums[-N_TERMS:] / total
            if first:
                self._gradient.add_(gradient)
                self.terms.add_(terms)
            else:
                self._gradient.copy_(gradient)
                self.terms.copy_(terms)


# ------------------------------------------------------------------ one network


@dataclass(frozen=True, eq=False)
class _Pass:
    """Network of the policy, the value, or both."""

    hidden: Sequence[Tensor]
    """Weights (outputs, inputs) and biases of one or two hidden layers."""
    policy: Sequence[Tensor]
    """Weights and biases of the policy's head; empty for a value network."""
    value: Sequence[Tensor]

    @property
    def layers(self) -> list[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        """Weights and biases of all layers; those of the last are in parts.

        Concatenate the parts along their first axis.
        """
        below = [(self.hidden[k : k + 1], self.hidden[k + 1 : k + 2]) for k in range(0, len(self.hidden), 2)]
        return [*below, ([*self.policy[:1], *self.value[:1]], [*self.policy[1:], *self.value[1:]])]

    @property
    def sizes(self) -> Layers:
        """Sizes of the layers."""
        return Layers((self.hidden[0].shape[1], *(sum(map(len, weights)) for weights, _ in self.layers)))

    def constants(self, parameters: Tensor) -> dict[str, int | bool]:
        """Return the compile-time constants."""
        named = {("W1", "B1", "W2", "B2"): self.hidden, ("W3", "B3"): self.policy, ("V3", "C3"): self.value}
        places = {
            f"PLACE_{name}": 0 if tensor is None else offset_of(tensor, parameters)
            for names, tensors in named.items()
            for name, tensor in itertools.zip_longest(names, tensors)
        }
        sizes = self.sizes.constants()
        del sizes["N_LAST"]  # follows from the outputs
        return {**places, **sizes, "HAS_POLICY": bool(self.policy), "HAS_VALUE": bool(self.value)}

    def order(self, parameters: Tensor) -> Indices:
        """Return the index of each number of the kernel's ``Weights``.

        Indices are into the parameters, followed by a zero.
        """
        zero = parameters.numel()

        def place(tensor: Tensor) -> Indices:
            return np.arange(tensor.numel()).reshape(tensor.shape) + offset_of(tensor, parameters)

        layers = [(np.concatenate(list(map(place, w))), np.concatenate(list(map(place, b)))) for w, b in self.layers]
        return order(layers, zero, on_gpu=parameters.is_cuda)


def _passes(network: Perceptron) -> list[_Pass]:
    """Return a model's networks, the value's first, for advantages."""
    if network.is_shared:
        return [_Pass(network.policy[:-2], network.policy[-2:], network.value[-2:])]
    return [_Pass(network.value[:-2], (), network.value[-2:]), _Pass(network.policy[:-2], network.policy[-2:], ())]

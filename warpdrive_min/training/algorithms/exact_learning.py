"""A2C and PPO of small networks in one order of operations: loss and gradients in one pass over a minibatch.

To the bits of `Exact`'s kernels one after the other, which write each layer of each row to memory and read it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min.backends.base import Argument
from warpdrive_min.perceptron import Packed, Perceptron
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms.exact import Exact, parts_of
from warpdrive_min.training.fused.cpu import offset_of
from warpdrive_min.training.fused.loss import LossRule

Tensor = torch.Tensor
Indices = np.ndarray[Any, np.dtype[np.int64]]

THREADS: Final = 128
"""Threads of a block on a GPU."""
SHARED_BYTES: Final = 48 * 1024
"""Most that the weights and a tile of rows may take of a block's shared memory."""
TILE: Final = 32
"""Rows of a tile on a GPU."""
SIDE_BY_SIDE: Final = 4
"""Numbers of a row that a GPU moves at once: rows of weights are padded to a multiple, and by as many more."""
LANES: Final = 16
"""Numbers that rows of weights are padded to a multiple of on a CPU."""
N_TERMS: Final = 5
"""Policy, value, entropy, approximate KL and clipped rows."""
FROM_VALUES, OF_ROWS, OF_ITEMS = 0, 1, 2
"""Advantages: what values are short of returns by; of the rollout's rows; of the minibatch's."""


def network_of(model: Any, space: ActionSpace, parameters: Tensor) -> Perceptron | None:
    """Return the layers of a model whose gradients the kernels find; None: they cannot.

    Args:
        model: Whose parameters have become views of ``parameters``.
        space: Of its actions.
        parameters: All of them, (n,) float32.
    """
    found = model.as_perceptron() if hasattr(model, "as_perceptron") else "it does not say what its layers are"
    if not isinstance(found, Perceptron) or found.obstacle or not found.value or space.is_continuous:
        return None
    if sum(each.numel() for each in found.parameters) != parameters.numel():
        return None
    if parameters.is_cuda and any(_shared_bytes(each, parameters) > SHARED_BYTES for each in _passes(found)):
        return None
    return found


class ExactLearning:
    """Finds the loss of A2C and PPO, and its gradients, of minibatches of a rollout.

    Args:
        exact: Kernels of the backend.
        network: As `network_of` gives it.
        parameters: All of its parameters, (n,) float32.
        gradient: Gets the gradient, (n,).
        space: Of the actions.
        rollout: ``observations``, ``actions``, ``log_probs``, ``returns``, ``old_values``, ``masks`` and ``advantages``
            of its rows (step, environment), with an axis for agents; contiguous, and where they will stay. There may be
            no masks, and no advantages, which are then what values are short of returns by, as a constant.
        rule: Terms and weights of the loss.
        n_rows: Rows of a minibatch.
        at_once: Rows that go through the network together; gradients of more are added up.
    """

    def __init__(
        self,
        exact: Exact,
        network: Perceptron,
        parameters: Tensor,
        gradient: Tensor,
        space: ActionSpace,
        rollout: Mapping[str, Tensor | None],
        rule: LossRule,
        *,
        n_rows: int,
        at_once: int,
    ) -> None:
        observations = rollout["observations"]
        assert observations is not None
        device, n_agents = parameters.device, observations.shape[-2]
        self._exact, self._gradient = exact, gradient
        self._n_items, self._at_once = n_rows * n_agents, at_once * n_agents
        self._rollout, self._rule = rollout, rule
        self._total = torch.full((), float(self._n_items), device=device)
        self._none, self._no_ints = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.int32, device=device)
        self.terms = torch.zeros(N_TERMS, device=device)
        """Means of the loss's terms: policy, value, entropy, approximate KL and the share of clipped rows, (5,)."""
        self._passes = [
            (each.constants(parameters), Packed([parameters], each.order(parameters))) for each in _passes(network)
        ]
        assert rule.clip_param is not None
        self._constants: dict[str, Any] = {
            "THREADS": THREADS,
            "DISCRETE": True,
            "N_TYPES": space.n_types,
            "N_OUTPUTS": space.n_outputs,
            "SIZES": list(space.categories),
            "MASKED": rollout["masks"] is not None,
            "IS_CLIPPED": rule.is_clipped,
            "CLIP_PARAM": float(rule.clip_param),
            "VALUE_CLIPPED": rule.value_clip is not None,
            "VALUE_CLIP": float(rule.value_clip or 0),
            "AGENTS": n_agents,
            "IS_TANH": network.activation == "tanh",
            "N_COLUMNS": parameters.numel() + N_TERMS,
        }

    def find(
        self,
        indices: Tensor | None,
        values: Tensor | None = None,
        *,
        advantages: Tensor | None = None,
        weights: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """Write the gradient, and `terms`; enqueues.

        Args:
            indices: Rows of the rollout, (n_rows,) int32; None: the first ones, in order.
            values: Gets the values of the rows, as the first steps of the rollout's ``old_values``, if given.
            advantages: Of the minibatch, (n_rows, n_agents); None: those of the rollout.
            weights: Must be None: every row counts once.
            total: What sums are divided by, 0-d; None: the number of rows.
        """
        assert weights is None, "rows of exact training all count"
        total = self._total if total is None else total
        old_values = self._rollout["old_values"]
        assert old_values is not None
        own = advantages if advantages is not None else self._rollout["advantages"]
        kind = OF_ITEMS if advantages is not None else FROM_VALUES if own is None else OF_ROWS
        arrays = {name: self._rollout[name] for name in ("observations", "log_probs", "returns")}
        tensors = {
            **arrays,
            "choices": self._rollout["actions"],
            "mask": self._rollout["masks"],
            "indices": indices,
            "old_values": old_values,
            "values": old_values,
            "advantages": None if own is None else own.contiguous(),
        }
        numbers = {
            "total": total,
            "value_weight": self._rule.vf_loss_coeff,
            "entropy_weight": self._rule.entropy_coeff,
        }
        filled = {
            name: (self._no_ints if name in ("indices", "mask") else self._none) if tensor is None else tensor
            for name, tensor in tensors.items()
        }
        for first in range(0, self._n_items, self._at_once):
            n_rows = min(self._at_once, self._n_items - first)
            n_parts, rows_of_a_part = parts_of(n_rows)
            parts = self._gradient.new_empty(n_parts, self._constants["N_COLUMNS"])
            of_rows: dict[str, Argument] = {
                "parts": parts,
                "first": first,
                "n_rows": n_rows,
                "rows_of_a_part": rows_of_a_part,
            }
            for sizes, packed in self._passes:
                packed.pack()
                how = {"IS_DEALT": indices is not None, "ADVANTAGES": kind, "STORES": values is not None}
                given = {**filled, **numbers, **of_rows, "weights": packed.numbers}
                constants = {**self._constants, **sizes, **how}
                self._exact.launch_blocks("exact_learn.cu", constants, "learn", (n_parts, THREADS), **given)
            sums = self._exact.add_up(parts)
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
    """A network of its own: the policy's, the value's or, on the same hidden layers, both."""

    hidden: Sequence[Tensor]
    """Weights (outputs, inputs) and biases of one or two layers."""
    policy: Sequence[Tensor]
    """The same of the layer on top; none: it gives a value alone."""
    value: Sequence[Tensor]

    @property
    def layers(self) -> list[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        """Weights and biases of all layers; of the last in parts, which lie one below the other."""
        below = [(self.hidden[k : k + 1], self.hidden[k + 1 : k + 2]) for k in range(0, len(self.hidden), 2)]
        return [*below, ([*self.policy[:1], *self.value[:1]], [*self.policy[1:], *self.value[1:]])]

    def constants(self, parameters: Tensor) -> dict[str, int | bool]:
        """Return what is compiled in."""
        named = {("W1", "B1", "W2", "B2"): self.hidden, ("W3", "B3"): self.policy, ("V3", "C3"): self.value}
        places = {
            f"PLACE_{name}": 0 if tensor is None else offset_of(tensor, parameters)
            for names, tensors in named.items()
            for name, tensor in itertools.zip_longest(names, tensors)
        }
        return places | {
            "N_SEEN": self.hidden[0].shape[1],
            "HIDDEN1": len(self.hidden[0]),
            "HIDDEN2": len(self.hidden[2]) if len(self.hidden) > 2 else 0,
            "HAS_POLICY": bool(self.policy),
            "HAS_VALUE": bool(self.value),
        }

    def order(self, parameters: Tensor) -> Indices:
        """Return the place of each number of the kernel's ``Weights`` among the parameters and a zero after them."""
        zero = parameters.numel()

        def place(tensor: Tensor) -> Indices:
            return np.arange(tensor.numel()).reshape(tensor.shape) + offset_of(tensor, parameters)

        layers = [(np.concatenate(list(map(place, w))), np.concatenate(list(map(place, b)))) for w, b in self.layers]
        if len(layers) == 2:  # the kernel has a second one, of zeros, which it never reads
            layers.insert(1, (np.full((1, len(layers[0][0])), zero), np.full(1, zero)))
        laid = _for_gpu if parameters.is_cuda else _for_cpu
        return np.concatenate([each.ravel() for weights, biases in layers for each in laid(weights, biases, zero)])


def _for_gpu(weights: Indices, biases: Indices, zero: int) -> list[Indices]:
    """Return a layer as `exact_learn_block.cuh` has it."""
    wider = -weights.shape[1] % SIDE_BY_SIDE + SIDE_BY_SIDE
    return [
        np.pad(weights, ((0, 0), (0, wider)), constant_values=zero),
        np.pad(biases, (0, -len(biases) % SIDE_BY_SIDE), constant_values=zero),
    ]


def _for_cpu(weights: Indices, biases: Indices, zero: int) -> list[Indices]:
    """Return a layer as `exact_learn_rows.cuh` has it."""

    def filled(rows: Indices) -> Indices:
        return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % LANES)], constant_values=zero)

    return [filled(weights.T), filled(biases), filled(weights)]


def _passes(network: Perceptron) -> list[_Pass]:
    """Return the networks of a model, that of the value first: advantages may be of what it gives."""
    if network.is_shared:
        return [_Pass(network.policy[:-2], network.policy[-2:], network.value[-2:])]
    return [_Pass(network.value[:-2], (), network.value[-2:]), _Pass(network.policy[:-2], network.policy[-2:], ())]


def _shared_bytes(one: _Pass, parameters: Tensor) -> int:
    """Return what the weights and a tile of rows take of a block's shared memory."""
    units = one.hidden[0].shape[1] + sum(len(part) for weights, _ in one.layers for part in weights) + 1
    return 4 * (len(one.order(parameters)) + (TILE + SIDE_BY_SIDE) * (units + N_TERMS))

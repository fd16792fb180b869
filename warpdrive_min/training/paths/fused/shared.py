"""Perceptrons on observations that agents share: the first layer is a product an environment, and a table of agents.

Where agents' rows differ by nothing but the column in which each marks itself, what the first layer makes of a row is
what it makes of the row in which nobody is marked, and the agent's own column of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from warpdrive_min.training.paths.triton import sizes
from warpdrive_min.training.paths.triton.sizes import PRODUCTS, block_of

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision

Tensor = torch.Tensor

ROWS: Final = 64
"""Agents of a block."""
WARPS: Final = 4
PROGRAMS_PER_PROCESSOR: Final = 4


class SharedRows(NamedTuple):
    """Observations of all agents of environments, in one row for each environment."""

    rows: Tensor
    """(..., 1, n_features), in which nobody is marked."""
    n_agents: int
    own_columns: int
    """First of the columns in which agents mark themselves."""

    def table(self, weight: Tensor) -> Tensor:
        """Return what being marked adds to a layer, (n_agents, n_units), of its weights (n_units, n_features)."""
        return weight[:, self.own_columns : self.own_columns + self.n_agents].t()

    def sums(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return what a layer makes of the rows as they are, (..., 1, n_units) float32, whatever the precision."""
        with torch.autocast(self.rows.device.type, enabled=False):
            return torch.nn.functional.linear(self.rows, weight, bias)

    def first_layer(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return what a layer makes of all agents' rows, (..., n_agents, n_units)."""
        return self.sums(weight, bias) + self.table(weight)


def perceptron(seen: SharedRows, weights: Sequence[Tensor], activation: str, precision: Precision) -> Tensor:
    """Return the outputs of a perceptron in two kernels, (..., n_agents, n_outputs); has no gradients, enqueues.

    Args:
        seen: What it sees.
        weights: Of each layer, (outputs, inputs) and (outputs,), float32.
        activation: As `activations.in_kernels` names it.
        precision: Of products.
    """
    w1, b1, *others = weights
    return outputs(seen, seen.sums(w1, b1), (w1, *others), activation, precision)


def outputs(seen: SharedRows, sums: Tensor, weights: Sequence[Tensor], activation: str, precision: Precision) -> Tensor:
    """Return the outputs of a perceptron, (..., n_agents, n_outputs), in one kernel; enqueues.

    Args:
        seen: What it sees.
        sums: First layer's products with it, (..., 1, n_units) float32.
        weights: ``(w1, w2, b2, w3, b3)``.
        activation: As `activations.in_kernels` names it.
        precision: Of products.
    """
    from warpdrive_min.training.paths.triton import shared_kernels

    w1, w2, _, w3, _ = weights
    n_envs, n_outputs = sums.shape[:-1].numel(), len(w3)
    out = torch.empty(*sums.shape[:-2], seen.n_agents, n_outputs, device=sums.device, dtype=torch.float32)
    shared_kernels.forward[(n_programs(seen.n_agents, n_envs, PROGRAMS_PER_PROCESSOR, sums.device),)](
        sums.contiguous(),
        *weights,
        out,
        n_envs,
        F=w1.shape[1],
        H1=len(w1),
        H2=len(w2),
        O=n_outputs,
        BLOCK_H1=block_of(len(w1)),
        BLOCK_H2=block_of(len(w2)),
        BLOCK_O=block_of(n_outputs),
        N_AGENTS=seen.n_agents,
        OWN_COLUMNS=seen.own_columns,
        ROWS=ROWS,
        ACTIVATION=activation,
        PRODUCT=PRODUCTS[precision],
        num_warps=WARPS,
    )
    return out


def n_blocks(n_agents: int) -> int:
    """Return how many blocks hold the agents of an environment."""
    return -(-n_agents // ROWS)


def n_programs(n_agents: int, n_envs: int, per_processor: int, device: torch.device) -> int:
    """Return how many programs share the environments, each with one block of agents of every so many-th."""
    blocks = n_blocks(n_agents)
    at_once = sizes.n_programs(n_envs * blocks * ROWS, ROWS, per_processor, device)
    return -(-at_once // blocks) * blocks

"""Perceptrons on observations that agents share.

Agents' rows differ only in the column with which each agent marks itself. So the first layer's output for an agent is
its output for the unmarked row, plus the agent's own column of the weights. The layer is one product per environment
and a table of the agents' columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from warpdrive_min.training.paths.triton import sizes
from warpdrive_min.training.paths.triton.launch import launch
from warpdrive_min.training.paths.triton.sizes import PRODUCTS, block_of

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision

Tensor = torch.Tensor

ROWS: Final = 64
"""Agents per block."""
WARPS: Final = 4
PROGRAMS_PER_PROCESSOR: Final = 4


class SharedRows(NamedTuple):
    """Observations of all agents, with one row for each environment."""

    rows: Tensor
    """Rows without marks, (..., 1, n_features)."""
    n_agents: int
    own_columns: int
    """First of the columns with which agents mark themselves."""

    def table(self, weight: Tensor) -> Tensor:
        """Return each agent's addition to a layer's output, (n_agents, n_units).

        ``weight`` is (n_units, n_features).
        """
        return weight[:, self.own_columns : self.own_columns + self.n_agents].t()

    def sums(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return a layer's outputs for the unmarked rows, (..., 1, n_units).

        They are float32 at any ``trainer.precision``.
        """
        with torch.autocast(self.rows.device.type, enabled=False):
            return torch.nn.functional.linear(self.rows, weight, bias)

    def first_layer(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return a layer's outputs for all agents, (..., n_agents, n_units)."""
        return self.sums(weight, bias) + self.table(weight)


def perceptron(seen: SharedRows, weights: Sequence[Tensor], activation: str, precision: Precision) -> Tensor:
    """Return a perceptron's outputs, (..., n_agents, n_outputs); enqueues.

    Runs two kernels. The outputs have no gradients.

    Args:
        seen: Observations.
        weights: Weights and biases of each layer, (outputs, inputs) and (outputs,), float32.
        activation: Activation as named by `activations.in_kernels`.
        precision: Precision of products.
    """
    w1, b1, *others = weights
    return outputs(seen, seen.sums(w1, b1), (w1, *others), activation, precision)


def outputs(seen: SharedRows, sums: Tensor, weights: Sequence[Tensor], activation: str, precision: Precision) -> Tensor:
    """Return a perceptron's outputs from those of its first layer; enqueues.

    They are (..., n_agents, n_outputs), computed in one kernel.

    Args:
        seen: Observations.
        sums: First layer's outputs for the unmarked rows, (..., 1, n_units) float32.
        weights: ``(w1, w2, b2, w3, b3)``.
        activation: Activation as named by `activations.in_kernels`.
        precision: Precision of products.
    """
    from warpdrive_min.training.paths.triton import shared_kernels

    w1, w2, _, w3, _ = weights
    n_envs, n_outputs = sums.shape[:-1].numel(), len(w3)
    out = torch.empty(*sums.shape[:-2], seen.n_agents, n_outputs, device=sums.device, dtype=torch.float32)
    launch(shared_kernels.forward, (n_programs(seen.n_agents, n_envs, PROGRAMS_PER_PROCESSOR, sums.device),))(
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
    """Return the number of blocks of an environment's agents."""
    return -(-n_agents // ROWS)


def n_programs(n_agents: int, n_envs: int, per_processor: int, device: torch.device) -> int:
    """Return the number of programs.

    Each handles one block of agents, in environments a fixed stride apart.
    """
    blocks = n_blocks(n_agents)
    at_once = sizes.n_programs(n_envs * blocks * ROWS, ROWS, per_processor, device)
    return -(-at_once // blocks) * blocks

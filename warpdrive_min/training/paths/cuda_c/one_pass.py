"""Losses and gradients of minibatches, in CUDA C.

A kernel computes both for the rows of its blocks; another adds up the blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.fused.loss import Learned, Rows
from warpdrive_min.training.paths.triton.launch import compiled_ahead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpdrive_min.backends.base import Program

Tensor = torch.Tensor

COLUMNS: Final = 32
"""Entries of the gradient that a block adds up."""
ARRAYS: Final = ("observations", "actions", "log_probs", "returns", "old_values", "masks")
"""Arrays of the rollout that every pass takes, besides advantages."""


class OnePass:
    """Launches of a pass, and of the sums over its blocks.

    Args:
        program: Kernels ``learn`` and ``add_up``.
        learned: Parameters, rows and loss.
        places: First numbers of the layers among the parameters.
        n_blocks: Blocks of a network, each with its own sums.
        n_networks: Networks that have blocks of their own.
        arrays: Names of further arrays of the rollout that the kernel takes.
        given: Further arguments of the kernel.
    """

    normalises: ClassVar[bool] = False

    def __init__(
        self,
        program: Program,
        learned: Learned,
        places: Sequence[int],
        *,
        n_blocks: int,
        n_networks: int,
        arrays: Sequence[str] = (),
        **given: Any,
    ) -> None:
        parameters, self._gradient, _, rollout, rule, n_rows = learned
        actions = rollout["actions"]
        assert actions is not None
        *members, n_parameters = parameters.shape
        empty: dict[str, Any] = {"device": parameters.device, "dtype": torch.float32}
        self.terms = torch.zeros(N_TERMS, *members, **empty)
        self._program, self._n_blocks, self._n_networks = program, n_blocks, n_networks
        self._n_members = math.prod(members)
        self._total = torch.full((), float(n_rows * actions.shape[-2]), **empty)
        self._advantages = rollout["advantages"]
        self._partial = torch.zeros(self._n_members, n_blocks, n_parameters + N_TERMS, **empty)
        clip = rule.clip_param
        self._given: dict[str, Any] = {
            "parameters": parameters,
            "places": torch.tensor(places, dtype=torch.int32, device=parameters.device),
            **{name: rollout[name] for name in (*ARRAYS, *arrays)},
            "vf_loss_coeff": rule.vf_loss_coeff,
            "entropy_coeff": rule.entropy_coeff,
            "clip_param": clip if isinstance(clip, Tensor) else torch.full_like(rule.vf_loss_coeff, clip),
            "partial": self._partial,
            "n_parameters": n_parameters,
            **given,
        }

    def find(self, rows: Rows) -> None:
        """Write the gradient and `terms`, as `loss.Learning.find`; enqueues."""
        if compiled_ahead(self._program.load):
            return
        indices, values, advantages, weights, total = rows
        is_taken = advantages is not None
        advantages = advantages if is_taken else self._advantages
        n_networks = 1 if advantages is None else self._n_networks  # the policy needs the values first
        self._program.launch(
            "learn",
            (self._n_blocks, self._n_members, n_networks),
            **self._given,
            advantages=None if advantages is None else advantages.contiguous(),
            weights=None if weights is None else weights.contiguous(),
            indices=None if indices is None else indices.int(),
            values=values,
            is_taken=is_taken,
        )
        n_columns = self._partial.shape[-1]
        self._program.launch(
            "add_up",
            (-(-n_columns // COLUMNS), self._n_members, 1),
            partial=self._partial,
            total=self._total if total is None else total,
            gradient=self._gradient,
            terms=self.terms,
            n_partial=self._n_blocks,
            n_parameters=n_columns - N_TERMS,
        )


def processors(device: torch.device) -> int:
    """Return the number of a GPU's multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count

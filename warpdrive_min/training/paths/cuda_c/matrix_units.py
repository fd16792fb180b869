"""Small networks in CUDA C on a GPU's matrix units.

They are evaluated, and learn by A2C and PPO in one pass. A warp takes 16 rows through forward pass, loss and backward
pass, and keeps the sums of all gradients in registers; with many features, some warps share those of the first layer.
In large minibatches groups of warps take 64 rows, in TF32 on GPUs of compute capability 9.0, if sizes suit them.
See `kernels/perceptron_tiles.cuh`, `kernels/learn.cuh` and `kernels/group_learn.cuh`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from warpdrive_min.backends.base import LAYERS
from warpdrive_min.errors import require_int
from warpdrive_min.training.config import present
from warpdrive_min.training.paths.constants import (
    ROWS,
    ROWS_APART,
    WARPS,
    Sizes,
    evaluation_program,
    learning_constants,
    learning_program,
)
from warpdrive_min.training.paths.cuda_c.one_pass import OnePass, processors
from warpdrive_min.training.paths.fused.loss import Learned
from warpdrive_min.training.paths.fused.network import Network, offset_of
from warpdrive_min.training.paths.triton.launch import compiled_ahead

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Backend, Constant, Program
    from warpdrive_min.training.config import Precision

Tensor = torch.Tensor

LEAST_ROWS: Final = 32
"""Fewest rows of a block; more blocks use more multiprocessors."""
MOST_ROWS: Final = 2**31 - 256
"""Most rows of a minibatch; with more, numbers of rows beyond the last one would overflow."""
BLOCKS_PER_PROCESSOR: Final = 2
"""Blocks of an evaluation per multiprocessor."""


def places(network: Network, parameters: Tensor) -> list[int]:
    """Return the first number of each layer among the parameters.

    Layers are w1, b1, w2, b2, w3, b3, v3 and c3 of the value's network, then of the policy's. Shared layers are the
    policy's.
    """

    def first(layers: Sequence[Tensor]) -> list[int]:
        return [offset_of(layer, parameters) for layer in layers]

    return [*first(network.value[:4]), 0, 0, *first(network.value[4:]), *first([*network.policy, *network.value[4:]])]


class Evaluation:
    """Evaluation of the logits or the values of a network, by a backend's programs."""

    def __init__(self, backend: Backend, network: Network, *, of_value: bool = False) -> None:
        layers = network.value if of_value else network.policy
        sizes = network.sizes | {"n_outputs": len(layers[4])}
        self._sizes = Sizes(**sizes, n_types=1, is_shared=False)
        self._layers = dict(zip(LAYERS, layers, strict=True))
        self._is_tanh = network.is_tanh
        self._backend = backend
        self._programs: dict[bool, Program] = {}
        """Programs without and with TF32."""

    def __call__(self, seen: Tensor, out: Tensor) -> None:
        """Write the outputs for ``seen``, (..., n_features), into ``out``; enqueues.

        Products have the precision of torch's.
        """
        is_tf32 = present(seen.device) == "tf32"
        if is_tf32 not in self._programs:
            given = {"is_tanh": self._is_tanh, "is_tf32": is_tf32}
            self._programs[is_tf32] = evaluation_program(self._backend, self._sizes, **given)
        program = self._programs[is_tf32]
        if compiled_ahead(program.load):
            return
        n_rows = seen.shape[:-1].numel()
        n_blocks = min(-(-n_rows // (ROWS * WARPS)), BLOCKS_PER_PROCESSOR * processors(seen.device))
        program.launch("evaluate", (n_blocks, 1, 1), **self._layers, x=seen.contiguous(), out=out, n_rows=n_rows)


def in_episodes(network: Network, precision: Precision) -> tuple[dict[str, Constant], dict[str, Tensor]]:
    """Return the constants and layers of a policy that acts in `episodes.cuh`."""
    sizes = Sizes(**network.sizes, n_types=1, is_shared=False)
    constants = sizes.layers(is_tanh=network.is_tanh, is_tf32=precision == "tf32")
    return constants, dict(zip(LAYERS, network.policy, strict=True))


class Learning(OnePass):
    """Loss of A2C and PPO, and its gradients, in one pass on matrix units.

    If parameters have an axis of members, all members of a population are computed together.

    Args:
        backend: Backend that makes the program.
        network: Network whose parameters are views of those learned; for a population the first member's.
        learned: Parameters, rows and loss.
        precision: Precision of products, "fp32" or "tf32".
    """

    def __init__(self, backend: Backend, network: Network, learned: Learned, *, precision: Precision) -> None:
        parameters, _, space, rollout, rule, n_rows = learned
        actions = rollout["actions"]
        assert actions is not None
        device, n_agents, n_members = parameters.device, actions.shape[-2], math.prod(parameters.shape[:-1])
        n_rows *= n_agents
        require_int("rows of a minibatch", n_rows, 1, MOST_ROWS, do="take more minibatches, or fewer environments")
        is_shared = network.policy[0] is network.value[0]
        sizes = Sizes(**network.sizes, n_types=space.n_types, is_shared=is_shared)
        is_masked = rollout["masks"] is not None
        of_kernel = learning_constants(
            sizes,
            space,
            rule.clipping,
            shared_bytes=backend.most_shared_bytes(),
            n_agents=n_agents,
            is_masked=is_masked,
            is_tanh=network.is_tanh,
            is_tf32=precision == "tf32",
        )
        is_apart = not is_shared and n_rows <= ROWS_APART and rollout["advantages"] is not None
        at_once = processors(device) // (1 + is_apart)
        super().__init__(
            learning_program(backend, sizes, of_kernel, n_rows),
            learned,
            places(network, parameters),
            n_blocks=min(-(-n_rows // LEAST_ROWS), -(-at_once // n_members)),
            n_networks=1 + is_apart,
            n_rows=n_rows,
        )

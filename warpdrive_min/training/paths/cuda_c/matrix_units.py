"""Small networks in CUDA C on a GPU's matrix units.

They are evaluated, and learn by A2C and PPO in one pass. A warp takes 16 rows through forward pass, loss and backward
pass, and keeps the sums of all gradients in registers; see `kernels/perceptron_tiles.cuh` and `kernels/learn.cuh`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from warpdrive_min.backends.base import LAYERS
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training.config import present
from warpdrive_min.training.paths.cuda_c.one_pass import OnePass, constants_of_launch, constants_of_loss, processors
from warpdrive_min.training.paths.facts import Facts, rule
from warpdrive_min.training.paths.fused.loss import N_TERMS, Learned, LossRule
from warpdrive_min.training.paths.fused.network import Network, offset_of
from warpdrive_min.training.paths.triton.launch import compiled_ahead

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Backend, Constant, Program
    from warpdrive_min.training.actions import ActionSpace
    from warpdrive_min.training.config import Precision

Tensor = torch.Tensor

WIDEST: Final = 64
"""Largest number of units of a hidden layer."""
MOST_SUMS: Final = 192
"""Most sums of a lane, of its 255 registers; those of 64 and 64 units with up to 15 features are 191.

With more, values spill to memory, and Triton's pass is as fast.
"""
WARPS: Final = 8
ROWS: Final = 16
"""Rows that a warp takes at a time."""
LEAST_ROWS: Final = 32
"""Fewest rows of a block; more blocks use more multiprocessors."""
BLOCKS_PER_PROCESSOR: Final = 2
"""Blocks of an evaluation per multiprocessor."""
ROWS_APART: Final = 65_536
"""Rows of a minibatch up to which separate networks learn in blocks of their own."""


class Sizes(NamedTuple):
    """Sizes of a policy with two hidden layers, and its memory on the chip."""

    n_features: int
    n_first: int
    n_second: int
    n_outputs: int
    n_types: int
    is_shared: bool

    @property
    def n_sums(self) -> int:
        """Sums over rows that each lane of a warp keeps in registers."""
        first, second, features, outputs = self._tiles
        return 2 * first * second + 2 * first * features + 2 * second * outputs + second + 2 * outputs + N_TERMS

    def n_bytes(self, *, learns: bool) -> int:
        """Return the shared memory of a block, bytes; the kernels check it."""
        first, second, features, outputs = self._tiles
        weights, rows = 64 * first * (features + second), 2 * ROWS * (8 * features + 4) + ROWS * (8 * outputs + 4)
        if not learns:
            return 4 * (weights + 64 * second * outputs + 16 * second + 8 * outputs + WARPS * rows)
        weights = 2 * weights + 192 * second * outputs + 16 * second + 8 * outputs
        in_loop = weights + WARPS * (8 * ROWS * second + 2 * ROWS * (5 + self.n_types) + rows)
        return 4 * max(in_loop, (WARPS + 1) // 2 * self.n_sums * 32)

    def constants(self, *, learns: bool, is_tanh: bool, is_tf32: bool) -> dict[str, Constant]:
        """Return the constants of `perceptron_tiles.cuh` and `core.cuh`."""
        return {
            **self.layers(is_tanh=is_tanh, is_tf32=is_tf32),
            "N_TYPES": self.n_types,
            "IS_SHARED": self.is_shared,
            "LEARNS": learns,
            "WARPS": WARPS,
            "SHARED_BYTES": self.n_bytes(learns=learns),
            "N_AGENTS": 1,
            **constants_of_launch(WARPS),
        }

    def layers(self, *, is_tanh: bool, is_tf32: bool) -> dict[str, Constant]:
        """Return the constants of the policy's layers, as for `episodes.cuh`."""
        return {
            "N_SEEN": self.n_features,
            "HIDDEN1": self.n_first,
            "HIDDEN2": self.n_second,
            "N_OUTPUTS": self.n_outputs,
            "IS_TANH": is_tanh,
            "TF32": is_tf32,
        }

    @property
    def _tiles(self) -> tuple[int, int, int, int]:
        """Tiles of 8 units, in pairs, of features and of outputs."""
        first, second = (2 * -(-n // 16) for n in (self.n_first, self.n_second))
        return first, second, -(-(self.n_features + 1) // 8), -(-(self.n_outputs + self.is_shared) // 8)


@rule(
    f"up to {WIDEST} units, weights that fit into shared memory, and gradients into registers: with {WIDEST} and "
    f"{WIDEST} units up to 15 features and 8 outputs, the value among them if layers are shared"
)
def fits(facts: Facts) -> str | None:
    """Refuse layers that do not fit on the chip."""
    layers = facts.layers
    if max(layers.hidden) > WIDEST:
        return f"needs up to {WIDEST} units (got {layers})"
    first, second = layers.hidden
    sizes = Sizes(layers.n_features, first, second, layers.n_outputs, facts.n_types, layers.is_shared)
    if sizes.n_sums > MOST_SUMS:
        return f"needs at most {MOST_SUMS} sums of gradients in a thread (got {sizes.n_sums} for {layers})"
    if (needed := sizes.n_bytes(learns=True)) > facts.shared_bytes:
        return f"needs {needed:,} bytes of a block's shared memory (the GPU has {facts.shared_bytes:,})"
    return None


def constants(
    sizes: Sizes, space: ActionSpace, rule: LossRule, *, n_agents: int, is_masked: bool, **given: bool
) -> dict[str, Constant]:
    """Return the constants of `learn.cuh`."""
    of_loss = constants_of_loss(space, rule, is_masked=is_masked)
    return {**sizes.constants(learns=True, **given), **of_loss, "N_AGENTS": n_agents}


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
            constants = self._sizes.constants(learns=False, is_tanh=self._is_tanh, is_tf32=is_tf32)
            n_bytes = {"evaluate": self._sizes.n_bytes(learns=False)}
            self._programs[is_tf32] = self._backend.program(KERNELS / "evaluate.cu", constants, n_bytes)
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
        is_shared = network.policy[0] is network.value[0]
        sizes = Sizes(**network.sizes, n_types=space.n_types, is_shared=is_shared)
        is_masked = rollout["masks"] is not None
        given = {"is_tanh": network.is_tanh, "is_tf32": precision == "tf32", "is_masked": is_masked}
        of_kernel = constants(sizes, space, rule, n_agents=n_agents, **given)
        n_bytes = {"learn": sizes.n_bytes(learns=True)}
        is_apart = not is_shared and n_rows <= ROWS_APART and rollout["advantages"] is not None
        at_once = processors(device) // (1 + is_apart)
        super().__init__(
            backend.program(KERNELS / "learn.cu", of_kernel, n_bytes),
            learned,
            places(network, parameters),
            n_blocks=min(-(-n_rows // LEAST_ROWS), -(-at_once // n_members)),
            n_networks=1 + is_apart,
            n_rows=n_rows,
        )

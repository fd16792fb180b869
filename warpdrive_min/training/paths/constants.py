"""Sizes and constants of the kernels for small networks; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training.paths.facts import Facts, Layers, rule

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Backend, Constant, Program
    from warpdrive_min.training.actions import ActionSpace

N_TERMS: Final = 5
"""Number of the loss's terms: policy, value, entropy, approximate KL, clipped rows."""
WIDEST: Final = 64
"""Largest number of units of a hidden layer."""
MOST_SUMS: Final = 192
"""Most sums of a lane, of its 255 registers; those of 64 and 64 units with up to 15 features are 191.

With more, values spill to memory, and Triton's pass is as fast. Up to it, few warps share sums: fewer barriers.
"""
WARPS: Final = 8
GROUP_WARPS: Final = 4
"""Warps of a group."""
MOST_COLUMNS: Final = 3
"""Most outputs of a network that learns by groups of warps."""
ROWS: Final = 16
"""Rows that a warp takes at a time."""
ROWS_APART: Final = 65_536
"""Rows of a minibatch up to which separate networks learn in blocks of their own; above it groups of warps may learn.

With few rows launches take most of the time.
"""
SHARING: Final = (1, 2, 4)
"""Numbers of warps that may share the sums of the first layer's gradients."""


class Sizes(NamedTuple):
    """Sizes of a policy with two hidden layers, and its memory on the chip."""

    n_features: int
    n_first: int
    n_second: int
    n_outputs: int
    n_types: int
    is_shared: bool

    @classmethod
    def of(cls, layers: Layers, n_types: int) -> Sizes:
        """Return the sizes of a perceptron that draws some types of actions."""
        first, second = layers.hidden
        return cls(layers.n_features, first, second, layers.n_outputs, n_types, layers.is_shared)

    @property
    def n_sharing(self) -> int:
        """Warps that share the sums of the first layer's gradients.

        The fewest whose registers hold them.
        """
        return next((n for n in SHARING if self._sums(n) <= MOST_SUMS), SHARING[-1])

    @property
    def n_sums(self) -> int:
        """Sums over rows that each lane of a warp keeps in registers."""
        return self._sums(self.n_sharing)

    def _sums(self, n_sharing: int) -> int:
        first, second, features, outputs = self._tiles
        of_layers = first * (second + -(-features // n_sharing)) + second * outputs
        return 2 * of_layers + second + 2 * outputs + N_TERMS

    def n_bytes(self, *, learns: bool, in_parts: bool = False) -> int:
        """Return the shared memory of a block, bytes; the kernels check it."""
        first, second, features, outputs = self._tiles
        shares = learns and self.n_sharing > 1
        n_stages, of_first, of_others = 2 - shares, 64 * first * features, 64 * second * (first + outputs)
        biases, rows = 16 * second + 8 * outputs, ROWS * (n_stages * (8 * features + 4) + 8 * outputs + 4)
        if not learns:
            return 4 * (of_first + of_others + biases + WARPS * rows)
        weights = (2 - shares) * of_first + 2 * of_others + 64 * second * outputs + biases
        units = 8 * ROWS * (second + shares * first)
        in_loop = (1 + in_parts) * weights + WARPS * (units + n_stages * ROWS * (5 + self.n_types) + rows)
        return 4 * max(in_loop, (WARPS + 1) // 2 * self.n_sums * 32)

    @property
    def suits_groups(self) -> bool:
        """True if groups of warps may learn (`group_learn.cuh`).

        They compute with 64 units in each layer, and sum the gradients of few outputs.
        """
        _, _, features, _ = self._tiles
        return min(self.n_first, self.n_second) > WIDEST // 2 and features <= 2 and self._n_columns <= MOST_COLUMNS

    def n_groups(self, *, is_plain: bool) -> int:
        """Return the number of groups of a block that registers hold without spills.

        Args:
            is_plain: One agent, whose actions are not masked.
        """
        has_few = self.n_features < 7 and self.n_outputs <= 2 and self.n_types == 1 and not self.is_shared
        return 3 if has_few and is_plain else 2

    def n_group_bytes(self, n_groups: int) -> int:
        """Return the shared memory of a block of groups, bytes; the kernel checks it."""
        _, _, features, _ = self._tiles
        of_group = 16 * 16 * (3 * 64 + 8 + 8 * features + 1)
        weights = 4 * (512 * features + 2 * 512 + 2 * 64 * 64 + 4 * 64 + 12)
        of_warp = 4 * 2 * ROWS * (8 * features + 4 + 6 + self.n_types)
        return n_groups * (of_group + GROUP_WARPS * of_warp) + weights

    @property
    def _n_columns(self) -> int:
        return self.n_outputs + self.is_shared

    def in_parts(self, shared_bytes: int, *, is_tf32: bool) -> bool:
        """True if shared memory has room for weights in two parts, for float32."""
        return not is_tf32 and self.n_bytes(learns=True, in_parts=True) <= shared_bytes

    def constants(self, *, learns: bool, is_tanh: bool, is_tf32: bool, in_parts: bool = False) -> dict[str, Constant]:
        """Return the constants of `perceptron_tiles.cuh` and `core.cuh`."""
        return {
            **self.layers(is_tanh=is_tanh, is_tf32=is_tf32),
            "N_TYPES": self.n_types,
            "IS_SHARED": self.is_shared,
            "LEARNS": learns,
            "WARPS": WARPS,
            "IN_PARTS": in_parts,
            "SHARING": self.n_sharing if learns else 1,
            "SHARED_BYTES": self.n_bytes(learns=learns, in_parts=in_parts),
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
        return first, second, -(-(self.n_features + 1) // 8), -(-self._n_columns // 8)


@rule(
    f"up to {WIDEST} units, weights and rows that fit into shared memory, and gradients into registers: on a GPU with "
    f"227 kB, {WIDEST} and {WIDEST} units with up to 63 features and 8 outputs, or 32 and 32 with up to 175 and 24, "
    "the value among them if layers are shared"
)
def fits(facts: Facts) -> str | None:
    """Refuse layers that do not fit on the chip."""
    layers = facts.layers
    if max(layers.hidden) > WIDEST:
        return f"needs up to {WIDEST} units (got {layers})"
    sizes = Sizes.of(layers, facts.n_types)
    if sizes.n_sums > MOST_SUMS:
        return f"needs at most {MOST_SUMS} sums of gradients in a thread (got {sizes.n_sums} for {layers})"
    if (needed := max(sizes.n_bytes(learns=learns) for learns in (True, False))) > facts.shared_bytes:
        return f"needs {needed:,} bytes of a block's shared memory (the GPU has {facts.shared_bytes:,})"
    return None


def learning_program(
    backend: Backend, sizes: Sizes, constants: Mapping[str, Constant], n_rows: int, index: int | None = None
) -> Program:
    """Return the kernels that learn: those of `learn.cu` or `group_learn.cu`.

    Groups of warps learn from large minibatches in TF32, if the GPU and the sizes suit them.

    Args:
        backend: Backend that makes the program.
        sizes: Sizes of the networks.
        constants: Constants of `learn.cuh`.
        n_rows: Rows of a minibatch, with those of all agents.
        index: Number of the GPU; None: torch's current GPU.
    """
    is_large = n_rows > ROWS_APART and bool(constants["TF32"])
    if is_large and sizes.suits_groups and backend.has_warp_groups(index):
        source, constants = "group_learn.cu", group_constants(constants, sizes)
    else:
        source = "learn.cu"
    return backend.program(KERNELS / source, constants, {"learn": cast("int", constants["SHARED_BYTES"])})


def group_constants(constants: Mapping[str, Constant], sizes: Sizes) -> dict[str, Constant]:
    """Return the constants of `group_learn.cuh`, from those of `learn.cuh`."""
    taken = {name: value for name, value in constants.items() if name not in ("LEARNS", "IN_PARTS", "SHARING")}
    n_groups = sizes.n_groups(is_plain=constants["N_AGENTS"] == 1 and not constants["MASKED"])
    n_warps, n_bytes = GROUP_WARPS * n_groups, sizes.n_group_bytes(n_groups)
    return {**taken, "WARPS": n_warps, "SHARED_BYTES": n_bytes, **constants_of_launch(n_warps)}


def evaluation_program(backend: Backend, sizes: Sizes, **given: bool) -> Program:
    """Return the kernel of `evaluate.cu`."""
    n_bytes = {"evaluate": sizes.n_bytes(learns=False)}
    return backend.program(KERNELS / "evaluate.cu", sizes.constants(learns=False, **given), n_bytes)


class Clipping(NamedTuple):
    """Clipped terms of the loss."""

    is_clipped: bool
    """True for PPO, False for A2C."""
    value_clip: float | None
    """As in `PolicyConfig`."""


def learning_constants(
    sizes: Sizes,
    space: ActionSpace,
    clipping: Clipping,
    *,
    shared_bytes: int,
    n_agents: int,
    is_masked: bool,
    is_tanh: bool,
    is_tf32: bool,
) -> dict[str, Constant]:
    """Return the constants of `learn.cuh`, for a GPU with some shared memory."""
    in_parts = sizes.in_parts(shared_bytes, is_tf32=is_tf32)
    of_layers = sizes.constants(learns=True, is_tanh=is_tanh, is_tf32=is_tf32, in_parts=in_parts)
    return {**of_layers, **constants_of_loss(space, clipping, is_masked=is_masked), "N_AGENTS": n_agents}


def constants_of_loss(space: ActionSpace, clipping: Clipping, *, is_masked: bool) -> dict[str, Constant]:
    """Return the constants of `loss.cuh`."""
    return {
        "SIZES": list(space.categories),
        "MASKED": is_masked,
        "IS_CLIPPED": clipping.is_clipped,
        "VALUE_CLIPPED": clipping.value_clip is not None,
        "VALUE_CLIP": float(clipping.value_clip or 0),
    }


def constants_of_launch(n_warps: int) -> dict[str, Constant]:
    """Return the constants of `core.cuh` for blocks of some warps."""
    return {"THREADS": 32 * n_warps, "ENVS_PER_BLOCK": 1, "BLOCKS_PER_ENV": 1, "EXACT": False}

"""Fused kernels of A2C and PPO on a CPU, built from C++ by the backend `host`.

On a CPU torch's many small operations cost more than their arithmetic, and no graph hides Python's overhead between
them. So one kernel evaluates a network, and another computes a minibatch's loss and gradients in tiles of rows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from warpdrive_min.backends import get
from warpdrive_min.function_manager import LaunchShape
from warpdrive_min.tracing import named
from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.fused.loss import Learned, Rows
from warpdrive_min.training.paths.fused.network import SIZES, Network, offset_of
from warpdrive_min.training.paths.fused.shared import SharedRows

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Argument, Kernel, Launch

Tensor = torch.Tensor

SOURCE: Final = Path(__file__).with_name("cpu_kernels.cpp")
BLOCK_ROWS: Final = 256
"""Rows per block; changes rounding. The number of threads does not change results."""
MOST_BLOCKS: Final = 32
"""Largest number of blocks of a minibatch, each with its own sums.

Blocks of large minibatches have more than `BLOCK_ROWS` rows.
"""
TILE_ROWS: Final = 64
"""Rows per tile of a block: their hidden layers fit into the nearest caches."""
WIDTH: Final = 16
"""Multiple to which matrix rows are padded: whole vectors on every processor."""
NONE: Final = -1
"""First own column, if each agent has its own row of observations."""


@cache
def _kernels() -> dict[str, Kernel]:
    sizes = {"BLOCK_ROWS": BLOCK_ROWS, "TILE_ROWS": TILE_ROWS, "WIDTH": WIDTH}
    return get("host").compile(SOURCE, {**LaunchShape.of(1).constants(), "N_AGENTS": 1, "EXACT": False, **sizes})


def _prepare(name: str, n_blocks: int, given: dict[str, Argument | None]) -> Launch:
    """Prepare a launch; an array may be None."""
    kernel = _kernels()[name]
    arguments = [given[parameter.name] for parameter in kernel.parameters]
    return named(name, kernel.prepare(arguments, n_blocks, 1), given.items())  # type: ignore[arg-type]


def _blocks_of(n_rows: int, rows_of_block: int = BLOCK_ROWS) -> int:
    return max(1, -(-n_rows // rows_of_block))


def _padded(size: int) -> int:
    return -(-size // WIDTH) * WIDTH


# ------------------------------------------------------------------ evaluate


class Evaluation:
    """Evaluation of the heads or the values of a network.

    Launches are cached by the addresses of the tensors.
    """

    def __init__(self, network: Network, *, of_value: bool = False) -> None:
        self._layers = network.value if of_value else network.policy
        self._given: dict[str, Argument | None] = {
            **network.sizes,
            "n_outputs": len(self._layers[4]),
            "is_tanh": network.is_tanh,
            "is_box": network.is_box and not of_value,
            "scale": network.scale,
            "offset": network.offset,
        }
        self._launches: dict[tuple[int, ...], Launch] = {}

    def __call__(self, seen: Tensor | SharedRows, out: Tensor) -> None:
        """Write the outputs for ``seen`` into ``out``; all arrays are contiguous.

        ``seen`` is (..., n_features), or rows that agents share.
        """
        x, n_agents, own_columns = seen if isinstance(seen, SharedRows) else (seen, 1, NONE)
        key = tuple(each.data_ptr() for each in (x, out, *self._layers))
        if key not in self._launches:
            names = ("w1", "b1", "w2", "b2", "w3", "b3")
            layers: dict[str, Argument | None] = dict(zip(names, self._layers, strict=True))
            given = {**self._given, **layers, "x": x, "out": out, "n_agents": n_agents, "own_columns": own_columns}
            n_rows = x.shape[:-1].numel() * n_agents
            self._launches[key] = _prepare("evaluate", _blocks_of(n_rows), {**given, "n_rows": n_rows})
        self._launches[key]()


# ------------------------------------------------------------------ learn


class Learning:
    """Loss of A2C and PPO, and its gradients, in one pass.

    Args:
        network: Network whose parameters are views of those learned.
        learned: Parameters, rows and loss.
        normalises: Normalise advantages in each minibatch to mean 0 and standard deviation 1.
        own_columns: `AgentArrays.own_columns`, for observations with one row for all agents.
    """

    normalises: ClassVar[bool] = True

    def __init__(self, network: Network, learned: Learned, *, normalises: bool, own_columns: int | None = None) -> None:
        parameters, gradient, space, rollout, rule, n_rows = learned
        actions = rollout["actions"]
        assert actions is not None
        n_agents = actions.shape[-2]
        self.terms = torch.zeros(N_TERMS, dtype=torch.float32, device="cpu")
        self._taken, self._weights = (
            torch.zeros(n_rows, n_agents, dtype=torch.float32, device="cpu"),
            torch.zeros(n_rows, 1, dtype=torch.float32, device="cpu"),
        )
        self._total = torch.full((), float(n_rows * n_agents), dtype=torch.float32, device="cpu")
        is_shared = network.policy[0] is network.value[0]
        is_learned = network.log_std is not None and network.log_std.requires_grad
        own = () if network.log_std is None or not is_learned else (network.log_std,)
        parts = [*network.policy, *network.value, *own]
        offsets = [offset_of(part, parameters) for part in parts]
        sizes, n_types = network.sizes, space.n_types
        n_features, n_first, n_second, n_outputs = (sizes[name] for name in SIZES)
        n_sums = ((n_features + 1 + n_second) * _padded(n_first) + _padded(n_second)) * (2 - is_shared)
        n_sums += (n_outputs + 1) * _padded(n_second) + _padded(n_outputs) + WIDTH
        n_sums += (_padded(n_types) if is_learned else 0) + WIDTH
        n_items = n_rows * n_agents
        rows_of_block = max(BLOCK_ROWS, -(-n_items // (MOST_BLOCKS * TILE_ROWS)) * TILE_ROWS)
        self._n_blocks = _blocks_of(n_items, rows_of_block)
        self._given: dict[str, Argument | None] = {
            **sizes,
            **rollout,
            **rule._asdict(),
            "total": self._total,
            "taken": self._taken,
            "normalises": normalises,
            "parameters": parameters,
            "offsets": torch.tensor(offsets, dtype=torch.int32, device="cpu"),
            "categories": torch.tensor(space.categories, dtype=torch.int32, device="cpu") if space.categories else None,
            "log_std": network.log_std,
            "partial": torch.zeros(MOST_BLOCKS, n_sums, dtype=torch.float32, device="cpu"),
            "gradient": gradient,
            "means": self.terms,
            "old_values": None if rule.value_clip is None else rollout["old_values"],
            "value_clip": rule.value_clip or 0.0,
            "is_shared": is_shared,
            "is_tanh": network.is_tanh,
            "scale": network.scale,
            "offset": network.offset,
            "n_rows": n_rows,
            "n_agents": n_agents,
            "own_columns": NONE if own_columns is None else own_columns,
            "n_types": n_types,
            "n_scales": n_types if is_learned else 0,
            "n_blocks": self._n_blocks,
            "rows_of_block": rows_of_block,
        }
        self._add_up = _prepare("add_up", 1, self._given)
        self._launches: dict[tuple[int | None, ...], tuple[Launch, Launch]] = {}

    def find(self, rows: Rows) -> None:
        """Write the gradient and `terms`, as `loss.Learning.find`.

        Launches are cached by the addresses of the tensors.
        """
        indices, values, advantages, weights, total = rows
        key = *(None if each is None else each.data_ptr() for each in (indices, values)), weights is None
        if key not in self._launches:
            has_advantages = self._given["advantages"] is not None
            chosen = {**self._given, "indices": indices, "values": values}
            own = {"advantages": self._taken if has_advantages else None}
            own["weights"] = None if weights is None else self._weights
            self._launches[key] = _prepare("take", 1, chosen), _prepare("learn", self._n_blocks, {**chosen, **own})
        take, learn = self._launches[key]
        if advantages is not None:
            self._taken.copy_(advantages)
        elif self._given["advantages"] is not None:
            take()
        if weights is not None and total is not None:
            self._weights.copy_(weights)
            self._total.copy_(total)
        learn()
        self._add_up()


# ------------------------------------------------------------------ Adam


def adam(*, parameters: Tensor, **given: Any) -> Launch:
    """Return a launch of one step of `FlatAdam`.

    Arguments are its tensors and numbers, by the kernel's names.
    """
    return _prepare("adam", 1, {"parameters": parameters, "n": parameters.numel(), **given})

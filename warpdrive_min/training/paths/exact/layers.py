"""Sizes and weight order of small networks for `exact_layers.cuh`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch import Tensor

Indices = np.ndarray[Any, np.dtype[np.int64]]

THREADS: Final = 128
"""Threads per block on a GPU."""
SHARED_BYTES: Final = 48 * 1024
"""Limit of a block's shared memory for weights and a tile of rows."""
TILE: Final = 32
"""Rows per tile on a GPU."""
SIDE_BY_SIDE: Final = 4
"""Numbers that a GPU moves at once.

Rows of weights and of a tile are padded to a multiple of it, and by this number once more.
"""
LANES: Final = 16
"""Multiple to which rows of weights are padded on a CPU."""
WIDEST: Final = 128
"""Largest number of units of a layer."""
ROWS_OF_A_PART: Final = 64
"""Fewest rows of a part, which are summed in order; then the parts are summed."""
MOST_PARTS: Final = 1024
"""Largest number of parts of a sum over rows."""


@dataclass(frozen=True)
class Layers:
    """Sizes of a network with one or two hidden layers."""

    sizes: tuple[int, ...]
    """Inputs, units of each hidden layer, and outputs."""

    @classmethod
    def of(cls, weights: Sequence[Tensor]) -> Layers:
        """Return a network's sizes from its weights (outputs, inputs) and biases."""
        return cls((weights[0].shape[1], *map(len, weights[::2])))

    @property
    def places(self) -> list[tuple[Indices, Indices]]:
        """Indices of each layer's weights (outputs, inputs) and biases in one vector."""
        found, n = [], 0
        for n_in, n_out in itertools.pairwise(self.sizes):
            both = np.arange(n, n := n + (n_in + 1) * n_out)
            found.append((both[:-n_out].reshape(n_out, n_in), both[-n_out:]))
        return found

    def fits(self, *, on_gpu: bool, sums: int = 0) -> bool:
        """Return True if the kernels support the network.

        Args:
            on_gpu: Require that the weights and a tile of rows fit into a block's shared memory.
            sums: Number of sums over the rows in addition to the gradients.
        """
        if len(self.sizes) not in (3, 4) or max(self.sizes[1:]) > WIDEST:
            return False
        if not on_gpu:
            return True
        n_weights, n_rows = len(order(self.places, 0, on_gpu=True)), sum(self.sizes) + 1 + sums
        return 4 * (n_weights + (TILE + SIDE_BY_SIDE) * n_rows) <= SHARED_BYTES

    def constants(self) -> dict[str, int]:
        """Return the compile-time constants."""
        n_seen, first, *second, n_last = self.sizes
        return {"N_SEEN": n_seen, "HIDDEN1": first, "HIDDEN2": second[0] if second else 0, "N_LAST": n_last}


def order(layers: Sequence[tuple[Indices, Indices]], zero: int, *, on_gpu: bool) -> Indices:
    """Return the index of each number of the kernels' ``Weights``.

    Args:
        layers: Indices of the weights (outputs, inputs) and the biases of each layer.
        zero: Index of a zero.
        on_gpu: Use the order of `exact_layers_block.cuh`, else that of `exact_layers_rows.cuh`.
    """
    (first, biases), *others = layers
    if len(others) == 1:  # the kernels then have a second layer of zeros, which they never read
        others.insert(0, (np.full((1, len(first)), zero), np.full(1, zero)))
    laid = _for_gpu if on_gpu else _for_cpu
    return np.concatenate([each.ravel() for pair in ((first, biases), *others) for each in laid(*pair, zero)])


def _for_gpu(weights: Indices, biases: Indices, zero: int) -> list[Indices]:
    """Return a layer's indices in the order of `exact_layers_block.cuh`."""
    wider = -weights.shape[1] % SIDE_BY_SIDE + SIDE_BY_SIDE
    return [
        np.pad(weights, ((0, 0), (0, wider)), constant_values=zero),
        np.pad(biases, (0, -len(biases) % SIDE_BY_SIDE), constant_values=zero),
    ]


def _for_cpu(weights: Indices, biases: Indices, zero: int) -> list[Indices]:
    """Return a layer's indices in the order of `exact_layers_rows.cuh`."""

    def filled(rows: Indices) -> Indices:
        return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % LANES)], constant_values=zero)

    return [filled(weights.T), filled(biases), filled(weights)]


@dataclass(frozen=True)
class Share:
    """Consecutive rows of a sum over rows, on one of several ranks.

    Parts of a sum depend only on the number of all rows; each is on one rank.
    """

    n_rows: int
    """Number of rows on all ranks."""
    rows_of_a_part: int
    """Rows of each part but the last, which may have fewer."""
    most_rows: int
    """Rows of a rank, except the last ones, which may have fewer."""
    start: int
    """First row of this rank."""

    @property
    def stop(self) -> int:
        """End of this rank's rows."""
        return min(self.start + self.most_rows, self.n_rows)

    @property
    def n_parts(self) -> int:
        """Number of this rank's parts."""
        return -(-(self.stop - self.start) // self.rows_of_a_part)

    @property
    def most_parts(self) -> int:
        """Number of parts of ``most_rows``."""
        return -(-self.most_rows // self.rows_of_a_part)

    @property
    def all_parts(self) -> int:
        """Number of parts on all ranks."""
        return -(-self.n_rows // self.rows_of_a_part)


def share_of(n_rows: int, rank: int = 0, n_ranks: int = 1, together: int = 1) -> Share:
    """Return a rank's share of a sum over rows.

    Args:
        n_rows: Number of rows on all ranks.
        rank: Number of the rank.
        n_ranks: Number of ranks.
        together: Consecutive rows that stay on one rank; divides ``n_rows``.
    """
    of_a_part = max(ROWS_OF_A_PART, -(-n_rows // MOST_PARTS))
    unit = math.lcm(of_a_part, together)
    most = math.ceil(math.ceil(n_rows / unit) / n_ranks) * unit
    return Share(n_rows, of_a_part, most, min(rank * most, n_rows))

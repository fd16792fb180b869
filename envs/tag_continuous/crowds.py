"""Exact nearest agents in NumPy by a grid of cells, for many agents."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]
Key = Callable[[Floats, Floats, Indices], NDArray[Any]]

CROWD: Final = 4_096
"""Smallest number of agents for a search in cells, faster there than all pairs."""
AGENTS_PER_CELL: Final = 4
PAIRS_AT_ONCE: Final = 2**22
"""Number of pairs in memory at a time."""
ROUNDING: Final = 1e-5
"""Relative bound above the rounding error of a float32 squared distance."""


class Crowd:
    """Searchable agents of one environment, sorted by cell of a square grid.

    Args:
        x: Positions of all agents, ``(n_agents,)``.
        y: As ``x``.
        counts: True for searchable agents, ``(n_agents,)``.
    """

    def __init__(self, x: Floats, y: Floats, counts: NDArray[np.bool_]) -> None:
        self.x, self.y = x, y
        found = np.flatnonzero(counts)
        self.side = max(1, math.isqrt(len(found) // AGENTS_PER_CELL))
        """Cells along a side of the square that contains all agents."""
        self._corner = float(x.min()), float(y.min())
        widest = max(float(np.ptp(x)), float(np.ptp(y)))
        self._width = max(widest, 1e-30) / self.side
        self.column, self.row = (
            np.minimum((place.astype(np.float64) - corner) / self._width, self.side - 1).astype(np.intp)
            for place, corner in zip((x, y), self._corner, strict=True)
        )
        cell = self.row[found] * self.side + self.column[found]
        order = np.argsort(cell, kind="stable")
        self.agents = found[order]
        """Ids of searchable agents, by cell."""
        self.first = np.searchsorted(cell[order], np.arange(self.side**2 + 1))
        """Index in `agents` of each cell's first agent."""

    def nearest(self, n: int, key: Key, far: Any) -> NDArray[Any]:
        """Return the ``n`` smallest keys of each agent, ascending, ``(n_agents, n)``.

        Args:
            n: Number of neighbours; missing ones are ``far``.
            key: Sort key of pairs, from differences of ``x`` and ``y`` and the other's id. Keys rise with distance, up
                to the rounding of float32.
            far: A key larger than all others.
        """
        keys = np.full((len(self.x), n), far)
        selves, ring = np.arange(len(self.x)), 1
        while len(selves):
            at_once = max(1, PAIRS_AT_ONCE // (AGENTS_PER_CELL * (2 * ring + 1) ** 2))
            parts = [selves[first : first + at_once] for first in range(0, len(selves), at_once)]
            selves = np.concatenate([part[~self._search(part, ring, keys, key, far)] for part in parts])
            ring *= 2
        return keys

    def _search(self, selves: Indices, ring: int, keys: NDArray[Any], key: Key, far: Any) -> NDArray[np.bool_]:
        """Search cells within ``ring``, write the keys, and return the finished agents."""
        column, row = self.column[selves], self.row[selves]
        left, right = np.maximum(column - ring, 0), np.minimum(column + ring, self.side - 1)
        rows = row[:, None] + np.arange(-ring, ring + 1)
        line = np.clip(rows, 0, self.side - 1) * self.side
        begins = self.first[line + left[:, None]]
        lengths = np.where(line == rows * self.side, self.first[line + right[:, None] + 1] - begins, 0)

        n_each = lengths.sum(1)
        ends = np.cumsum(lengths)
        pair = np.arange(ends[-1])
        other = self.agents[pair + np.repeat(begins.ravel() - ends + lengths.ravel(), lengths.ravel())]
        of = np.repeat(np.arange(len(selves)), n_each)
        slot = pair - np.repeat(np.cumsum(n_each) - n_each, n_each)
        dx, dy = self.x[other] - self.x[selves[of]], self.y[other] - self.y[selves[of]]
        is_other = other != selves[of]
        found = np.full((len(selves), max(keys.shape[1], int(n_each.max(initial=0)))), far)
        found[of, slot] = np.where(is_other, key(dx, dy, other), far)
        n = keys.shape[1]
        found.partition(n - 1, axis=1)
        keys[selves] = np.sort(found[:, :n], axis=1)

        unseen = np.full(len(selves), np.inf)  # lower bound of the distance to agents not searched
        for place, corner, low, high, cell in (
            (self.x[selves], self._corner[0], left, right, column),
            (self.y[selves], self._corner[1], rows[:, 0], rows[:, -1], row),
        ):
            within = place.astype(np.float64) - corner
            unseen = np.where(cell - ring > 0, np.minimum(unseen, within - low * self._width), unseen)
            unseen = np.where(
                cell + ring < self.side - 1, np.minimum(unseen, (high + 1) * self._width - within), unseen
            )
        distance = np.hypot(dx.astype(np.float64), dy)
        is_sure = is_other & (distance < (1 - ROUNDING) * unseen[of])
        sure = np.bincount(of[is_sure], minlength=len(selves))
        is_complete: NDArray[np.bool_] = np.isinf(unseen) | (sure >= n)
        return is_complete

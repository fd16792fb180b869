"""Search for agents in a square grid of cells in Numba; mirrors cells.cuh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64

from warpdrive_min.kernels.core_numba import bits, clip, float_of_bits, natural, squared

from .agent_numba import TOO_FAR, ZERO

LAST_ID: Final = 0x7FFFFFFF
"""Id in the key of a missing neighbour."""
ID_BITS: Final = 32
"""Bits of the id in the lower part of a key; the squared distance is above."""


class Search(NamedTuple):
    """Device functions of a search."""

    cell_of: Callable[..., Any]
    key_of: Callable[..., Any]
    clear: Callable[..., Any]
    offer: Callable[..., Any]
    search_rings: Callable[..., Any]
    find_tagger: Callable[..., Any]


def search_functions(c: Any, slots: int, agent_in: Callable[..., Any]) -> Search:
    """Close the device functions over the constants.

    They take ``crowd``, whose ``cell_start`` ``[env, cell]`` has the first slot of each cell.

    Args:
        c: Constants.
        slots: Number of neighbours that are found at a time.
        agent_in: Device function of ``crowd``, an environment and a slot; returns the agent's id and position.
    """
    grid_length, reach, reach_squared, margin = c.GRID_LENGTH, c.REACH, c.REACH_SQUARED, c.MARGIN
    n_cells, out_cells, side = c.N_CELLS, c.OUT_CELLS, c.CELLS_PER_SIDE
    cell_length, inv_cell_length = c.CELL_LENGTH, c.INV_CELL_LENGTH
    out_share = -(-c.N_AGENTS // out_cells)  # agents per cell out of the game
    least, most = np.int32(0), np.int32(side - 1)  # columns

    @cuda.jit(device=True)
    def column_of(position):
        return min(int32(position * inv_cell_length), most)

    @cuda.jit(device=True)
    def cell_of(agent, in_game, x, y):
        """Return an agent's cell; out of the game, one of the last cells.

        Nobody searches the last cells.
        """
        return natural(column_of(y) * side + column_of(x) if in_game else n_cells + agent // out_share)

    @cuda.jit(device=True)
    def key_of(distance, identity):
        """Combine squared distance and id in one integer.

        A non-negative float sorts like its bits.
        """
        return int64(bits(distance)) << int64(ID_BITS) | int64(identity)

    @cuda.jit(device=True)
    def clear(keys):
        """Set the keys to those of missing neighbours."""
        for slot in range(slots):
            keys[slot] = key_of(TOO_FAR, LAST_ID)

    @cuda.jit(device=True)
    def offer(keys, last, key):
        """Insert a key into the smallest keys after ``last``, ascending."""
        if key < keys[slots - 1] and key > last:
            for back in range(slots - 1):
                slot = slots - 1 - back
                keys[slot] = min(keys[slot], max(keys[slot - 1], key))
            keys[0] = min(keys[0], key)

    @cuda.jit(device=True)
    def run_of(crowd, env, row, left, right):
        """Return the first slot of a run of cells of one row, and the slot after it."""
        start, end = natural(row * side + left), natural(row * side + right + 1)
        return crowd.cell_start[env, start], crowd.cell_start[env, end]

    @cuda.jit(device=True)
    def search_rings(keys, last, crowd, env, self, x, y):
        """Search square rings of cells until farther ones cannot hold a nearer agent."""
        column, row = column_of(x), column_of(y)
        nobody = grid_length + grid_length
        ring, unseen = int32(1), ZERO
        while unseen < nobody and not (
            unseen > ZERO and float_of_bits(int32(keys[slots - 1] >> int64(ID_BITS))) < unseen * unseen
        ):
            left, right = int32(column - ring), int32(column + ring)
            bottom, top = int32(row - ring), int32(row + ring)
            for at in range(max(bottom, least), int32(min(top, most) + 1)):
                is_whole = ring == 1 or at == bottom or at == top  # a row of the ring; the others are its two sides
                for part in range(1 if is_whole else 2):
                    first = max(left, least) if is_whole else left if part == 0 else right
                    last_column = min(right, most) if is_whole else first
                    if first >= 0 and last_column < side:
                        slot, end = run_of(crowd, env, at, first, last_column)
                        while slot < end:
                            other, other_x, other_y = agent_in(crowd, env, slot)
                            if other != self:
                                offer(keys, last, key_of(squared(other_x - x, other_y - y), other))
                            slot = int32(slot + 1)
            unseen = nobody  # lower bound of the distance to agents not searched
            if left > 0:
                unseen = min(unseen, x - float32(left) * cell_length)
            if right < side - 1:
                unseen = min(unseen, float32(right + 1) * cell_length - x)
            if bottom > 0:
                unseen = min(unseen, y - float32(bottom) * cell_length)
            if top < side - 1:
                unseen = min(unseen, float32(top + 1) * cell_length - y)
            if unseen < nobody:
                unseen = unseen - margin
            ring = int32(ring + 1)

    @cuda.jit(device=True)
    def find_tagger(crowd, agent_types, env, x, y, nobody):
        """Return the nearest tagger in reach of a place, or ``nobody``.

        The lowest id wins among equals.
        """
        left = column_of(clip(x - (reach + margin), ZERO, grid_length))
        right = column_of(clip(x + (reach + margin), ZERO, grid_length))
        bottom = column_of(clip(y - (reach + margin), ZERO, grid_length))
        top = column_of(clip(y + (reach + margin), ZERO, grid_length))
        tagger, closest = int32(nobody), reach_squared
        for row in range(bottom, int32(top + 1)):
            slot, end = run_of(crowd, env, row, left, right)
            while slot < end:
                other, other_x, other_y = agent_in(crowd, env, slot)
                distance = squared(other_x - x, other_y - y)
                is_nearer = distance < closest or (distance == closest and tagger != nobody and other < tagger)
                if is_nearer and agent_types[other] == 1:
                    closest = distance
                    tagger = other
                slot = int32(slot + 1)
        return tagger

    return Search(cell_of, key_of, clear, offer, search_rings, find_tagger)

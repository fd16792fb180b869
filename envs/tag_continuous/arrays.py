"""Arrays of Tag Continuous, as named tuples that kernels in NumPy and in Numba take whole.

Annotations are in Numba's notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class Agents(NamedTuple):
    """State, ``[env, agent]``, and the runners left in the game, ``[env]``."""

    loc_x: float32[:, :]
    loc_y: float32[:, :]
    speed: float32[:, :]
    direction: float32[:, :]
    acceleration: float32[:, :]
    edge_hit_reward_penalty: float32[:, :]
    still_in_the_game: int32[:, :]
    num_runners: int32[:]


class Roles(NamedTuple):
    """Type, skill and reward of a step by agent, and the ids of the taggers; all environments share them."""

    agent_types: int32[:]
    tagger_ids: int32[:]
    skill_levels: float32[:]
    step_rewards: float32[:]


class Actions(NamedTuple):
    """Values of the actions, which all environments share, and the actions that agents take."""

    acceleration_actions: float32[:]
    turn_actions: float32[:]
    sampled_actions: int32[:, :, :]


class Starts(NamedTuple):
    """Fixed start by agent, which all environments share."""

    start_x: float32[:]
    start_y: float32[:]
    start_direction: float32[:]


class Cells(NamedTuple):
    """Agents sorted by the cell of a grid that they are in: agents and start of each cell, and who is where.

    ``features`` ``[env, agent, feature]`` are the agents' own numbers side by side, as others see them.
    """

    cell_count: int32[:, :]
    cell_start: int32[:, :]
    slot_agent: int32[:, :]
    slot_x: float32[:, :]
    slot_y: float32[:, :]
    features: float32[:, :, :]

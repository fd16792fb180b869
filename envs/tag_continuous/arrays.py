"""Arrays of Tag Continuous, as named tuples for NumPy and Numba kernels.

Annotations are in Numba's notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numba import float32, int32


class Agents(NamedTuple):
    """State, ``[env, agent]``, and the number of runners in the game, ``[env]``."""

    loc_x: float32[:, :]
    loc_y: float32[:, :]
    speed: float32[:, :]
    direction: float32[:, :]
    acceleration: float32[:, :]
    edge_hit_reward_penalty: float32[:, :]
    still_in_the_game: int32[:, :]
    num_runners: int32[:]


class Roles(NamedTuple):
    """Type, skill and step reward by agent, and taggers' ids; shared by all envs."""

    agent_types: int32[:]
    tagger_ids: int32[:]
    skill_levels: float32[:]
    step_rewards: float32[:]


class Actions(NamedTuple):
    """Values of the actions, shared by all environments, and the chosen actions."""

    acceleration_actions: float32[:]
    turn_actions: float32[:]
    sampled_actions: int32[:, :, :]


class Starts(NamedTuple):
    """Fixed start by agent, shared by all environments."""

    start_x: float32[:]
    start_y: float32[:]
    start_direction: float32[:]


class Cells(NamedTuple):
    """Agents sorted by grid cell: counts, starts of cells, and what others observe.

    ``features`` ``[env, slot, feature]`` are an agent's values in one row, and its id. ``rank_in_cell`` is by agent.
    """

    cell_count: int32[:, :]
    cell_start: int32[:, :]
    rank_in_cell: int32[:, :]
    positions: float32[:, :, :]
    features: float32[:, :, :]

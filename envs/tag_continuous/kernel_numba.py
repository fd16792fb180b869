"""Tag Continuous in Numba: phases of reference.py, layout of kernel.cu.

Phases: move, tag, score, observe, start.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint8, uint16

from warpdrive_min.errors import ConfigError
from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import (
    SIMULATED,
    agent_at,
    any_ended,
    conclude,
    env_at,
    larger,
    load_four,
    natural,
    smaller,
    sort,
    split,
    squared,
    take_ended,
)

from .agent_numba import (
    ACCELERATION,
    DIRECTION,
    IN_GAME,
    MAX_SLOTS,
    NOBODY,
    ONE,
    SHARED_BYTES,
    SPEED,
    TIME,
    TOO_FAR,
    TYPE,
    ZERO,
    X,
    Y,
    agent_functions,
)
from .arrays import Actions, Agents, Roles, Starts
from .cells_numba import search_functions

AWAY: Final = np.float32(1e18)
"""Coordinates of agents out of the game, farther than any neighbour."""
PARTS: Final = 32
"""Parts of the cells whose agents are counted together."""


class Block(NamedTuple):
    """Shared memory of a block: agents' features and environments' counters.

    Features are ``[local env, agent]``, as other agents observe them. With a search in cells, ``slot_agent`` has the
    agents sorted by cell.
    """

    feature: float32[:, :, :]
    is_tagger: uint8[:, :]
    in_game: uint8[:, :]
    progress: float32[:]
    ended: uint8[:]
    nearest: uint16[:, :]
    slot_agent: uint16[:, :]
    cell_count: int32[:, :]
    part_count: int32[:, :]
    cell_start: int32[:, :]


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants.

    Raises:
        ConfigError: The agents do not fit the shared memory of a block.
    """
    move, place, score, scale_of = agent_functions(c)
    threads, envs_per_block, auto_reset = c.THREADS, c.ENVS_PER_BLOCK, c.AUTO_RESET
    n_agents, n_taggers, n_observed, full = c.N_AGENTS, c.N_TAGGERS, c.N_OBSERVED, c.USE_FULL_OBSERVATION
    episode_length, runner_exits, reach_squared = c.EPISODE_LENGTH, c.RUNNER_EXITS, c.REACH_SQUARED

    grid = c.GRID_SEARCH
    cells = c.N_CELLS + 1  # the last one is for agents out of the game
    part_cells = -(-cells // PARTS)
    n_items = envs_per_block * n_agents
    room = -(-n_agents // 4) * 4  # agents of an environment, padded for loads of 16 bytes
    slots = n_observed if full else min(n_observed, MAX_SLOTS)
    rounds = -(-n_observed // slots)
    length = np.float32(episode_length)
    block_bytes = 20 * envs_per_block * room + 7 * n_items + 13 * envs_per_block
    if grid:
        block_bytes += 2 * n_items + 4 * envs_per_block * (2 * cells + PARTS)
    batch = threads if full else min(threads, (SHARED_BYTES - block_bytes) // (2 * slots) // 32 * 32)
    if block_bytes > SHARED_BYTES or batch < 1:
        raise ConfigError(
            f"tag_continuous: {n_agents} agents do not fit the shared memory of a block "
            "(48 KiB, 27 bytes an agent); use fewer runners and taggers"
        )
    rows, sorted_envs = 1 if full else batch, envs_per_block if grid else 1

    @cuda.jit(device=True)
    def shared_memory():
        if SIMULATED:
            feature = cuda.shared.array((5, envs_per_block, room), float32)
        else:
            feature = cuda.shared.array((5, envs_per_block, room), float32, alignment=16)
        return Block(
            feature,
            cuda.shared.array((envs_per_block, n_agents), uint8),
            cuda.shared.array((envs_per_block, n_agents), uint8),
            cuda.shared.array(envs_per_block, float32),
            cuda.shared.array(envs_per_block, uint8),
            cuda.shared.array((rows, slots), uint16),
            cuda.shared.array((sorted_envs, n_agents), uint16),
            cuda.shared.array((sorted_envs, cells), int32),
            cuda.shared.array((sorted_envs, PARTS), int32),
            cuda.shared.array((sorted_envs, cells), int32),
        )

    @cuda.jit(device=True)
    def show(block, local, agent, plays, tags, x, y, speed, acceleration, direction):
        """Write an agent's features for others' observations.

        With partial observations, agents out of the game are hidden.
        """
        is_away = not full and not plays
        block.feature[X, local, agent] = AWAY if is_away else x
        block.feature[Y, local, agent] = AWAY if is_away else y
        block.feature[SPEED, local, agent] = speed
        block.feature[ACCELERATION, local, agent] = acceleration
        block.feature[DIRECTION, local, agent] = direction
        block.in_game[local, agent] = plays
        block.is_tagger[local, agent] = tags

    @cuda.jit(device=True)
    def show_padding(block, local):
        """Hide padding agents from all others."""
        for agent in range(n_agents, room):
            block.feature[X, local, agent] = AWAY
            block.feature[Y, local, agent] = AWAY

    @cuda.jit(device=True)
    def squared_distance(feature, local, a, b):
        return squared(
            feature[X, local, a] - feature[X, local, b],
            feature[Y, local, a] - feature[Y, local, b],
        )

    @cuda.jit(device=True)
    def may_follow(distance, other, self, last_distance, last):
        """True if an agent comes after the last one found, by (distance, id)."""
        follows = rounds == 1 or distance > last_distance or (distance == last_distance and other > last)
        return other != self and follows

    @cuda.jit(device=True)
    def insert(distances, distance):
        """Insert a distance into the ascending smallest ones."""
        for back in range(slots - 1):
            slot = slots - 1 - back
            distances[slot] = smaller(distances[slot], larger(distances[slot - 1], distance))
        distances[0] = smaller(distances[0], distance)

    @cuda.jit(device=True)
    def find_nearest(feature, local, self, last, nearest, row):
        """Write the ids of the next nearest agents after ``last``.

        It finds their distances, then their ids, then sorts.
        """
        last_distance = -ONE if last == NOBODY else squared_distance(feature, local, last, self)
        x, y = feature[X, local, self], feature[Y, local, self]
        row_x, row_y = int32((X * envs_per_block + local) * room), int32((Y * envs_per_block + local) * room)
        distances = cuda.local.array(slots, float32)
        for slot in range(slots):
            distances[slot] = TOO_FAR
        for start_of_four in range(0, room, 4):
            first = int32(start_of_four)
            x_0, x_1, x_2, x_3 = load_four(feature, row_x + first)
            y_0, y_1, y_2, y_3 = load_four(feature, row_y + first)
            a, b = squared(x_0 - x, y_0 - y), squared(x_1 - x, y_1 - y)
            c, d = squared(x_2 - x, y_2 - y), squared(x_3 - x, y_3 - y)
            a = a if may_follow(a, first, self, last_distance, last) else TOO_FAR
            b = b if may_follow(b, int32(first + 1), self, last_distance, last) else TOO_FAR
            c = c if may_follow(c, int32(first + 2), self, last_distance, last) else TOO_FAR
            d = d if may_follow(d, int32(first + 3), self, last_distance, last) else TOO_FAR
            # Sort first: of four, the second and later ones are rarely close enough for any of a warp's agents.
            a, b = sort(a, b)
            c, d = sort(c, d)
            a, c = sort(a, c)
            b, d = sort(b, d)
            b, c = sort(b, c)
            if a < distances[slots - 1]:
                insert(distances, a)
                if b < distances[slots - 1]:
                    insert(distances, b)
                    if c < distances[slots - 1]:
                        insert(distances, c)
                        if d < distances[slots - 1]:
                            insert(distances, d)

        limit = distances[slots - 1]
        n_at_limit = int32(0)  # agents exactly at the limit still to take, by lowest id
        for slot in range(slots):
            n_at_limit += int32(1 if distances[slot] == limit else 0)
        n_found = int32(0)
        for start_of_four in range(0, room, 4):
            first = int32(start_of_four)
            x_0, x_1, x_2, x_3 = load_four(feature, row_x + first)
            y_0, y_1, y_2, y_3 = load_four(feature, row_y + first)
            for index in range(4):
                other = int32(first + index)
                other_x = x_0 if index == 0 else x_1 if index == 1 else x_2 if index == 2 else x_3
                other_y = y_0 if index == 0 else y_1 if index == 1 else y_2 if index == 2 else y_3
                distance = squared(other_x - x, other_y - y)
                if distance <= limit and may_follow(distance, other, self, last_distance, last):
                    if distance == limit:
                        n_at_limit = int32(n_at_limit - 1)
                    if distance < limit or n_at_limit >= 0:
                        nearest[row, natural(n_found)] = other
                        n_found = int32(n_found + 1)
        for slot in range(n_found, slots):
            nearest[row, natural(slot)] = NOBODY

        ids = cuda.local.array(slots, int32)
        ranks = cuda.local.array(slots, int32)
        for slot in range(slots):
            ids[slot] = nearest[row, slot]
            ranks[slot] = 0
            distances[slot] = TOO_FAR if ids[slot] == NOBODY else squared_distance(feature, local, ids[slot], self)
        for later in range(slots):
            for earlier in range(slots):
                if earlier < later:
                    swapped = int32(1 if distances[later] < distances[earlier] else 0)
                    ranks[earlier] = int32(ranks[earlier] + swapped)
                    ranks[later] = int32(ranks[later] + 1 - swapped)
        for slot in range(slots):
            nearest[row, natural(ranks[slot])] = ids[slot]

    @cuda.jit(device=True)
    def agent_in(block, local, slot):
        agent = int32(block.slot_agent[local, natural(slot)])
        return agent, block.feature[X, local, agent], block.feature[Y, local, agent]

    cell_of, key_of, clear, _, search_rings, find_tagger = search_functions(c, slots, agent_in)

    @cuda.jit(device=True)
    def find_in_cells(block, local, self, last, row):
        """Write the ids of the next nearest agents after ``last``, found in cells."""
        keys = cuda.local.array(slots, int64)
        clear(keys)
        last_key = int64(-1)
        if last != NOBODY:
            last_key = key_of(squared_distance(block.feature, local, last, self), last)
        x, y = block.feature[X, local, self], block.feature[Y, local, self]
        search_rings(keys, last_key, block, local, self, x, y)
        for slot in range(slots):
            block.nearest[row, slot] = keys[slot] & int64(NOBODY)

    @cuda.jit(device=True)
    def clear_cells(block):
        """Set the counts of all cells to 0; the caller must synchronise."""
        for item in range(cuda.threadIdx.x, sorted_envs * cells, threads):
            local, cell = split(item, cells)
            block.cell_count[local, cell] = 0

    @cuda.jit(device=True)
    def cell_at(block, local, agent):
        plays = block.in_game[local, agent] != 0
        return cell_of(agent, plays, block.feature[X, local, agent], block.feature[Y, local, agent])

    @cuda.jit(device=True)
    def sort_by_cell(block, everyone, n_envs):
        """Sort the agents of ended (or all) environments by cell; synchronise.

        The order within a cell may differ from run to run, but no result depends on it. The counts, 0 before, are 0
        afterwards.
        """
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and (everyone or block.ended[local] != 0):
                cuda.atomic.add(block.cell_count, (local, cell_at(block, local, agent)), 1)
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, envs_per_block * PARTS, threads):
            local, part = split(item, PARTS)
            total = int32(0)
            for cell in range(part * part_cells, min((part + 1) * part_cells, cells)):
                total += block.cell_count[local, natural(cell)]
            block.part_count[local, part] = total
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, envs_per_block * cells, threads):
            local, cell = split(item, cells)
            part, _ = split(cell, part_cells)
            before = int32(0)
            for earlier in range(part):
                before += block.part_count[local, natural(earlier)]
            for earlier in range(part * part_cells, cell):
                before += block.cell_count[local, natural(earlier)]
            block.cell_start[local, cell] = before
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and (everyone or block.ended[local] != 0):
                cell = cell_at(block, local, agent)
                slot = block.cell_start[local, cell] + cuda.atomic.add(block.cell_count, (local, cell), -1) - 1
                block.slot_agent[local, natural(slot)] = agent
        cuda.syncthreads()

    @cuda.jit(device=True)
    def agent_of(block, local, index):
        """Return an agent by its index among the sorted agents, if they are sorted."""
        return natural(block.slot_agent[local, index]) if grid else index

    @cuda.jit(device=True)
    def seen(block, local, self, other, kind):
        """Return one entry of an observation: a feature of ``other`` for ``self``."""
        sees = block.in_game[local, self] != 0
        if kind == TIME:
            return block.progress[local] if sees else ZERO
        if other == NOBODY:
            return ZERO
        if kind == TYPE:
            return float32(block.is_tagger[local, other])
        if kind == IN_GAME:
            return float32(block.in_game[local, other])
        if not sees:
            return ZERO
        return (block.feature[kind, local, other] - block.feature[kind, local, self]) * scale_of(kind)

    @cuda.jit(device=True)
    def observe(block, observations, ends, everyone, n_envs):
        """Write final rows to ``ends``, and the other rows if ``everyone``.

        ``batch`` agents search at a time, then all threads write these agents' rows.
        """
        for first in range(0, n_items, batch):
            n_rows = min(batch, n_items - first)
            for turn in range(rounds):
                if not full:
                    for item in range(cuda.threadIdx.x, n_rows, threads):
                        row = natural(item)
                        local, env, index = agent_at(first + row, envs_per_block, n_agents)
                        if env < n_envs and (everyone or block.ended[local] != 0):
                            self = agent_of(block, local, index)
                            last = NOBODY if turn == 0 else int32(block.nearest[row, slots - 1])
                            if block.in_game[local, self] != 0 and (turn == 0 or last != NOBODY):
                                if grid:
                                    find_in_cells(block, local, self, last, row)
                                else:
                                    find_nearest(block.feature, local, self, last, block.nearest, row)
                            else:
                                for slot in range(slots):
                                    block.nearest[row, natural(slot)] = NOBODY
                    cuda.syncthreads()
                # A thread writes all features of a neighbour.
                for item in range(cuda.threadIdx.x, n_rows * slots, threads):
                    row, slot = split(item, slots)
                    rank = natural(turn * slots + slot)
                    local, env, index = agent_at(first + row, envs_per_block, n_agents)
                    if rank < n_observed and env < n_envs and (everyone or block.ended[local] != 0):
                        self = agent_of(block, local, index)
                        other = natural(rank + (1 if rank >= self else 0) if full else block.nearest[row, slot])
                        rows = ends if block.ended[local] != 0 else observations
                        for kind in range(TIME):
                            entry = natural(kind * n_observed + rank)
                            rows[env, self, entry] = seen(block, local, self, other, kind)
                        if rank == 0:
                            rows[env, self, natural(TIME * n_observed)] = seen(block, local, self, other, TIME)
                cuda.syncthreads()

    @cuda.jit(device=True)
    def start(block, agents, roles, starts, clock, n_envs):
        """Start the next episode of the block's ended environments."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and block.ended[local] != 0:
                x, y, heading = place(env, agent, agents, starts, clock)
                show(block, local, agent, True, roles.agent_types[agent] == 1, x, y, ZERO, ZERO, heading)
        cuda.syncthreads()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs and block.ended[local] != 0:
                agents.num_runners[env] = n_agents - n_taggers
                block.progress[local] = ZERO
                show_padding(block, local)
                clock.timestep[env] = 0
                clock.episode[env] += 1
        cuda.syncthreads()

    @cuda.jit
    def step(
        agents: Agents,
        roles: Roles,
        actions: Actions,
        starts: Starts,
        clock: Clock,
        results: Results,
        is_observed: int32,
        n_envs: int32,
    ):
        block = shared_memory()
        is_tagged = cuda.shared.array((envs_per_block, n_agents), uint8)
        n_catches = cuda.shared.array((envs_per_block, n_agents), int32)
        n_tagged = cuda.shared.array(envs_per_block, int32)
        timestep = cuda.shared.array(envs_per_block, int32)

        # move
        if grid:
            clear_cells(block)
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                clock.timestep[env] += 1
                timestep[local] = clock.timestep[env]
                n_tagged[local] = 0
                block.progress[local] = float32(clock.timestep[env]) / length
                show_padding(block, local)
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                plays, x, y, speed, acceleration, direction = move(env, agent, agents, roles, actions)
                tags = roles.agent_types[agent] == 1
                n_catches[local, agent] = 0
                show(block, local, agent, plays, tags, x, y, speed, acceleration, direction)
        cuda.syncthreads()

        # tag: each runner in the game finds its nearest tagger in reach, the lowest id among equals
        if grid:
            sort_by_cell(block, True, n_envs)
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, index = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                agent, tagger = agent_of(block, local, index), NOBODY
                if block.in_game[local, agent] != 0 and block.is_tagger[local, agent] == 0:
                    if grid:
                        x, y = block.feature[X, local, agent], block.feature[Y, local, agent]
                        tagger = find_tagger(block, roles.agent_types, local, x, y, NOBODY)
                    else:
                        closest = reach_squared
                        for index_of_tagger in range(n_taggers):
                            other = roles.tagger_ids[index_of_tagger]
                            distance = squared_distance(block.feature, local, other, agent)
                            if distance < closest:
                                closest = distance
                                tagger = other
                is_tagged[local, agent] = tagger != NOBODY
                if tagger != NOBODY:
                    cuda.atomic.add(n_catches, (local, tagger), 1)
                    cuda.atomic.add(n_tagged, local, 1)
        cuda.syncthreads()

        # score
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                n_left = agents.num_runners[env] - (n_tagged[local] if runner_exits else 0)
                agents.num_runners[env] = n_left
                out_of_time = timestep[local] >= episode_length
                conclude(env, n_left == 0, out_of_time, clock, results)
                block.ended[local] = n_left == 0 or out_of_time
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                plays, tags = block.in_game[local, agent] != 0, block.is_tagger[local, agent] != 0
                tagged, catches = is_tagged[local, agent] != 0, n_catches[local, agent]
                out_of_time = timestep[local] >= episode_length
                score(env, agent, agents, roles, results, plays, tags, tagged, catches, out_of_time)
        cuda.syncthreads()

        ends = results.final_observations if auto_reset else results.observations
        if is_observed != 0:
            observe(block, results.observations, ends, True, n_envs)
        if auto_reset and any_ended(block.ended, n_envs):
            if is_observed == 0:
                observe(block, ends, ends, False, n_envs)
            start(block, agents, roles, starts, clock, n_envs)
            if is_observed != 0:
                if grid:
                    sort_by_cell(block, False, n_envs)
                observe(block, results.observations, results.observations, False, n_envs)

    @cuda.jit
    def reset(
        agents: Agents, roles: Roles, starts: Starts, clock: Clock, results: Results, force: int32, n_envs: int32
    ):
        block = shared_memory()
        if grid:
            clear_cells(block)
        take_ended(block.ended, clock, force, envs_per_block, threads, n_envs)
        if any_ended(block.ended, n_envs):
            start(block, agents, roles, starts, clock, n_envs)
            if grid:
                sort_by_cell(block, False, n_envs)
            observe(block, results.observations, results.observations, False, n_envs)

    return {"step": step, "reset": reset}

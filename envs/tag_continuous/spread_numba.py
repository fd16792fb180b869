"""Tag Continuous for many agents in Numba: kernels and layout of spread.cu."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import cuda, float32, int32, int64

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import bits, conclude, float_of_bits, natural, split, squared

from .agent_numba import (
    ACCELERATION,
    DIRECTION,
    IN_GAME,
    MAX_SLOTS,
    ONE,
    SPEED,
    TIME,
    TYPE,
    ZERO,
    X,
    Y,
    agent_functions,
)
from .arrays import Actions, Agents, Cells, Roles, Starts
from .cells_numba import LAST_ID, search_functions

NOBODY: Final = LAST_ID
ID: Final = TIME
"""Column of the id in ``features``."""


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    move_agent, start_agent, score_agent, scale_of = agent_functions(c)
    threads, blocks_per_env, auto_reset = c.THREADS, c.BLOCKS_PER_ENV, c.AUTO_RESET
    n_agents, n_taggers, n_observed, full = c.N_AGENTS, c.N_TAGGERS, c.N_OBSERVED, c.USE_FULL_OBSERVATION
    episode_length, runner_exits = c.EPISODE_LENGTH, c.RUNNER_EXITS
    grid_search, reach_squared = c.GRID_SEARCH, c.REACH_SQUARED

    length = np.float32(episode_length)
    share = -(-n_agents // blocks_per_env)  # agents per block
    cell_parts = c.CELL_PARTS
    all_cells = c.N_CELLS + c.OUT_CELLS
    part_cells = -(-all_cells // cell_parts)
    run = -(-part_cells // threads)  # cells per thread in sums of counts
    slots = n_observed if full else min(n_observed, MAX_SLOTS)
    rounds = -(-n_observed // slots)
    columns = 7 * slots + 1
    lanes = math.gcd(32, threads)  # threads per row, each with its columns
    rows = 1 if full else threads
    row_slots = slots | 1  # an odd number of banks avoids conflicts between rows

    @cuda.jit(device=True)
    def agent_in(cells, env, index):
        slot = natural(index)
        return bits(cells.features[env, slot, ID]), cells.positions[env, slot, 0], cells.positions[env, slot, 1]

    cell_of, key_of, clear, offer, search_rings, find_tagger = search_functions(c, slots, agent_in)

    @cuda.jit(device=True)
    def show(positions, features, env, slot, agent, x, y, speed, acceleration, direction, tags, plays):
        """Write an agent's position and features for others' observations."""
        positions[env, slot, 0] = x
        positions[env, slot, 1] = y
        features[env, slot, X] = x
        features[env, slot, Y] = y
        features[env, slot, SPEED] = speed
        features[env, slot, ACCELERATION] = acceleration
        features[env, slot, DIRECTION] = direction
        features[env, slot, TYPE] = ONE if tags else ZERO
        features[env, slot, IN_GAME] = ONE if plays else ZERO
        features[env, slot, ID] = float_of_bits(int32(agent))

    @cuda.jit(device=True)
    def slot_of(cells, env, agent):
        return natural(cells.rank_in_cell[env, agent]) if grid_search else agent

    @cuda.jit
    def move(
        agents: Agents,
        roles: Roles,
        actions: Actions,
        clock: Clock,
        cell_count: int32[:, :],
        rank_in_cell: int32[:, :],
        is_tagged: int32[:, :],
        n_catches: int32[:, :],
        positions: float32[:, :, :],
        features: float32[:, :, :],
        n_envs: int32,
    ):
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            agent = natural(index)
            plays, x, y, speed, acceleration, direction = move_agent(env, agent, agents, roles, actions)
            is_tagged[env, agent] = 0
            n_catches[env, agent] = 0
            if grid_search:
                rank_in_cell[env, agent] = cuda.atomic.add(cell_count, (env, cell_of(agent, plays, x, y)), 1)
            else:
                tags = roles.agent_types[agent] == 1
                show(positions, features, env, agent, agent, x, y, speed, acceleration, direction, tags, plays)
            if agent == 0:
                clock.timestep[env] += 1

    @cuda.jit(device=True)
    def sum_up_to(sums, value):
        """Return the prefix sum of the threads' values; the last entry is the total."""
        thread = cuda.threadIdx.x
        cuda.syncthreads()
        sums[thread] = value
        cuda.syncthreads()
        distance = 1
        while distance < threads:
            more = sums[thread - distance] if thread >= distance else int32(0)
            cuda.syncthreads()
            sums[thread] += more
            cuda.syncthreads()
            distance *= 2
        return sums[thread]

    @cuda.jit
    def parts(cell_count: int32[:, :], part_count: int32[:, :], restarts: int32[:], restarted: int32, n_envs: int32):
        """Count the agents in each part of the cells."""
        sums = cuda.shared.array(threads, int32)
        env, thread = cuda.blockIdx.x // blocks_per_env, cuda.threadIdx.x
        if restarted == 0 or restarts[env] != 0:
            for part in range(cuda.blockIdx.x % blocks_per_env, cell_parts, blocks_per_env):
                total = int32(0)
                for cell in range(part * part_cells + thread, min((part + 1) * part_cells, all_cells), threads):
                    total += cell_count[env, cell]
                sum_up_to(sums, total)
                if thread == 0:
                    part_count[env, part] = sums[threads - 1]

    @cuda.jit
    def offsets(
        cell_count: int32[:, :],
        cell_start: int32[:, :],
        part_count: int32[:, :],
        restarts: int32[:],
        restarted: int32,
        n_envs: int32,
    ):
        """Write the first slot of each cell, and reset the counts to 0."""
        sums = cuda.shared.array(threads, int32)
        env, thread = cuda.blockIdx.x // blocks_per_env, cuda.threadIdx.x
        if restarted == 0 or restarts[env] != 0:
            for part in range(cuda.blockIdx.x % blocks_per_env, cell_parts, blocks_per_env):
                before = int32(0)  # agents in earlier parts
                if cell_parts > 1:
                    for earlier in range(thread, part, threads):
                        before += part_count[env, earlier]
                    sum_up_to(sums, before)
                    before = sums[threads - 1]
                first = part * part_cells + thread * run
                end = min(first + run, (part + 1) * part_cells, all_cells)
                total = int32(0)
                for cell in range(first, end):
                    total += cell_count[env, cell]
                slot = before + sum_up_to(sums, total) - total
                for cell in range(first, end):
                    cell_start[env, cell] = slot
                    slot += cell_count[env, cell]
                    cell_count[env, cell] = 0

    @cuda.jit
    def place(agents: Agents, roles: Roles, cells: Cells, restarts: int32[:], restarted: int32, n_envs: int32):
        """Sort the agents by cell. An agent's rank in its cell becomes its slot."""
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            agent = natural(index)
            if restarted == 0 or restarts[env] != 0:
                x, y = agents.loc_x[env, agent], agents.loc_y[env, agent]
                speed, acceleration = agents.speed[env, agent], agents.acceleration[env, agent]
                direction, tags = agents.direction[env, agent], roles.agent_types[agent] == 1
                plays = agents.still_in_the_game[env, agent] != 0
                cell = cell_of(agent, plays, x, y)
                slot = natural(cells.cell_start[env, cell] + cells.rank_in_cell[env, agent])
                cells.rank_in_cell[env, agent] = slot
                show(
                    cells.positions, cells.features, env, slot, agent, x, y, speed, acceleration, direction, tags, plays
                )

    @cuda.jit
    def tag(agents: Agents, roles: Roles, cells: Cells, is_tagged: int32[:, :], n_catches: int32[:, :], n_envs: int32):
        """Find the nearest tagger in reach of each runner in the game.

        The lowest id wins among equals.
        """
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            self, x, y = agent_in(cells, env, index)
            slot, tagger = natural(index), NOBODY
            if cells.features[env, slot, IN_GAME] != ZERO and cells.features[env, slot, TYPE] == ZERO:
                if grid_search:
                    tagger = find_tagger(cells, roles.agent_types, env, x, y, NOBODY)
                else:
                    closest = reach_squared
                    for number in range(n_taggers):
                        other = roles.tagger_ids[number]
                        distance = squared(cells.positions[env, other, 0] - x, cells.positions[env, other, 1] - y)
                        if distance < closest:
                            closest = distance
                            tagger = other
            if tagger != NOBODY:
                is_tagged[env, self] = 1
                cuda.atomic.add(n_catches, (env, tagger), 1)
                if runner_exits:
                    cuda.atomic.add(agents.num_runners, env, -1)

    @cuda.jit(device=True)
    def find_nearest(keys, last, agents, cells, env, self):
        """Write the keys of the next nearest agents after ``last``, ascending."""
        x, y = agents.loc_x[env, self], agents.loc_y[env, self]
        last_key = int64(-1)
        if last != NOBODY:
            last_key = key_of(squared(agents.loc_x[env, last] - x, agents.loc_y[env, last] - y), last)
        if grid_search:
            search_rings(keys, last_key, cells, env, self, x, y)
        else:
            for other in range(n_agents):
                if other != self and agents.still_in_the_game[env, other] != 0:
                    distance = squared(agents.loc_x[env, other] - x, agents.loc_y[env, other] - y)
                    offer(keys, last_key, key_of(distance, other))

    @cuda.jit
    def observe(
        agents: Agents,
        cells: Cells,
        clock: Clock,
        results: Results,
        restarts: int32[:],
        restarted: int32,
        clears_done: int32,
        n_envs: int32,
    ):
        """Write the rows of every environment, or only of restarted ones.

        It is the last kernel of a restart.
        """
        neighbours = cuda.shared.array((rows, row_slots), int32)
        keys = cuda.local.array(slots, int64)
        env, thread = cuda.blockIdx.x // blocks_per_env, cuda.threadIdx.x
        start = cuda.blockIdx.x % blocks_per_env * share
        end = min(start + share, n_agents)
        if restarted != 0 and restarts[env] == 0:
            end = start
        out_of_time = clock.timestep[env] >= episode_length
        is_final = auto_reset and restarted == 0 and (agents.num_runners[env] == 0 or out_of_time)
        progress = float32(clock.timestep[env]) / length
        for first in range(start, end, threads):
            n_rows = min(threads, end - first)
            for turn in range(rounds):
                if not full:
                    if thread < n_rows:
                        self = bits(cells.features[env, first + thread, ID])
                        last = NOBODY if turn == 0 else neighbours[thread, slots - 1]
                        clear(keys)
                        if agents.still_in_the_game[env, self] != 0 and (turn == 0 or last != NOBODY):
                            find_nearest(keys, last, agents, cells, env, self)
                        for slot in range(slots):
                            neighbours[thread, slot] = int32(keys[slot] & int64(NOBODY))
                    cuda.syncthreads()
                for column in range(thread % lanes, columns, lanes):
                    kind, slot = column // slots, column % slots
                    rank = turn * slots + slot
                    last_row = 0 if rank >= n_observed or (kind == TIME and turn > 0) else n_rows
                    for row in range(thread // lanes, last_row, threads // lanes):
                        own = natural(first + row)
                        self = bits(cells.features[env, own, ID])
                        plays = cells.features[env, own, IN_GAME] != ZERO
                        other = rank + (1 if rank >= self else 0) if full else neighbours[row, slot]
                        seen = ZERO
                        if kind == TIME:
                            seen = progress if plays else ZERO
                        elif other != NOBODY:
                            seen = cells.features[env, slot_of(cells, env, other), kind]
                            if kind < TYPE:
                                seen = (seen - cells.features[env, own, kind]) * scale_of(kind) if plays else ZERO
                        if is_final:
                            results.final_observations[env, self, kind * n_observed + rank] = seen
                        else:
                            results.observations[env, self, kind * n_observed + rank] = seen
                cuda.syncthreads()
        if restarted != 0 and end > start and start == 0 and thread == 0:
            clock.episode[env] += 1
            if clears_done != 0:
                clock.done[env] = 0

    @cuda.jit
    def score(
        agents: Agents,
        roles: Roles,
        clock: Clock,
        results: Results,
        is_tagged: int32[:, :],
        n_catches: int32[:, :],
        n_envs: int32,
    ):
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        nobody_left, out_of_time = agents.num_runners[env] == 0, clock.timestep[env] >= episode_length
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            agent = natural(index)
            plays, tags = agents.still_in_the_game[env, agent] != 0, roles.agent_types[agent] == 1
            tagged, catches = is_tagged[env, agent] != 0, n_catches[env, agent]
            score_agent(env, agent, agents, roles, results, plays, tags, tagged, catches, out_of_time)
            if agent == 0:
                conclude(env, nobody_left, out_of_time, clock, results)

    @cuda.jit
    def start(
        agents: Agents,
        agent_types: int32[:],
        starts: Starts,
        clock: Clock,
        cell_count: int32[:, :],
        rank_in_cell: int32[:, :],
        positions: float32[:, :, :],
        features: float32[:, :, :],
        restarts: int32[:],
        force: int32,
        n_envs: int32,
    ):
        """Set the agents of ended (or all) environments to their start.

        Records the restarted environments for the following kernels.
        """
        env, part = split(cuda.blockIdx.x, blocks_per_env)
        first = part * share
        ends = force != 0 or clock.done[env] != 0
        for index in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            agent = natural(index)
            if agent == 0:
                restarts[env] = ends
            if ends:
                x, y, direction = start_agent(env, agent, agents, starts, clock)
                if grid_search:
                    rank_in_cell[env, agent] = cuda.atomic.add(cell_count, (env, cell_of(agent, True, x, y)), 1)
                else:
                    tags = agent_types[agent] == 1
                    show(positions, features, env, agent, agent, x, y, ZERO, ZERO, direction, tags, True)
                if agent == 0:
                    agents.num_runners[env] = n_agents - n_taggers
                    clock.timestep[env] = 0

    kernels = (move, parts, offsets, place, tag, observe, score, start)
    return {kernel.__name__: kernel for kernel in kernels}

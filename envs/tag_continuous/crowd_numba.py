"""Tag Continuous for many agents, in Numba: kernels and layout as in crowd.cu."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import cuda, float32, int32, int64, uint16

from envs.tag_continuous.agent_numba import MAX_SLOTS, NOBODY, ONE, TIME, TOO_FAR, TYPE, ZERO, agent_functions
from warpdrive_min.kernels.core_numba import bits, clip, float_of_bits

ID_BITS: Final = 16
"""Of a key: squared distance above, the id below."""


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    moved, started, reward, scale_of = agent_functions(c)
    threads, blocks_per_env, auto_reset = c.THREADS, c.BLOCKS_PER_ENV, c.AUTO_RESET
    n_agents, n_taggers, n_observed, full = c.N_AGENTS, c.N_TAGGERS, c.N_OBSERVED, c.USE_FULL_OBSERVATION
    episode_length, runner_exits = c.EPISODE_LENGTH, c.RUNNER_EXITS
    grid_length, reach, reach_squared, margin = c.GRID_LENGTH, c.REACH, c.REACH_SQUARED, c.MARGIN
    edge_penalty = c.EDGE_HIT_PENALTY
    grid_search, n_cells, side = c.GRID_SEARCH, c.N_CELLS, c.CELLS_PER_SIDE
    cell_length, inv_cell_length = c.CELL_LENGTH, c.INV_CELL_LENGTH

    length = np.float32(episode_length)
    share = -(-n_agents // blocks_per_env)  # agents of a block
    run = -(-(n_cells + 1) // threads)  # cells of a thread that sums counts
    slots = n_observed if full else min(n_observed, MAX_SLOTS)
    rounds = -(-n_observed // slots)
    columns = 7 * slots + 1
    lanes = math.gcd(32, threads)  # threads that write one row, each of them its columns
    rows = 1 if full else threads

    @cuda.jit(device=True)
    def squared(dx, dy):
        return dx * dx + dy * dy

    @cuda.jit(device=True)
    def column_of(position):
        return min(int32(position * inv_cell_length), side - 1)

    @cuda.jit(device=True)
    def cell_of(in_game, x, y):
        """Return an agent's cell; who is out of the game is in a last one that nobody searches."""
        return column_of(y) * side + column_of(x) if in_game else n_cells

    @cuda.jit(device=True)
    def key_of(distance, identity):
        """Return squared distance and id in one integer: a float that is not negative sorts like its bits."""
        return int64(bits(distance)) << int64(ID_BITS) | int64(identity)

    @cuda.jit(device=True)
    def distance_of(key):
        return float_of_bits(int32(key >> int64(ID_BITS)))

    @cuda.jit(device=True)
    def offer(keys, last, key):
        """Keep the smallest keys after ``last``, ascending."""
        if key < keys[slots - 1] and key > last:
            for back in range(slots - 1):
                slot = slots - 1 - back
                keys[slot] = min(keys[slot], max(keys[slot - 1], key))
            keys[0] = min(keys[0], key)

    @cuda.jit(device=True)
    def search(keys, last, start, agents, xs, ys, self, x, y, row, left, right):
        """Offer the agents in a run of cells of one row."""
        for i in range(start[row * side + left], start[row * side + right + 1]):
            if agents[i] != self:
                offer(keys, last, key_of(squared(xs[i] - x, ys[i] - y), agents[i]))

    @cuda.jit(device=True)
    def search_rings(keys, last, start, agents, xs, ys, self, x, y):
        """Search square rings of cells around the agent until none farther out can hold a nearer one."""
        column, row = column_of(x), column_of(y)
        nobody = grid_length + grid_length
        ring, unseen = 1, ZERO
        while unseen < nobody and not (unseen > ZERO and distance_of(keys[slots - 1]) < unseen * unseen):
            left, right, bottom, top = column - ring, column + ring, row - ring, row + ring
            for at in range(max(bottom, 0), min(top, side - 1) + 1):
                if ring == 1 or at in (bottom, top):
                    search(keys, last, start, agents, xs, ys, self, x, y, at, max(left, 0), min(right, side - 1))
                else:
                    if left >= 0:
                        search(keys, last, start, agents, xs, ys, self, x, y, at, left, left)
                    if right < side:
                        search(keys, last, start, agents, xs, ys, self, x, y, at, right, right)
            unseen = nobody  # how near somebody who was not searched may be
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
            ring += 1

    @cuda.jit
    def move(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        speed: float32[:, :],
        direction: float32[:, :],
        acceleration: float32[:, :],
        edge_hit_reward_penalty: float32[:, :],
        still_in_the_game: int32[:, :],
        n_catches: int32[:, :],
        cell_count: int32[:, :],
        skill_levels: float32[:],
        acceleration_actions: float32[:],
        turn_actions: float32[:],
        sampled_actions: int32[:, :, :],
        _timestep_: int32[:],
        n_envs: int32,
    ):
        env, first = cuda.blockIdx.x // blocks_per_env, cuda.blockIdx.x % blocks_per_env * share
        for agent in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            plays = still_in_the_game[env, agent] != 0
            x, y, pace, kept_push, heading, hits_edge = moved(
                loc_x[env, agent],
                loc_y[env, agent],
                speed[env, agent],
                acceleration[env, agent],
                direction[env, agent],
                plays,
                acceleration_actions[sampled_actions[env, agent, 0]],
                turn_actions[sampled_actions[env, agent, 1]],
                skill_levels[agent],
            )
            loc_x[env, agent] = x
            loc_y[env, agent] = y
            speed[env, agent] = pace
            direction[env, agent] = heading
            acceleration[env, agent] = kept_push
            edge_hit_reward_penalty[env, agent] = edge_penalty if hits_edge else ZERO
            n_catches[env, agent] = 0
            if grid_search:
                cuda.atomic.add(cell_count, (env, cell_of(plays, x, y)), 1)
            if agent == 0:
                _timestep_[env] += 1

    @cuda.jit
    def offsets(cell_count: int32[:, :], cell_start: int32[:, :], restarts: int32[:], restarted: int32, n_envs: int32):
        """Write the slot at which each cell starts: one block an environment, a run of cells a thread."""
        before = cuda.shared.array(threads, int32)
        env, thread = cuda.blockIdx.x // blocks_per_env, cuda.threadIdx.x
        if cuda.blockIdx.x % blocks_per_env == 0 and (restarted == 0 or restarts[env] != 0):
            end = min(thread * run + run, n_cells + 1)
            total = int32(0)
            for cell in range(thread * run, end):
                total += cell_count[env, cell]
            before[thread] = total
            cuda.syncthreads()
            distance = 1
            while distance < threads:
                more = before[thread - distance] if thread >= distance else int32(0)
                cuda.syncthreads()
                before[thread] += more
                cuda.syncthreads()
                distance *= 2
            slot = before[thread] - total
            for cell in range(thread * run, end):
                cell_start[env, cell] = slot
                slot += cell_count[env, cell]

    @cuda.jit
    def place(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        still_in_the_game: int32[:, :],
        cell_count: int32[:, :],
        cell_start: int32[:, :],
        slot_agent: int32[:, :],
        slot_x: float32[:, :],
        slot_y: float32[:, :],
        restarts: int32[:],
        restarted: int32,
        n_envs: int32,
    ):
        """Sort the agents by cell, and leave the counts at 0."""
        env, first = cuda.blockIdx.x // blocks_per_env, cuda.blockIdx.x % blocks_per_env * share
        for agent in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            if restarted == 0 or restarts[env] != 0:
                x, y = loc_x[env, agent], loc_y[env, agent]
                cell = cell_of(still_in_the_game[env, agent] != 0, x, y)
                slot = cell_start[env, cell] + cuda.atomic.add(cell_count, (env, cell), -1) - 1
                slot_agent[env, slot] = agent
                slot_x[env, slot] = x
                slot_y[env, slot] = y

    @cuda.jit
    def tag(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        still_in_the_game: int32[:, :],
        agent_types: int32[:],
        tagger_ids: int32[:],
        cell_start: int32[:, :],
        slot_agent: int32[:, :],
        slot_x: float32[:, :],
        slot_y: float32[:, :],
        is_tagged: int32[:, :],
        n_catches: int32[:, :],
        num_runners: int32[:],
        n_envs: int32,
    ):
        """Let each runner in the game look for its nearest tagger in reach, the one of the lowest id among equals."""
        env, first = cuda.blockIdx.x // blocks_per_env, cuda.blockIdx.x % blocks_per_env * share
        for slot in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            self = slot_agent[env, slot] if grid_search else slot
            tagger = NOBODY
            if still_in_the_game[env, self] != 0 and agent_types[self] != 1:
                x, y = loc_x[env, self], loc_y[env, self]
                closest = reach_squared
                if grid_search:
                    left = column_of(clip(x - (reach + margin), ZERO, grid_length))
                    right = column_of(clip(x + (reach + margin), ZERO, grid_length))
                    bottom = column_of(clip(y - (reach + margin), ZERO, grid_length))
                    top = column_of(clip(y + (reach + margin), ZERO, grid_length))
                    for row in range(bottom, top + 1):
                        for i in range(cell_start[env, row * side + left], cell_start[env, row * side + right + 1]):
                            other = slot_agent[env, i]
                            distance = squared(slot_x[env, i] - x, slot_y[env, i] - y)
                            is_nearer = distance < closest or (
                                distance == closest and tagger != NOBODY and other < tagger
                            )
                            if is_nearer and agent_types[other] == 1:
                                closest = distance
                                tagger = other
                else:
                    for index in range(n_taggers):
                        other = tagger_ids[index]
                        distance = squared(loc_x[env, other] - x, loc_y[env, other] - y)
                        if distance < closest:
                            closest = distance
                            tagger = other
            is_tagged[env, self] = tagger != NOBODY
            if tagger != NOBODY:
                cuda.atomic.add(n_catches, (env, tagger), 1)
                if runner_exits:
                    cuda.atomic.add(num_runners, env, -1)

    @cuda.jit
    def observe(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        speed: float32[:, :],
        direction: float32[:, :],
        acceleration: float32[:, :],
        still_in_the_game: int32[:, :],
        agent_types: int32[:],
        num_runners: int32[:],
        cell_start: int32[:, :],
        slot_agent: int32[:, :],
        slot_x: float32[:, :],
        slot_y: float32[:, :],
        observations: float32[:, :, :],
        final_observations: float32[:, :, :],
        _timestep_: int32[:],
        _done_: int32[:],
        _episode_: int32[:],
        restarts: int32[:],
        restarted: int32,
        clears_done: int32,
        n_envs: int32,
    ):
        """Write the rows of every environment, or only of those that restarted; the last kernel of a restart."""
        neighbours = cuda.shared.array((rows, slots), uint16)
        keys = cuda.local.array(slots, int64)
        env, thread = cuda.blockIdx.x // blocks_per_env, cuda.threadIdx.x
        start = cuda.blockIdx.x % blocks_per_env * share
        end = min(start + share, n_agents)
        if restarted != 0 and restarts[env] == 0:
            end = start
        is_final = auto_reset and restarted == 0 and (num_runners[env] == 0 or _timestep_[env] >= episode_length)
        progress = float32(_timestep_[env]) / length
        for first in range(start, end, threads):
            n_rows = min(threads, end - first)
            for turn in range(rounds):
                if not full:
                    if thread < n_rows:
                        self = slot_agent[env, first + thread] if grid_search else first + thread
                        x, y = loc_x[env, self], loc_y[env, self]
                        last = NOBODY if turn == 0 else int32(neighbours[thread, slots - 1])
                        last_key = int64(-1)
                        if last != NOBODY:
                            last_key = key_of(squared(loc_x[env, last] - x, loc_y[env, last] - y), last)
                        for slot in range(slots):
                            keys[slot] = key_of(TOO_FAR, NOBODY)
                        if still_in_the_game[env, self] != 0 and (turn == 0 or last != NOBODY):
                            if grid_search:
                                search_rings(
                                    keys,
                                    last_key,
                                    cell_start[env],
                                    slot_agent[env],
                                    slot_x[env],
                                    slot_y[env],
                                    self,
                                    x,
                                    y,
                                )
                            else:
                                for other in range(n_agents):
                                    if other != self and still_in_the_game[env, other] != 0:
                                        distance = squared(loc_x[env, other] - x, loc_y[env, other] - y)
                                        offer(keys, last_key, key_of(distance, other))
                        for slot in range(slots):
                            neighbours[thread, slot] = keys[slot] & int64(0xFFFF)
                    cuda.syncthreads()
                for column in range(thread % lanes, columns, lanes):
                    kind, slot = column // slots, column % slots
                    rank = turn * slots + slot
                    last_row = 0 if rank >= n_observed or (kind == TIME and turn > 0) else n_rows
                    for row in range(thread // lanes, last_row, threads // lanes):
                        self = slot_agent[env, first + row] if grid_search else first + row
                        plays = still_in_the_game[env, self] != 0
                        other = rank + (1 if rank >= self else 0) if full else int32(neighbours[row, slot])
                        seen = ZERO
                        if kind == TIME:
                            seen = progress if plays else ZERO
                        elif other != NOBODY:
                            if kind >= TYPE:
                                shows = agent_types[other] == 1 if kind == TYPE else still_in_the_game[env, other] != 0
                                seen = ONE if shows else ZERO
                            elif plays:
                                if kind == 0:
                                    seen = loc_x[env, other] - loc_x[env, self]
                                elif kind == 1:
                                    seen = loc_y[env, other] - loc_y[env, self]
                                elif kind == 2:
                                    seen = speed[env, other] - speed[env, self]
                                elif kind == 3:
                                    seen = acceleration[env, other] - acceleration[env, self]
                                else:
                                    seen = direction[env, other] - direction[env, self]
                                seen = seen * scale_of(kind)
                        if is_final:
                            final_observations[env, self, kind * n_observed + rank] = seen
                        else:
                            observations[env, self, kind * n_observed + rank] = seen
                cuda.syncthreads()
        if restarted != 0 and end > start and start == 0 and thread == 0:
            _episode_[env] += 1
            if clears_done != 0:
                _done_[env] = 0

    @cuda.jit
    def score(
        edge_hit_reward_penalty: float32[:, :],
        still_in_the_game: int32[:, :],
        is_tagged: int32[:, :],
        n_catches: int32[:, :],
        num_runners: int32[:],
        agent_types: int32[:],
        step_rewards: float32[:],
        rewards: float32[:, :],
        terminated: int32[:],
        truncated: int32[:],
        _done_: int32[:],
        _timestep_: int32[:],
        n_envs: int32,
    ):
        env, first = cuda.blockIdx.x // blocks_per_env, cuda.blockIdx.x % blocks_per_env * share
        nobody_left, out_of_time = num_runners[env] == 0, _timestep_[env] >= episode_length
        for agent in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            plays, tagged = still_in_the_game[env, agent] != 0, is_tagged[env, agent] != 0
            stays = plays and not (runner_exits and tagged)
            survives = stays and agent_types[agent] != 1 and out_of_time
            of_the_move = edge_hit_reward_penalty[env, agent] + step_rewards[agent]
            rewards[env, agent] = reward(plays, tagged, n_catches[env, agent], survives, of_the_move)
            still_in_the_game[env, agent] = stays
            if agent == 0:
                terminated[env] = nobody_left
                truncated[env] = out_of_time and not nobody_left
                _done_[env] = nobody_left or out_of_time

    @cuda.jit
    def start(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        speed: float32[:, :],
        direction: float32[:, :],
        acceleration: float32[:, :],
        edge_hit_reward_penalty: float32[:, :],
        still_in_the_game: int32[:, :],
        num_runners: int32[:],
        start_x: float32[:],
        start_y: float32[:],
        start_direction: float32[:],
        cell_count: int32[:, :],
        _done_: int32[:],
        _timestep_: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        restarts: int32[:],
        force: int32,
        n_envs: int32,
    ):
        """Put the agents of environments that ended, or of all, at their start; note which for what follows."""
        env, first = cuda.blockIdx.x // blocks_per_env, cuda.blockIdx.x % blocks_per_env * share
        ends = force != 0 or _done_[env] != 0
        for agent in range(first + cuda.threadIdx.x, min(first + share, n_agents), threads):
            if agent == 0:
                restarts[env] = ends
            if ends:
                x, y, heading = started(_episode_[env], env, agent, _reset_seed_, start_x, start_y, start_direction)
                loc_x[env, agent] = x
                loc_y[env, agent] = y
                direction[env, agent] = heading
                speed[env, agent] = ZERO
                acceleration[env, agent] = ZERO
                edge_hit_reward_penalty[env, agent] = ZERO
                still_in_the_game[env, agent] = 1
                if grid_search:
                    cuda.atomic.add(cell_count, (env, cell_of(True, x, y)), 1)
                if agent == 0:
                    num_runners[env] = n_agents - n_taggers
                    _timestep_[env] = 0

    kernels = (move, offsets, place, tag, observe, score, start)
    return {kernel.__name__: kernel for kernel in kernels}

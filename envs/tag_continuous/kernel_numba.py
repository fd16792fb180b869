"""Tag Continuous in Numba. Phases as in reference.py: move, tag, score, observe, start; layout as in kernel.cu."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import cuda, float32, int32, uint8, uint16

from envs.tag_continuous.agent_numba import (
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
from warpdrive_min.errors import ConfigError

AWAY: Final = np.float32(1e18)
"""Coordinates of who is out of the game: farther off than any neighbour can be."""


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants.

    Raises:
        ConfigError: The agents do not fit the shared memory of a block.
    """
    moved, started, reward, scale_of = agent_functions(c)
    threads, envs_per_block, auto_reset = c.THREADS, c.ENVS_PER_BLOCK, c.AUTO_RESET
    n_agents, n_taggers, n_observed, full = c.N_AGENTS, c.N_TAGGERS, c.N_OBSERVED, c.USE_FULL_OBSERVATION
    episode_length, runner_exits = c.EPISODE_LENGTH, c.RUNNER_EXITS
    reach_squared, edge_penalty = c.REACH_SQUARED, c.EDGE_HIT_PENALTY

    n_items = envs_per_block * n_agents
    slots = n_observed if full else min(n_observed, MAX_SLOTS)
    rounds = -(-n_observed // slots)
    columns = 7 * slots + 1
    lanes = math.gcd(32, threads)  # threads that write one row, each of them its columns
    length = np.float32(episode_length)
    crowd_bytes = 24 * n_items + 9 * envs_per_block
    batch = threads if full else min(threads, (SHARED_BYTES - crowd_bytes) // (2 * slots) // 32 * 32)
    if crowd_bytes > SHARED_BYTES or batch < 1:
        raise ConfigError(
            f"tag_continuous: {n_agents} agents do not fit the shared memory of a block "
            "(48 KiB, 24 bytes an agent); use fewer runners and taggers"
        )
    rows = 1 if full else batch

    @cuda.jit(device=True)
    def show(feature, in_game, is_tagger, local, agent, plays, tags, x, y, speed, acceleration, direction):
        """Put an agent where the others see it; with partial observations who is out of the game is seen by nobody."""
        is_away = not full and not plays
        feature[X, local, agent] = AWAY if is_away else x
        feature[Y, local, agent] = AWAY if is_away else y
        feature[SPEED, local, agent] = speed
        feature[ACCELERATION, local, agent] = acceleration
        feature[DIRECTION, local, agent] = direction
        in_game[local, agent] = plays
        is_tagger[local, agent] = tags

    @cuda.jit(device=True)
    def squared_distance(feature, local, a, b):
        dx = feature[X, local, a] - feature[X, local, b]
        dy = feature[Y, local, a] - feature[Y, local, b]
        return dx * dx + dy * dy

    @cuda.jit(device=True)
    def follows(distance, other, last_distance, last):
        """Tell whether an agent comes after the last one found, in the order by (distance, id)."""
        return rounds == 1 or distance > last_distance or (distance == last_distance and other > last)

    @cuda.jit(device=True)
    def find_nearest(feature, local, self, last, nearest, row):
        """Write the ids of the next nearest agents after ``last``: first how far they are, then who, then in order."""
        last_distance = -ONE if last == NOBODY else squared_distance(feature, local, last, self)
        distances = cuda.local.array(slots, float32)
        for slot in range(slots):
            distances[slot] = TOO_FAR
        for other in range(n_agents):
            distance = squared_distance(feature, local, other, self)
            if other != self and distance < distances[slots - 1] and follows(distance, other, last_distance, last):
                for back in range(slots - 1):
                    slot = slots - 1 - back
                    distances[slot] = min(distances[slot], max(distances[slot - 1], distance))
                distances[0] = min(distances[0], distance)

        limit = distances[slots - 1]
        n_at_limit = 0
        for slot in range(slots):
            n_at_limit += 1 if distances[slot] == limit else 0
        n_found = 0
        for other in range(n_agents):
            distance = squared_distance(feature, local, other, self)
            if (
                other != self
                and distance <= limit
                and n_found < slots
                and follows(distance, other, last_distance, last)
            ):
                if distance == limit:
                    n_at_limit -= 1
                if distance < limit or n_at_limit >= 0:
                    nearest[row, n_found] = other
                    n_found += 1
        for slot in range(n_found, slots):
            nearest[row, slot] = NOBODY

        ids = cuda.local.array(slots, int32)
        ranks = cuda.local.array(slots, int32)
        for slot in range(slots):
            ids[slot] = nearest[row, slot]
            ranks[slot] = 0
            distances[slot] = TOO_FAR if ids[slot] == NOBODY else squared_distance(feature, local, ids[slot], self)
        for later in range(slots):
            for earlier in range(slots):
                if earlier < later:
                    if distances[later] < distances[earlier]:
                        ranks[earlier] += 1
                    else:
                        ranks[later] += 1
        for slot in range(slots):
            nearest[row, ranks[slot]] = ids[slot]

    @cuda.jit(device=True)
    def seen(feature, in_game, is_tagger, progress, local, self, other, kind):
        """Return one entry of an observation: a feature of the agent ``other`` as ``self`` sees it."""
        sees = in_game[local, self] != 0
        if kind == TIME:
            return progress[local] if sees else ZERO
        if other == NOBODY:
            return ZERO
        if kind == TYPE:
            return float32(is_tagger[local, other])
        if kind == IN_GAME:
            return float32(in_game[local, other])
        if not sees:
            return ZERO
        return (feature[kind, local, other] - feature[kind, local, self]) * scale_of(kind)

    @cuda.jit(device=True)
    def observe(
        feature, in_game, is_tagger, progress, ended, nearest, n_envs, restarted, observations, final_observations
    ):
        """Write the rows of every environment, or only of those that restarted; ``batch`` agents search at a time."""
        for first in range(0, n_items, batch):
            n_rows = min(batch, n_items - first)
            for turn in range(rounds):
                if not full:
                    for row in range(cuda.threadIdx.x, n_rows, threads):
                        local, self = (first + row) // n_agents, (first + row) % n_agents
                        if cuda.blockIdx.x * envs_per_block + local < n_envs and not (restarted and ended[local] == 0):
                            last = NOBODY if turn == 0 else int32(nearest[row, slots - 1])
                            if in_game[local, self] != 0 and (turn == 0 or last != NOBODY):
                                find_nearest(feature, local, self, last, nearest, row)
                            else:
                                for slot in range(slots):
                                    nearest[row, slot] = NOBODY
                    cuda.syncthreads()
                for column in range(cuda.threadIdx.x % lanes, columns, lanes):
                    kind, slot = column // slots, column % slots
                    rank = turn * slots + slot
                    end = 0 if rank >= n_observed or (kind == TIME and turn > 0) else n_rows
                    for row in range(cuda.threadIdx.x // lanes, end, threads // lanes):
                        local, self = (first + row) // n_agents, (first + row) % n_agents
                        env = cuda.blockIdx.x * envs_per_block + local
                        if env >= n_envs or (restarted and ended[local] == 0):
                            continue
                        other = rank + (1 if rank >= self else 0) if full else int32(nearest[row, slot])
                        value = seen(feature, in_game, is_tagger, progress, local, self, other, kind)
                        if auto_reset and not restarted and ended[local] != 0:
                            final_observations[env, self, kind * n_observed + rank] = value
                        else:
                            observations[env, self, kind * n_observed + rank] = value
                cuda.syncthreads()

    @cuda.jit(device=True)
    def any_ended(ended, n_envs):
        """Tell, to all threads of the block alike, whether an environment of it ended."""
        found = False
        for local in range(envs_per_block):
            if cuda.blockIdx.x * envs_per_block + local < n_envs and ended[local] != 0:
                found = True
        return found

    @cuda.jit(device=True)
    def start(
        feature, in_game, is_tagger, progress, ended, n_envs,
        loc_x, loc_y, speed, direction, acceleration, edge_hit_reward_penalty, still_in_the_game, num_runners,
        agent_types, start_x, start_y, start_direction, _timestep_, _episode_, _reset_seed_,
    ):  # fmt: skip
        """Start the next episode of the environments of this block that ended."""
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and ended[local] != 0:
                x, y, heading = started(_episode_[env], env, agent, _reset_seed_, start_x, start_y, start_direction)
                loc_x[env, agent] = x
                loc_y[env, agent] = y
                direction[env, agent] = heading
                speed[env, agent] = ZERO
                acceleration[env, agent] = ZERO
                edge_hit_reward_penalty[env, agent] = ZERO
                still_in_the_game[env, agent] = 1
                show(
                    feature, in_game, is_tagger, local, agent, True, agent_types[agent] == 1, x, y, ZERO, ZERO, heading
                )
        cuda.syncthreads()
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs and ended[local] != 0:
                num_runners[env] = n_agents - n_taggers
                progress[local] = ZERO
                _timestep_[env] = 0
                _episode_[env] += 1
        cuda.syncthreads()

    @cuda.jit
    def step(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        speed: float32[:, :],
        direction: float32[:, :],
        acceleration: float32[:, :],
        edge_hit_reward_penalty: float32[:, :],
        still_in_the_game: int32[:, :],
        num_runners: int32[:],
        agent_types: int32[:],
        tagger_ids: int32[:],
        skill_levels: float32[:],
        step_rewards: float32[:],
        acceleration_actions: float32[:],
        turn_actions: float32[:],
        start_x: float32[:],
        start_y: float32[:],
        start_direction: float32[:],
        sampled_actions: int32[:, :, :],
        rewards: float32[:, :],
        observations: float32[:, :, :],
        final_observations: float32[:, :, :],
        terminated: int32[:],
        truncated: int32[:],
        _done_: int32[:],
        _timestep_: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        n_envs: int32,
    ):
        feature = cuda.shared.array((5, envs_per_block, n_agents), float32)
        tagged_by = cuda.shared.array((envs_per_block, n_agents), uint16)
        is_tagger = cuda.shared.array((envs_per_block, n_agents), uint8)
        in_game = cuda.shared.array((envs_per_block, n_agents), uint8)
        timestep = cuda.shared.array(envs_per_block, int32)
        progress = cuda.shared.array(envs_per_block, float32)
        ended = cuda.shared.array(envs_per_block, uint8)
        nearest = cuda.shared.array((rows, slots), uint16)

        # move
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                _timestep_[env] += 1
                timestep[local] = _timestep_[env]
                progress[local] = float32(_timestep_[env]) / length
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
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
                tags = agent_types[agent] == 1
                show(feature, in_game, is_tagger, local, agent, plays, tags, x, y, pace, kept_push, heading)
        cuda.syncthreads()

        # tag: each runner in the game looks for its nearest tagger in reach, the one of the lowest id among equals
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            if cuda.blockIdx.x * envs_per_block + local < n_envs:
                tagger = NOBODY
                if in_game[local, agent] != 0 and is_tagger[local, agent] == 0:
                    closest = reach_squared
                    for index in range(n_taggers):
                        other = tagger_ids[index]
                        distance = squared_distance(feature, local, other, agent)
                        if distance < closest:
                            closest = distance
                            tagger = other
                tagged_by[local, agent] = tagger
        cuda.syncthreads()

        # score
        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                n_left = num_runners[env]
                if runner_exits:
                    for agent in range(n_agents):
                        n_left -= 1 if tagged_by[local, agent] != NOBODY else 0
                nobody_left = n_left == 0
                out_of_time = timestep[local] >= episode_length
                num_runners[env] = n_left
                terminated[env] = nobody_left
                truncated[env] = out_of_time and not nobody_left
                _done_[env] = nobody_left or out_of_time
                ended[local] = nobody_left or out_of_time
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, agent = item // n_agents, item % n_agents
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                plays, tags = in_game[local, agent] != 0, is_tagger[local, agent] != 0
                is_tagged = tagged_by[local, agent] != NOBODY
                stays = plays and not (runner_exits and is_tagged)
                n_catches = 0
                if tags:
                    for runner in range(n_agents):
                        n_catches += 1 if tagged_by[local, runner] == agent else 0
                survives = stays and not tags and timestep[local] >= episode_length
                of_the_move = edge_hit_reward_penalty[env, agent] + step_rewards[agent]
                rewards[env, agent] = reward(plays, is_tagged, n_catches, survives, of_the_move)
                still_in_the_game[env, agent] = stays
        cuda.syncthreads()

        observe(feature, in_game, is_tagger, progress, ended, nearest, n_envs, False, observations, final_observations)
        if auto_reset and any_ended(ended, n_envs):
            start(
                feature, in_game, is_tagger, progress, ended, n_envs,
                loc_x, loc_y, speed, direction, acceleration, edge_hit_reward_penalty, still_in_the_game, num_runners,
                agent_types, start_x, start_y, start_direction, _timestep_, _episode_, _reset_seed_,
            )  # fmt: skip
            observe(
                feature, in_game, is_tagger, progress, ended, nearest, n_envs, True, observations, final_observations
            )

    @cuda.jit
    def reset(
        loc_x: float32[:, :],
        loc_y: float32[:, :],
        speed: float32[:, :],
        direction: float32[:, :],
        acceleration: float32[:, :],
        edge_hit_reward_penalty: float32[:, :],
        still_in_the_game: int32[:, :],
        num_runners: int32[:],
        agent_types: int32[:],
        start_x: float32[:],
        start_y: float32[:],
        start_direction: float32[:],
        observations: float32[:, :, :],
        _done_: int32[:],
        _timestep_: int32[:],
        _episode_: int32[:],
        _reset_seed_: int32[:],
        force: int32,
        n_envs: int32,
    ):
        feature = cuda.shared.array((5, envs_per_block, n_agents), float32)
        is_tagger = cuda.shared.array((envs_per_block, n_agents), uint8)
        in_game = cuda.shared.array((envs_per_block, n_agents), uint8)
        progress = cuda.shared.array(envs_per_block, float32)
        ended = cuda.shared.array(envs_per_block, uint8)
        nearest = cuda.shared.array((rows, slots), uint16)

        for local in range(cuda.threadIdx.x, envs_per_block, threads):
            env = cuda.blockIdx.x * envs_per_block + local
            if env < n_envs:
                ended[local] = force != 0 or _done_[env] != 0
                _done_[env] = 0
        cuda.syncthreads()
        if any_ended(ended, n_envs):
            start(
                feature, in_game, is_tagger, progress, ended, n_envs,
                loc_x, loc_y, speed, direction, acceleration, edge_hit_reward_penalty, still_in_the_game, num_runners,
                agent_types, start_x, start_y, start_direction, _timestep_, _episode_, _reset_seed_,
            )  # fmt: skip
            observe(feature, in_game, is_tagger, progress, ended, nearest, n_envs, True, observations, observations)

    return {"step": step, "reset": reset}

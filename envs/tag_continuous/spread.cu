// Tag Continuous for many agents: blocks share an environment, and a grid of cells finds neighbours.
//
// Phases as in reference.py, split into kernels where all blocks must synchronise (env.py lists the sequences):
// move, parts, offsets, place, tag, observe, score; for a restart start, parts, offsets, place, observe.
//
// `place` sorts the agents by cell: a counting sort, whose order within a cell may differ from run to run; no result
// depends on it. It writes an agent's position and `features`, which others observe, at the agent's slot, so that those of
// neighbours are near each other. Agents out of the game are in one of OUT_CELLS last cells, which nobody searches. Without
// GRID_SEARCH an agent's slot is its id, and every search covers all agents.

constexpr int NOBODY = 0x7fffffff;

#include "cells.cuh"

constexpr int ROW = SLOTS | 1;        // slots of a round; an odd number of banks avoids conflicts
constexpr int ALL_CELLS = N_CELLS + OUT_CELLS;

// Values of an agent that others observe, by `Feature`, and its id.
constexpr int ID = TIME;

struct WD_ALIGN(16) Seen {
  float of[N_SEEN];
};

WD_FN Seen seen_as(int id, const Agent& agent, bool tags, bool in_game) {
  return {agent.x,         agent.y,           agent.speed,          agent.acceleration,
          agent.direction, tags ? 1.f : 0.f, in_game ? 1.f : 0.f, __int_as_float(id)};
}

WD_FN void show(float* position, float* features, int id, const Agent& agent, bool tags, bool in_game) {
  wd_store(position, Position{agent.x, agent.y});
  wd_store(features, seen_as(id, agent, tags, in_game));
}

// Writes the features of an agent at its slot. Two lanes write a row together, as memory takes 32 bytes as fast as 16.
WD_FN void place_features(float (*features)[N_SEEN], int slot, const Seen& seen) {
#if defined(__CUDACC__)
  if (__activemask() == ~0u) {
    constexpr int HALF = N_SEEN / 2;
    struct WD_ALIGN(16) Half {
      float of[HALF];
    } of_even, of_odd;
    const int odd = WD_THREAD % 2, others_slot = __shfl_xor_sync(~0u, slot, 1);
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float first = seen.of[i], second = seen.of[HALF + i];
      const float kept = odd ? second : first, got = __shfl_xor_sync(~0u, odd ? first : second, 1);
      of_even.of[i] = odd ? got : kept;
      of_odd.of[i] = odd ? kept : got;
    }
    wd_store(features[odd ? others_slot : slot] + odd * HALF, of_even);
    wd_store(features[odd ? slot : others_slot] + odd * HALF, of_odd);
    return;
  }
#endif
  wd_store(features[slot], seen);
}

// Agents out of the game share a cell with those of near ids, whose rows are near, too.
WD_FN int cell_of(int agent, bool in_game, float x, float y) {
  return in_game ? grid_with(CELLS_PER_SIDE).cell_at(x, y) : N_CELLS + agent / ((N_AGENTS + OUT_CELLS - 1) / OUT_CELLS);
}

// Counts an agent in its cell; returns how many came before. A warp counts those of a cell at once, as thousands that are
// out of the game would queue up at one count.
WD_FN int counted(int* const cells, const int cell) {
#if defined(__CUDACC__)
  const unsigned together = __match_any_sync(__activemask(), cell), before = together & ((1u << WD_THREAD % 32) - 1u);
  const int first_lane = __ffs(together) - 1;
  const int n = before == 0u ? WD_ATOMIC_ADD(cells + cell, __popc(together)) : 0;
  return __shfl_sync(together, n, first_lane) + __popc(before);
#else
  return WD_ATOMIC_ADD(cells + cell, 1);
#endif
}

// ---------------------------------------------------------------------------------------------- move

WD_KERNEL(move)(float (*loc_x)[N_AGENTS], float (*loc_y)[N_AGENTS], float (*speed)[N_AGENTS],
                float (*direction)[N_AGENTS], float (*acceleration)[N_AGENTS],
                float (*edge_hit_reward_penalty)[N_AGENTS], const int (*still_in_the_game)[N_AGENTS],
                int (*is_tagged)[N_AGENTS], int (*n_catches)[N_AGENTS], int (*cell_count)[ALL_CELLS],
                int (*rank_in_cell)[N_AGENTS], float (*positions)[N_AGENTS][2], float (*features)[N_AGENTS][N_SEEN],
                const int* agent_types, const float* skill_levels, const float* acceleration_actions,
                const float* turn_actions, const int (*sampled_actions)[N_AGENTS][2], int* _timestep_, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const bool in_game = still_in_the_game[env][agent];
    const Agent before = {loc_x[env][agent], loc_y[env][agent], speed[env][agent], acceleration[env][agent],
                          direction[env][agent]};
    bool hits_edge;
    const Agent after = moved(before, in_game, acceleration_actions[sampled_actions[env][agent][0]],
                              turn_actions[sampled_actions[env][agent][1]], skill_levels[agent], hits_edge);
    loc_x[env][agent] = after.x;
    loc_y[env][agent] = after.y;
    speed[env][agent] = after.speed;
    direction[env][agent] = after.direction;
    acceleration[env][agent] = after.acceleration;
    edge_hit_reward_penalty[env][agent] = hits_edge ? EDGE_HIT_PENALTY : 0.f;
    is_tagged[env][agent] = n_catches[env][agent] = 0;
    if (GRID_SEARCH)
      rank_in_cell[env][agent] = counted(cell_count[env], cell_of(agent, in_game, after.x, after.y));
    else
      show(positions[env][agent], features[env][agent], agent, after, agent_types[agent] == 1, in_game);
    if (agent == 0) _timestep_[env] += 1;
  }
}

// ---------------------------------------------------------------------------------------------- cells

// Cells are summed in CELL_PARTS parts; a small grid has one, whose block needs no other block's sum.
constexpr int CELLS_OF_A_PART = (ALL_CELLS + CELL_PARTS - 1) / CELL_PARTS;

// Returns the prefix sum of the threads' values; `sums` belongs to the block, which synchronises. Afterwards its last
// entry is the total.
WD_FN int sum_up_to(int* sums, int value) {
  WD_SYNC();
  sums[WD_THREAD] = value;
  WD_SYNC();
  for (int reach = 1; reach < WD_STRIDE; reach *= 2) {
    const int more = WD_THREAD >= reach ? sums[WD_THREAD - reach] : 0;
    WD_SYNC();
    sums[WD_THREAD] += more;
    WD_SYNC();
  }
  return sums[WD_THREAD];
}

// Counts the agents in each part of the cells.
WD_KERNEL(parts)(const int (*cell_count)[ALL_CELLS], int (*part_count)[CELL_PARTS], const int* restarts, int restarted,
                 int n_envs) {
  WD_SHARED int sums[WD_STRIDE];
  const int env = WD_FIRST_ENV;
  if (env >= n_envs || (restarted && !restarts[env])) return;
  for (int part = WD_PART; part < CELL_PARTS; part += BLOCKS_PER_ENV) {
    const int first = part * CELLS_OF_A_PART, end = wd_min(first + CELLS_OF_A_PART, ALL_CELLS);
    int sum = 0;
    for (int cell = first + WD_THREAD; cell < end; cell += WD_STRIDE) sum += cell_count[env][cell];
    sum_up_to(sums, sum);
    if (WD_THREAD == 0) part_count[env][part] = sums[WD_STRIDE - 1];
  }
}

// Writes the first slot of each cell: sums of earlier counts. Each thread handles a run of cells. Resets the counts to 0.
WD_KERNEL(offsets)(int (*cell_count)[ALL_CELLS], int (*cell_start)[ALL_CELLS],
                   const int (*part_count)[CELL_PARTS], const int* restarts, int restarted, int n_envs) {
  constexpr int RUN = (CELLS_OF_A_PART + WD_STRIDE - 1) / WD_STRIDE;
  WD_SHARED int sums[WD_STRIDE];
  const int env = WD_FIRST_ENV;
  if (env >= n_envs || (restarted && !restarts[env])) return;
  for (int part = WD_PART; part < CELL_PARTS; part += BLOCKS_PER_ENV) {
    int before = 0;  // agents in earlier parts
    if (CELL_PARTS > 1) {
      for (int earlier = WD_THREAD; earlier < part; earlier += WD_STRIDE) before += part_count[env][earlier];
      sum_up_to(sums, before);
      before = sums[WD_STRIDE - 1];
    }
    const int end_of_part = wd_min((part + 1) * CELLS_OF_A_PART, ALL_CELLS);
    const int first = part * CELLS_OF_A_PART + WD_THREAD * RUN, end = wd_min(first + RUN, end_of_part);
    int sum = 0;
    for (int cell = first; cell < end; ++cell) sum += cell_count[env][cell];
    int slot = before + sum_up_to(sums, sum) - sum;
    for (int cell = first; cell < end; ++cell) {
      cell_start[env][cell] = slot;
      slot += cell_count[env][cell];
      cell_count[env][cell] = 0;
    }
  }
}

// Sorts the agents by cell.
WD_KERNEL(place)(const float (*loc_x)[N_AGENTS], const float (*loc_y)[N_AGENTS], const float (*speed)[N_AGENTS],
                 const float (*direction)[N_AGENTS], const float (*acceleration)[N_AGENTS],
                 const int (*still_in_the_game)[N_AGENTS], const int* agent_types, const int (*cell_start)[ALL_CELLS],
                 const int (*rank_in_cell)[N_AGENTS], float (*positions)[N_AGENTS][2],
                 float (*features)[N_AGENTS][N_SEEN], const int* restarts, int restarted, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    if (restarted && !restarts[env]) continue;
    const Agent placed = {loc_x[env][agent], loc_y[env][agent], speed[env][agent], acceleration[env][agent],
                          direction[env][agent]};
    const bool in_game = still_in_the_game[env][agent];
    const int slot = cell_start[env][cell_of(agent, in_game, placed.x, placed.y)] + rank_in_cell[env][agent];
    wd_store(positions[env][slot], Position{placed.x, placed.y});
    place_features(features[env], slot, seen_as(agent, placed, agent_types[agent] == 1, in_game));
  }
}

// Searchable agents.
struct Sorted {
  const float (*positions)[2];
  const float (*features)[N_SEEN];
  const int* cell_start;

  WD_METHOD Seen seen(int slot) const { return wd_load<Seen>(features[slot]); }
  WD_METHOD Position position(int slot) const { return wd_load<Position>(positions[slot]); }
  WD_METHOD Grid grid() const { return grid_with(CELLS_PER_SIDE); }
  WD_METHOD int id(int slot) const { return __float_as_int(features[slot][ID]); }
  WD_METHOD int found(int slot) const { return slot; }
  WD_METHOD bool is_seen(int slot) const { return GRID_SEARCH || features[slot][IN_GAME] != 0.f; }
  WD_METHOD bool tags(int slot) const { return features[slot][TYPE] != 0.f; }
  WD_METHOD int first(int cell) const { return cell_start[cell]; }
};

// ---------------------------------------------------------------------------------------------- tag

// Finds the nearest tagger in reach of each runner in the game, the lowest id among equals.
WD_KERNEL(tag)(const float (*positions)[N_AGENTS][2], const float (*features)[N_AGENTS][N_SEEN],
               const int* tagger_ids, const int (*cell_start)[ALL_CELLS], int (*is_tagged)[N_AGENTS],
               int (*n_catches)[N_AGENTS], int* num_runners, int n_envs) {
  WD_EACH_AGENT(local, env, slot) {
    const Sorted agents = {positions[env], features[env], cell_start[env]};
    const Seen self = agents.seen(slot);
    if (self.of[IN_GAME] == 0.f || self.of[TYPE] != 0.f) continue;
    int tagger = NOBODY;
    if (GRID_SEARCH) {
      tagger = find_tagger(agents, self.of[X], self.of[Y]);
    } else {
      float nearest = REACH_SQUARED;
      for (int index = 0; index < N_TAGGERS; ++index) {
        const int other = tagger_ids[index];
        const Position place = agents.position(other);
        const float distance = squared(place.x - self.of[X], place.y - self.of[Y]);
        if (distance < nearest) {
          nearest = distance;
          tagger = other;
        }
      }
    }
    if (tagger == NOBODY) continue;
    is_tagged[env][__float_as_int(self.of[ID])] = 1;
    WD_ATOMIC_ADD(&n_catches[env][tagger], 1);
    if (RUNNER_EXITS) WD_ATOMIC_ADD(&num_runners[env], -1);
  }
}

// ---------------------------------------------------------------------------------------------- observe

// A team is a warp. It takes the agents of TEAM_SLOTS slots at a time: each lane finds the neighbours of one. Then it writes
// their rows, ROWS at a time: PARTS lanes compute a row in shared memory, and all lanes copy it. A row fills whole lines of
// memory, but rows of neighbours in space are far apart.
#if defined(__CUDACC__)
constexpr int LANES = 32, ROWS = USE_FULL_OBSERVATION ? 1 : 8;
WD_FN void team_sync() { __syncwarp(); }
WD_FN int of_lane(int lane, int value) { return __shfl_sync(~0u, value, lane); }
#else
constexpr int LANES = 1, ROWS = 1;
WD_FN void team_sync() {}
WD_FN int of_lane(int, int value) { return value; }
#endif
constexpr bool FEW = LANES > 1 && !USE_FULL_OBSERVATION && SLOTS <= 10;  // a lane has registers for its neighbours
constexpr int TEAMS = WD_STRIDE / LANES, TEAM_SLOTS = 32, PARTS = LANES / ROWS;
constexpr int WIDTH = USE_FULL_OBSERVATION ? 1 : TIME * SLOTS + 1;  // entries of a row that a round writes
constexpr int LINES = (WIDTH + 2 * (LANES - 1)) / LANES;              // lines of memory that they may touch

// Writes the slots of an agent's next neighbours, NOBODY for missing ones.
WD_FN void find_neighbours(const Sorted& agents, int slot, int round, int* nearest) {
  const Seen self = agents.seen(slot);
  const int before = round == 0 ? NOBODY : nearest[SLOTS - 1];
  if (self.of[IN_GAME] == 0.f || (round > 0 && before == NOBODY)) {
    for (int i = 0; i < SLOTS; ++i) nearest[i] = NOBODY;
    return;
  }
  const Position last = agents.position(before == NOBODY ? slot : before);
  const Search<Sorted> search = {agents, slot, before == NOBODY ? NOBODY : agents.id(before), self.of[X], self.of[Y],
                                 squared(last.x - self.of[X], last.y - self.of[Y])};
  if (GRID_SEARCH)
    search.find_in_cells(nearest);
  else
    search.find_among_all(nearest);
}

// Writes the entries of one neighbour, each `stride` after the last. A missing one has zeros.
WD_FN void write_neighbour(const Seen& self, const Seen& neighbour, bool is_there, float* entries, int stride) {
  const bool sees = is_there && self.of[IN_GAME] != 0.f;
#pragma unroll
  for (int kind = X; kind < TYPE; ++kind)
    entries[kind * stride] = sees ? (neighbour.of[kind] - self.of[kind]) * scale_of(kind) : 0.f;
  entries[TYPE * stride] = is_there ? neighbour.of[TYPE] : 0.f;
  entries[IN_GAME * stride] = is_there ? neighbour.of[IN_GAME] : 0.f;
}

// Writes a lane's part of the entries of an agent's row. `neighbour(rank)` is a slot, or NOBODY. Of few neighbours a lane
// reads all before it writes any. If it has fewer than others, it repeats its first, without branches.
template <class Neighbour>
WD_FN void write_entries(const Sorted& agents, const Seen& self, int slot, int part, float* entries,
                         const Neighbour& neighbour) {
  constexpr int AT_ONCE = FEW ? (SLOTS + PARTS - 1) / PARTS : 1;
  for (int first = part; first < SLOTS; first += AT_ONCE * PARTS) {
    Seen seen[AT_ONCE];
    bool is_there[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int rank = first + i * PARTS, other = neighbour(rank < SLOTS ? rank : first);
      is_there[i] = other != NOBODY;
      seen[i] = agents.seen(is_there[i] ? other : slot);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int rank = first + i * PARTS;
      write_neighbour(self, seen[i], is_there[i], entries + (rank < SLOTS ? rank : first), SLOTS);
    }
  }
}

// Copies a round's entries to an observation, from the beginning of a line of memory, so that each store fills one line.
WD_FN void copy_row(const float* entries, int n_entries, float* observation, int round, int lane) {
  const int first = lane - static_cast<int>(reinterpret_cast<unsigned long long>(observation) / sizeof(float) % LANES);
  float* const to = observation + first;
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const int entry = first + line * LANES, kind = entry / SLOTS;
    const int rank = entry % SLOTS + (kind < TIME ? round * SLOTS : 0), column = kind * N_OBSERVED + rank;
    if (0 <= entry && entry < n_entries && rank < N_OBSERVED) to[line * LANES + (column - entry)] = entries[entry];
  }
}

// From here on, registers for few neighbours: at most those that let a multiprocessor run 1,024 threads. Without a limit the
// compiler may take fewer, and spill.
#undef WD_BLOCKS_AT_ONCE
#define WD_BLOCKS_AT_ONCE (FEW && THREADS >= 256 ? 1024 / THREADS : 0)

// Writes the rows of every environment, or only of restarted ones. The last kernel of a restart: it counts the episode.
WD_KERNEL(observe)(const float (*positions)[N_AGENTS][2], const float (*features)[N_AGENTS][N_SEEN],
                   const int* num_runners, const int (*cell_start)[ALL_CELLS], float (*observations)[N_AGENTS][N_FEATURES],
                   float (*final_observations)[N_AGENTS][N_FEATURES], const int* _timestep_, int* _done_, int* _episode_,
                   const int* restarts, int restarted, int clears_done, int n_envs) {
  WD_SHARED int neighbours[TEAMS][USE_FULL_OBSERVATION ? 1 : TEAM_SLOTS][ROW];
  WD_SHARED float rows[TEAMS][ROWS][WIDTH | 1];
  const unsigned thread = WD_THREAD;
  const int env = WD_FIRST_ENV, team = thread / LANES, lane = thread % LANES, part = thread % PARTS;
  if (env >= n_envs || (restarted && !restarts[env])) return;
  const int timestep = _timestep_[env];
  const bool is_final = AUTO_RESET && !restarted && (num_runners[env] == 0 || timestep >= EPISODE_LENGTH);
  const float progress = static_cast<float>(timestep) / static_cast<float>(EPISODE_LENGTH);
  float (*const target)[N_FEATURES] = is_final ? final_observations[env] : observations[env];
  const Sorted agents = {positions[env], features[env], cell_start[env]};

  for (int first = WD_FIRST_ITEM + team * TEAM_SLOTS; first < WD_END_ITEM; first += TEAMS * TEAM_SLOTS) {
    const int end = wd_min(first + TEAM_SLOTS, WD_END_ITEM);
    for (int round = 0; round < ROUNDS; ++round) {
      if (!USE_FULL_OBSERVATION) {
        for (int slot = first + lane; slot < end; slot += LANES)
          find_neighbours(agents, slot, round, neighbours[team][slot - first]);
        team_sync();
      }
      for (int from = first; from < end; from += ROWS) {
        const int slot = wd_min(from + lane / PARTS, end - 1);  // rows beyond the last one repeat it
        const Seen self = agents.seen(slot);
        float* const entries = USE_FULL_OBSERVATION ? target[slot] : rows[team][lane / PARTS];
        write_entries(agents, self, slot, part, entries, [&](int rank) {
          return USE_FULL_OBSERVATION ? rank + (rank >= slot) : neighbours[team][slot - first][rank];
        });
        if (part == 0) entries[TIME * SLOTS] = self.of[IN_GAME] != 0.f ? progress : 0.f;
        if (USE_FULL_OBSERVATION) continue;
        team_sync();
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
          const int id = of_lane(row * PARTS, __float_as_int(self.of[ID]));
          copy_row(rows[team][row], from + row < end ? WIDTH : 0, target[id], round, lane);
        }
        team_sync();
      }
    }
  }
  if (restarted && WD_PART == 0 && WD_THREAD == 0) {
    _episode_[env] += 1;
    if (clears_done) _done_[env] = 0;
  }
}

// ---------------------------------------------------------------------------------------------- score

WD_KERNEL(score)(const float (*edge_hit_reward_penalty)[N_AGENTS], int (*still_in_the_game)[N_AGENTS],
                 const int (*is_tagged)[N_AGENTS], const int (*n_catches)[N_AGENTS], const int* num_runners,
                 const int* agent_types, const float* step_rewards, float (*rewards)[N_AGENTS], int* terminated,
                 int* truncated, int* _done_, const int* _timestep_, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const bool nobody_left = num_runners[env] == 0, out_of_time = _timestep_[env] >= EPISODE_LENGTH;
    const bool in_game = still_in_the_game[env][agent], tagged = is_tagged[env][agent];
    const bool stays = in_game && !(RUNNER_EXITS && tagged);
    const bool survives = stays && agent_types[agent] != 1 && out_of_time;
    const float of_the_move = edge_hit_reward_penalty[env][agent] + step_rewards[agent];
    rewards[env][agent] = reward(in_game, tagged, n_catches[env][agent], survives, of_the_move);
    still_in_the_game[env][agent] = stays;
    if (agent == 0) {
      terminated[env] = nobody_left;
      truncated[env] = out_of_time && !nobody_left;
      _done_[env] = nobody_left || out_of_time;
    }
  }
}

// ---------------------------------------------------------------------------------------------- start

// Sets the agents of ended (or all) environments to their start; `restarts` marks them for the following kernels.
WD_KERNEL(start)(float (*loc_x)[N_AGENTS], float (*loc_y)[N_AGENTS], float (*speed)[N_AGENTS],
                 float (*direction)[N_AGENTS], float (*acceleration)[N_AGENTS],
                 float (*edge_hit_reward_penalty)[N_AGENTS], int (*still_in_the_game)[N_AGENTS], int* num_runners,
                 const float* start_x, const float* start_y, const float* start_direction,
                 int (*cell_count)[ALL_CELLS], int (*rank_in_cell)[N_AGENTS], float (*positions)[N_AGENTS][2],
                 float (*features)[N_AGENTS][N_SEEN], const int* agent_types, const int* _done_, int* _timestep_,
                 const int* _episode_, const int* _reset_seed_, int* restarts, int force, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const bool ends = force || _done_[env];
    if (agent == 0) restarts[env] = ends;
    if (!ends) continue;
    const Agent first = started(_episode_[env], env, agent, _reset_seed_, start_x, start_y, start_direction);
    loc_x[env][agent] = first.x;
    loc_y[env][agent] = first.y;
    direction[env][agent] = first.direction;
    speed[env][agent] = acceleration[env][agent] = edge_hit_reward_penalty[env][agent] = 0.f;
    still_in_the_game[env][agent] = 1;
    if (GRID_SEARCH)
      rank_in_cell[env][agent] = counted(cell_count[env], cell_of(agent, true, first.x, first.y));
    else
      show(positions[env][agent], features[env][agent], agent, first, agent_types[agent] == 1, true);
    if (agent == 0) {
      num_runners[env] = N_AGENTS - N_TAGGERS;
      _timestep_[env] = 0;
    }
  }
}

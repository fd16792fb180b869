// Tag Continuous for many agents: blocks share an environment, and a grid of cells finds neighbours.
//
// Phases as in reference.py, split into kernels where all blocks must synchronise (env.py lists the sequences):
// move, parts, offsets, place, tag, observe, score; for a restart start, parts, offsets, place, observe.
//
// `features` holds an agent's values in one row, because rows gather them from agents all over the environment: two
// accesses of 16 bytes instead of seven.
//
// `place` sorts the agents by cell: a counting sort, whose order within a cell may differ from run to run; no result
// depends on it. Agents out of the game are in one of OUT_CELLS last cells, which nobody searches. Without
// GRID_SEARCH every search covers all agents.

constexpr int NOBODY = 0x7fffffff;

#include "cells.cuh"

constexpr int ROW = SLOTS | 1;        // ids of a round; an odd number of banks avoids conflicts
constexpr int ALL_CELLS = N_CELLS + OUT_CELLS;

// Values of an agent that others observe, by `Feature`; the last one is for alignment.
struct WD_ALIGN(16) Seen {
  float of[N_SEEN];
};

WD_FN void show(float* features, const Agent& agent, bool tags, bool in_game) {
  const Seen seen = {agent.x,         agent.y,           agent.speed,          agent.acceleration,
                     agent.direction, tags ? 1.f : 0.f, in_game ? 1.f : 0.f, 0.f};
  wd_store(features, seen);
}

WD_FN int cell_of(int agent, bool in_game, float x, float y) {
  return in_game ? cell_at(x, y) : N_CELLS + agent % OUT_CELLS;
}

// ---------------------------------------------------------------------------------------------- move

WD_KERNEL(move)(float (*loc_x)[N_AGENTS], float (*loc_y)[N_AGENTS], float (*speed)[N_AGENTS],
                float (*direction)[N_AGENTS], float (*acceleration)[N_AGENTS],
                float (*edge_hit_reward_penalty)[N_AGENTS], const int (*still_in_the_game)[N_AGENTS],
                int (*n_catches)[N_AGENTS], int (*cell_count)[ALL_CELLS], float (*features)[N_AGENTS][N_SEEN],
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
    n_catches[env][agent] = 0;
    show(features[env][agent], after, agent_types[agent] == 1, in_game);
    if (GRID_SEARCH) WD_ATOMIC_ADD(&cell_count[env][cell_of(agent, in_game, after.x, after.y)], 1);
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

// Writes the first slot of each cell: sums of earlier counts. Each thread handles a run of cells.
WD_KERNEL(offsets)(const int (*cell_count)[ALL_CELLS], int (*cell_start)[ALL_CELLS],
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
    }
  }
}

// Sorts the agents by cell, and resets the counts to 0.
WD_KERNEL(place)(const float (*loc_x)[N_AGENTS], const float (*loc_y)[N_AGENTS],
                 const int (*still_in_the_game)[N_AGENTS], int (*cell_count)[ALL_CELLS],
                 const int (*cell_start)[ALL_CELLS], int (*slot_agent)[N_AGENTS], float (*slot_x)[N_AGENTS],
                 float (*slot_y)[N_AGENTS], const int* restarts, int restarted, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    if (restarted && !restarts[env]) continue;
    const float x = loc_x[env][agent], y = loc_y[env][agent];
    const int cell = cell_of(agent, still_in_the_game[env][agent], x, y);
    const int slot = cell_start[env][cell] + WD_ATOMIC_ADD(&cell_count[env][cell], -1) - 1;
    slot_agent[env][slot] = agent;
    slot_x[env][slot] = x;
    slot_y[env][slot] = y;
  }
}

// Searchable agents.
struct Sorted {
  const int *cell_start, *slot_agent, *in_game, *agent_types;
  const float *xs, *ys;

  WD_METHOD float x(int slot) const { return xs[slot]; }
  WD_METHOD float y(int slot) const { return ys[slot]; }
  WD_METHOD int id(int slot) const { return GRID_SEARCH ? slot_agent[slot] : slot; }
  WD_METHOD bool is_seen(int slot) const { return GRID_SEARCH || in_game[slot]; }
  WD_METHOD bool tags(int slot) const { return agent_types[id(slot)] == 1; }
  WD_METHOD int first(int cell) const { return cell_start[cell]; }
};

// ---------------------------------------------------------------------------------------------- tag

// Finds the nearest tagger in reach of each runner in the game, the lowest id among equals.
WD_KERNEL(tag)(const float (*loc_x)[N_AGENTS], const float (*loc_y)[N_AGENTS],
               const int (*still_in_the_game)[N_AGENTS], const int* agent_types, const int* tagger_ids,
               const int (*cell_start)[ALL_CELLS], const int (*slot_agent)[N_AGENTS],
               const float (*slot_x)[N_AGENTS], const float (*slot_y)[N_AGENTS], int (*is_tagged)[N_AGENTS],
               int (*n_catches)[N_AGENTS], int* num_runners, int n_envs) {
  WD_EACH_AGENT(local, env, slot) {
    const int self = GRID_SEARCH ? slot_agent[env][slot] : slot;
    int tagger = NOBODY;
    if (still_in_the_game[env][self] && agent_types[self] != 1) {
      const float x = loc_x[env][self], y = loc_y[env][self];
      if (GRID_SEARCH) {
        tagger = find_tagger(Sorted{cell_start[env], slot_agent[env], still_in_the_game[env], agent_types, slot_x[env],
                                    slot_y[env]},
                             x, y);
      } else {
        float nearest = REACH_SQUARED;
        for (int index = 0; index < N_TAGGERS; ++index) {
          const int other = tagger_ids[index];
          const float distance = squared(loc_x[env][other] - x, loc_y[env][other] - y);
          if (distance < nearest) {
            nearest = distance;
            tagger = other;
          }
        }
      }
    }
    is_tagged[env][self] = tagger != NOBODY;
    if (tagger != NOBODY) {
      WD_ATOMIC_ADD(&n_catches[env][tagger], 1);
      if (RUNNER_EXITS) WD_ATOMIC_ADD(&num_runners[env], -1);
    }
  }
}

// ---------------------------------------------------------------------------------------------- observe

// Writes the rows of every environment, or only of restarted ones, THREADS agents at a time: each thread finds one
// agent's neighbours, then all write these agents' rows. The last kernel of a restart: it counts the episode.
WD_KERNEL(observe)(const float (*loc_x)[N_AGENTS], const float (*loc_y)[N_AGENTS],
                   const int (*still_in_the_game)[N_AGENTS], const float (*features)[N_AGENTS][N_SEEN],
                   const int* num_runners, const int (*cell_start)[ALL_CELLS], const int (*slot_agent)[N_AGENTS],
                   const float (*slot_x)[N_AGENTS], const float (*slot_y)[N_AGENTS],
                   float (*observations)[N_AGENTS][N_FEATURES], float (*final_observations)[N_AGENTS][N_FEATURES],
                   const int* _timestep_, int* _done_, int* _episode_, const int* restarts, int restarted,
                   int clears_done, int n_envs) {
  WD_SHARED int neighbours[USE_FULL_OBSERVATION ? 1 : THREADS][ROW];
  const int env = WD_FIRST_ENV;
  if (env >= n_envs || (restarted && !restarts[env])) return;
  const int timestep = _timestep_[env];
  const bool is_final = AUTO_RESET && !restarted && (num_runners[env] == 0 || timestep >= EPISODE_LENGTH);
  const float progress = static_cast<float>(timestep) / static_cast<float>(EPISODE_LENGTH);
  float (*const target)[N_FEATURES] = is_final ? final_observations[env] : observations[env];

  constexpr int N_BATCHES = (WD_ITEMS_OF_A_PART + THREADS - 1) / THREADS;
  for (int batch = 0; batch < N_BATCHES; ++batch) {  // all blocks share this bound; some of the last part are empty
    const int first = WD_FIRST_ITEM + batch * THREADS;
    const int n_rows = wd_min(THREADS, WD_END_ITEM - first);
    for (int round = 0; round < ROUNDS; ++round) {
      if (!USE_FULL_OBSERVATION) {
        for (int row = WD_THREAD; row < n_rows; row += WD_STRIDE) {
          const int self = GRID_SEARCH ? slot_agent[env][first + row] : first + row;
          const float x = GRID_SEARCH ? slot_x[env][first + row] : loc_x[env][self];
          const float y = GRID_SEARCH ? slot_y[env][first + row] : loc_y[env][self];
          const int last = round == 0 ? NOBODY : neighbours[row][SLOTS - 1];
          if (still_in_the_game[env][self] && (round == 0 || last != NOBODY)) {
            const Sorted agents = {cell_start[env], slot_agent[env], still_in_the_game[env], nullptr,
                                   GRID_SEARCH ? slot_x[env] : loc_x[env], GRID_SEARCH ? slot_y[env] : loc_y[env]};
            const float to_last = last == NOBODY ? 0.f : squared(loc_x[env][last] - x, loc_y[env][last] - y);
            const Search<Sorted> search = {agents, first + row, last, x, y, to_last};
            if (GRID_SEARCH)
              search.find_in_cells(neighbours[row]);
            else
              search.find_among_all(neighbours[row]);
          } else {
            for (int slot = 0; slot < SLOTS; ++slot) neighbours[row][slot] = NOBODY;
          }
        }
        WD_SYNC();
      }
      for (int item = WD_THREAD; item < n_rows * SLOTS; item += WD_STRIDE) {  // a thread writes all features of a neighbour
        const int row = item / SLOTS, slot = item % SLOTS, rank = round * SLOTS + slot;
        if (rank >= N_OBSERVED) continue;
        const int self = GRID_SEARCH ? slot_agent[env][first + row] : first + row;
        const int other = USE_FULL_OBSERVATION ? rank + (rank >= self) : neighbours[row][slot];
        const bool is_there = other != NOBODY;
        const Seen own = wd_load<Seen>(features[env][self]);
        const Seen neighbour = wd_load<Seen>(features[env][is_there ? other : self]);
        const bool sees = own.of[IN_GAME] != 0.f;
#pragma unroll
        for (int kind = X; kind < TYPE; ++kind) {
          target[self][kind * N_OBSERVED + rank] =
              is_there && sees ? (neighbour.of[kind] - own.of[kind]) * scale_of(kind) : 0.f;
        }
        target[self][TYPE * N_OBSERVED + rank] = is_there ? neighbour.of[TYPE] : 0.f;
        target[self][IN_GAME * N_OBSERVED + rank] = is_there ? neighbour.of[IN_GAME] : 0.f;
        if (rank == 0) target[self][TIME * N_OBSERVED] = sees ? progress : 0.f;
      }
      WD_SYNC();
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
                 int (*cell_count)[ALL_CELLS], float (*features)[N_AGENTS][N_SEEN], const int* agent_types,
                 const int* _done_, int* _timestep_, const int* _episode_, const int* _reset_seed_, int* restarts, int force,
                 int n_envs) {
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
    show(features[env][agent], first, agent_types[agent] == 1, true);
    if (GRID_SEARCH) WD_ATOMIC_ADD(&cell_count[env][cell_of(agent, true, first.x, first.y)], 1);
    if (agent == 0) {
      num_runners[env] = N_AGENTS - N_TAGGERS;
      _timestep_[env] = 0;
    }
  }
}

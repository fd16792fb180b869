// Tag Continuous. Phases as in reference.py: move, tag, score, observe, start.
//
// Values that agents read of each other (positions, speeds, flags) are in shared memory, so global memory needs no
// scratch: 23 bytes per agent, and a buffer of neighbours for the currently observing agents. With GRID_SEARCH, for
// many agents, all are sorted by cell before the search. Else a GPU first lists the agents in the game (10 bytes per
// agent), because most agents leave during an episode.

constexpr int NOBODY = 0xffff;                    // ids have 16 bits

#include "cells.cuh"

constexpr int ROW = 2 * (((SLOTS + 1) / 2) | 1);  // ids of a round; an odd number of banks avoids conflicts

constexpr int N_ITEMS = ENVS_PER_BLOCK * N_AGENTS;
constexpr int ROOM = (N_AGENTS + 3) / 4 * 4;  // agents of an environment, padded for 16-byte loads

enum Flag { IS_TAGGER, PLAYS, IS_TAGGED, N_FLAGS };

#if defined(__CUDACC__)
constexpr bool LISTS = !USE_FULL_OBSERVATION && !GRID_SEARCH && N_AGENTS <= 1024;
#else
constexpr bool LISTS = false;
#endif

WD_FN constexpr int rounded_up(int n, int unit) { return (n + unit - 1) / unit * unit; }
constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }  // the least, from n

// A search by keys (below) sorts GROUP candidates at a time: at least the neighbours, the agent itself and one more.
constexpr bool HAS_KEYS = LISTS && SLOTS <= 14 && N_AGENTS <= 256;
constexpr int GROUP = HAS_KEYS ? power_of_two(SLOTS > 2 ? SLOTS + 2 : 4) : 4;

constexpr int SORTED_ENVS = GRID_SEARCH || LISTS ? ENVS_PER_BLOCK : 1;
constexpr int SORTED_AGENTS = GRID_SEARCH || LISTS ? N_AGENTS : 1;
constexpr int LISTED_ENVS = LISTS ? ENVS_PER_BLOCK : 1, LISTED = LISTS ? rounded_up(N_AGENTS, GROUP) : 4;

struct Crowd {
  alignas(16) float feature[TYPE][ENVS_PER_BLOCK][ROOM];  // X to DIRECTION, after the move
  unsigned char flag[N_FLAGS][ENVS_PER_BLOCK][N_AGENTS];   // PLAYS: before the tags of this step
  alignas(16) float slot_x[LISTED_ENVS][LISTED];           // positions of the agents in the game, by slot
  alignas(16) float slot_y[LISTED_ENVS][LISTED];
  int n_listed[LISTED_ENVS];                               // their number
  unsigned short slot_agent[SORTED_ENVS][SORTED_AGENTS];   // agents sorted by cell; or by id, those in the game first
  Grid grid[SORTED_ENVS];                                  // the cells of agents in the game; N_CELLS is for the others
  int cell_start[SORTED_ENVS][N_CELLS + 2];                // their first slots
  int n_tagged[ENVS_PER_BLOCK];
  int timestep[ENVS_PER_BLOCK];
  float progress[ENVS_PER_BLOCK];  // elapsed share of the episode
  unsigned char ended[ENVS_PER_BLOCK];
};

constexpr int SHARED_BYTES = 48 * 1024;
constexpr int FITTING = (SHARED_BYTES - static_cast<int>(sizeof(Crowd))) / (2 * ROW) / 32 * 32;
constexpr int AT_ONCE = THREADS < N_ITEMS ? THREADS : N_ITEMS;
constexpr int BATCH = GRID_SEARCH ? N_ITEMS : USE_FULL_OBSERVATION ? THREADS : FITTING < AT_ONCE ? FITTING : AT_ONCE;

struct Shared {
  Crowd crowd;
  union {  // used one after the other
    int n_catches[ENVS_PER_BLOCK][N_AGENTS];
    unsigned short nearest[USE_FULL_OBSERVATION ? 1 : BATCH][ROW];
  };
};

static_assert(sizeof(Shared) <= SHARED_BYTES && (GRID_SEARCH || USE_FULL_OBSERVATION || FITTING >= 32) && N_AGENTS < NOBODY,
              "tag_continuous: too many agents for the shared memory of a block (48 KiB, 23 bytes an agent and more); "
              "use fewer runners and taggers");
static_assert(!GRID_SEARCH || ROUNDS == 1, "tag_continuous: one block searches a grid for at most 16 neighbours");

// ---------------------------------------------------------------------------------------------- move

// Writes an agent's features for others. With partial observations, agents out of the game are hidden.
WD_FN void show(Crowd& crowd, int local, int agent, bool in_game, bool is_tagger, const Agent& shown) {
  const bool is_away = !USE_FULL_OBSERVATION && !in_game;
  crowd.feature[X][local][agent] = is_away ? AWAY : shown.x;
  crowd.feature[Y][local][agent] = is_away ? AWAY : shown.y;
  crowd.feature[SPEED][local][agent] = shown.speed;
  crowd.feature[ACCELERATION][local][agent] = shown.acceleration;
  crowd.feature[DIRECTION][local][agent] = shown.direction;
  crowd.flag[IS_TAGGER][local][agent] = is_tagger;
  crowd.flag[PLAYS][local][agent] = in_game;
}

WD_FN void show_padding(Crowd& crowd, int local) {
  for (int agent = N_AGENTS; agent < ROOM; ++agent)
    crowd.feature[X][local][agent] = crowd.feature[Y][local][agent] = AWAY;
}

WD_FN bool is_set(const Crowd& crowd, Flag flag, int local, int agent) { return crowd.flag[flag][local][agent] != 0; }

// ---------------------------------------------------------------------------------------------- observe

WD_FN float squared_distance(const float* x, const float* y, int a, int b) { return squared(x[a] - x[b], y[a] - y[b]); }

#if defined(__CUDACC__)

// Lists the agents in the game by slot, and after them the others. One warp per environment, the last warp first, because
// the first warps have more other work. Needs a block barrier before and after.
WD_FN void list_agents(Crowd& crowd, int n_envs) {
  constexpr int WARPS = THREADS / 32;
  const int lane = WD_THREAD % 32;
  const unsigned lower = (1u << lane) - 1u;
  for (int local = WARPS - 1 - WD_THREAD / 32; local < wd_min(ENVS_PER_BLOCK, n_envs - WD_FIRST_ENV); local += WARPS) {
    int n = 0;
#pragma unroll
    for (int first = 0; first < N_AGENTS; first += 32) {
      const int agent = first + lane;
      const bool plays = agent < N_AGENTS && is_set(crowd, PLAYS, local, agent);
      const unsigned players = __ballot_sync(0xffffffff, plays);
      const int before = n + __popc(players & lower);  // players of lower id
      if (agent < N_AGENTS)
        crowd.slot_agent[local][plays ? before : N_AGENTS - 1 - (agent - before)] = static_cast<unsigned short>(agent);
      if (plays) {
        crowd.slot_x[local][before] = crowd.feature[X][local][agent];
        crowd.slot_y[local][before] = crowd.feature[Y][local][agent];
      }
      n += __popc(players);
    }
#pragma unroll 1
    for (int padding = n + lane; padding < rounded_up(n, GROUP); padding += 32)
      crowd.slot_x[local][padding] = crowd.slot_y[local][padding] = AWAY;
    if (lane == 0) crowd.n_listed[local] = n;
  }
}

// Agent of a slot, or of a place among all agents if none are listed.
WD_FN int agent_at(const Crowd& crowd, int local, int place) { return LISTS ? crowd.slot_agent[local][place] : place; }

// Positions to search, with padding after the first `n`.
struct Places {
  const float *x, *y;
  int n;
};

WD_FN Places places_of(const Crowd& crowd, int local) {
  if (LISTS) return {crowd.slot_x[local], crowd.slot_y[local], crowd.n_listed[local]};
  return {crowd.feature[X][local], crowd.feature[Y][local], N_AGENTS};
}

// Writes the places of the SLOTS nearest agents after `last` (NOBODY: from the nearest), in the order by (distance, place);
// missing ones are NOBODY. Two passes over all agents are cheaper than one that also sorts places:
// an insertion costs two instructions per slot (minimum, maximum) instead of five.
WD_FN void find_nearest(const Places& places, int self, int last, unsigned short* nearest) {
  const int end = rounded_up(places.n, 4);
  const auto distance_to = [&](int other) { return squared_distance(places.x, places.y, other, self); };
  const float last_distance = last == NOBODY ? -1.f : distance_to(last);
  const auto may_follow = [&](int other, float distance) {
    if (ROUNDS == 1) return other != self;
    return other != self && (distance > last_distance || (distance == last_distance && other > last));
  };

  float distances[SLOTS];  // the smallest so far, ascending
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) distances[slot] = TOO_FAR;
  for (int first = 0; first < end; first += 4) {
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float distance = distance_to(first + i);
      four[i] = may_follow(first + i, distance) ? distance : TOO_FAR;
    }
    // Sort first: of four, the second and later ones are rarely close enough for any of a warp's agents.
    sort_four(four);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (four[i] >= distances[SLOTS - 1]) break;
#pragma unroll
      for (int slot = SLOTS - 1; slot > 0; --slot)
        distances[slot] = smaller(distances[slot], larger(distances[slot - 1], four[i]));
      distances[0] = smaller(distances[0], four[i]);
    }
  }

  const float limit = distances[SLOTS - 1];
  int n_at_limit = 0;  // agents exactly at the limit still to take, by lowest id
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) n_at_limit += distances[slot] == limit;
  int n_found = 0;
  for (int first = 0; first < end; first += 4) {
#pragma unroll
    for (int other = first; other < first + 4; ++other) {
      const float distance = distance_to(other);
      if (may_follow(other, distance) && distance <= limit && (distance < limit || n_at_limit-- > 0))
        nearest[n_found++] = static_cast<unsigned short>(other);
    }
  }
  while (n_found < SLOTS) nearest[n_found++] = NOBODY;

  int ids[SLOTS], ranks[SLOTS];
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    ids[slot] = nearest[slot];
    ranks[slot] = 0;
    distances[slot] = ids[slot] == NOBODY ? TOO_FAR : distance_to(ids[slot]);
  }
#pragma unroll
  for (int later = 1; later < SLOTS; ++later) {
#pragma unroll
    for (int earlier = 0; earlier < later; ++earlier) {
      const bool swapped = distances[later] < distances[earlier];
      ranks[earlier] += swapped;
      ranks[later] += !swapped;
    }
  }
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) nearest[ranks[slot]] = static_cast<unsigned short>(ids[slot]);
}

// With keys (keys.cuh), `find_nearest` repeats the search if two distances differ in the replaced bits only. That happens
// in about one of a hundred warps.
constexpr Key PLACE_BITS = power_of_two(LISTED) - 1;
constexpr Key NO_KEY = 0xffffffffu;
constexpr int RANKED = HAS_KEYS ? SLOTS + 2 : 1;  // smallest keys that a search keeps

// Sorts N keys that rise and then fall, or fall and then rise.
template <int N>
WD_FN void sort_bitonic(Key* keys) {
  if constexpr (N > 1) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sort(keys[i], keys[i + N / 2]);
    sort_bitonic<N / 2>(keys);
    sort_bitonic<N / 2>(keys + N / 2);
  }
}

// Like `find_nearest`, by keys.
WD_FN void find_by_keys(const Places& places, int self, unsigned short* nearest) {
  const float x = places.x[self], y = places.y[self];
  Key keys[GROUP];
  for (int first = 0; first < places.n; first += GROUP) {
    Key group[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      const int place = first + i;
      group[i] = (__float_as_uint(squared(places.x[place] - x, places.y[place] - y)) & ~PLACE_BITS) | place;
    }
    sort_keys<GROUP>(group);
    if (first > 0) {  // the smallest of both lists rise and then fall
#pragma unroll
      for (int i = 0; i < GROUP; ++i) sort(keys[i], group[GROUP - 1 - i]);
      sort_bitonic<GROUP>(keys);
    }
#pragma unroll
    for (int i = 0; i < GROUP; ++i) keys[i] = i >= RANKED ? NO_KEY : first > 0 ? keys[i] : group[i];
  }

  // Without the agent itself, whose distance is 0.
#pragma unroll
  for (int i = 0; i + 1 < RANKED; ++i) keys[i] = keys[i] < static_cast<Key>(self) ? keys[i] : keys[i + 1];
  const Key far = __float_as_uint(TOO_FAR) & ~PLACE_BITS;
  bool is_close = false;
#pragma unroll
  for (int i = 0; i < SLOTS && HAS_KEYS; ++i) {
    is_close |= (keys[i] ^ keys[i + 1]) <= PLACE_BITS && keys[i + 1] < far;
    nearest[i] = static_cast<unsigned short>(keys[i] < far ? keys[i] & PLACE_BITS : NOBODY);
  }
  if (is_close) find_nearest(places, self, NOBODY, nearest);
}

#else

// Writes the same for agents `first` to `end` - 1 of an environment, to each one's `nearest`. Agents in the game are
// lanes of SIMD. All compare with one other agent at a time, by ascending id, and insert it after equal distances.
constexpr int WIDTH = 16;
typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int Ints __attribute__((vector_size(4 * WIDTH)));

WD_FN void find_nearest(const Crowd& crowd, int local, int first, int end, bool is_first_round,
                        unsigned short (*nearest)[ROW]) {
  const float* const x = crowd.feature[X][local];
  const float* const y = crowd.feature[Y][local];
  int others[N_AGENTS], n_others = 0;
  int selves[N_AGENTS], n_selves = 0;
  for (int agent = 0; agent < N_AGENTS; ++agent) {
    others[n_others] = agent;
    n_others += is_set(crowd, PLAYS, local, agent);
  }
  for (int agent = first; agent < end; ++agent) {
    const bool looks = is_set(crowd, PLAYS, local, agent) && (is_first_round || nearest[agent - first][SLOTS - 1] != NOBODY);
    selves[n_selves] = agent;
    n_selves += looks;
    for (int slot = 0; slot < SLOTS && !looks; ++slot) nearest[agent - first][slot] = NOBODY;
  }
  for (int group = 0; group < n_selves; group += WIDTH) {
    Floats self_x{}, self_y{}, last_distance{};
    Ints self{}, last{};
    for (int lane = 0; lane < WIDTH; ++lane) {
      const int agent = selves[wd_min(group + lane, n_selves - 1)];
      self[lane] = agent;
      self_x[lane] = x[agent];
      self_y[lane] = y[agent];
      if (ROUNDS == 1 || is_first_round) continue;
      last[lane] = nearest[agent - first][SLOTS - 1];
      last_distance[lane] = squared_distance(x, y, last[lane], agent);
    }
    Floats distances[SLOTS];
    Ints ids[SLOTS];
    for (int slot = 0; slot < SLOTS; ++slot) {
      distances[slot] = Floats{} + TOO_FAR;
      ids[slot] = Ints{} + NOBODY;
    }
    for (int index = 0; index < n_others; ++index) {
      const int other = others[index];
      const Floats dx = x[other] - self_x, dy = y[other] - self_y;
      Floats distance = dx * dx + dy * dy;
      distance = self == other ? Floats{} + TOO_FAR : distance;
      if (ROUNDS > 1 && !is_first_round) {
        const Ints follows = (distance > last_distance) | ((distance == last_distance) & (last < other));
        distance = follows ? distance : Floats{} + TOO_FAR;
      }
#pragma GCC unroll 16
      for (int slot = SLOTS - 1; slot >= 0; --slot) {
        const Floats before = distances[slot ? slot - 1 : 0];
        const Ints goes_on = slot ? distance < before : Ints{};
        const Ints is_nearer = distance < distances[slot];
        distances[slot] = goes_on ? before : is_nearer ? distance : distances[slot];
        ids[slot] = goes_on ? ids[slot ? slot - 1 : 0] : is_nearer ? Ints{} + other : ids[slot];
      }
    }
    for (int lane = 0; lane < wd_min(WIDTH, n_selves - group); ++lane)
      for (int slot = 0; slot < SLOTS; ++slot)
        nearest[self[lane] - first][slot] = static_cast<unsigned short>(ids[slot][lane]);
  }
}

#endif

// ---------------------------------------------------------------------------------------------- cells

// Replaces each number by the sum of the earlier ones. Has a block barrier before and after.
WD_FN void add_up(int* numbers, int n) {
  int before = 0;
#if defined(__CUDACC__)
  if (WD_THREAD >= 32) return;
  for (int first = 0; first < n; first += 32) {
    const int at = first + WD_THREAD, own = at < n ? numbers[at] : 0;
    int sum = own;
    for (int reach = 1; reach < 32; reach *= 2) {
      const int more = __shfl_up_sync(0xffffffff, sum, reach);
      if (WD_THREAD >= reach) sum += more;
    }
    if (at < n) numbers[at] = before + sum - own;
    before += __shfl_sync(0xffffffff, sum, 31);
  }
#else
  for (int at = 0; at < n; ++at) {
    const int own = numbers[at];
    numbers[at] = before;
    before += own;
  }
#endif
}

// Sorts the agents of ended (or all) environments by cell: a counting sort. The order within a cell may differ from run
// to run; no result depends on it. Agents out of the game come last.
WD_FN void sort_by_cell(Crowd& crowd, int n_envs, bool all) {
  const auto cell_of = [&](int local, int agent) {
    const bool plays = is_set(crowd, PLAYS, local, agent);
    return plays ? crowd.grid[local].cell_at(crowd.feature[X][local][agent], crowd.feature[Y][local][agent]) : N_CELLS;
  };
  for (int item = WD_THREAD; item < ENVS_PER_BLOCK * (N_CELLS + 2); item += WD_STRIDE) crowd.cell_start[0][item] = 0;
  WD_SYNC();
  WD_EACH_AGENT(local, env, agent) {
    if (all || crowd.ended[local]) WD_ATOMIC_ADD(&crowd.cell_start[local][cell_of(local, agent) + 1], 1);
  }
  WD_SYNC();
  for (int local = 0; local < ENVS_PER_BLOCK; ++local) add_up(crowd.cell_start[local] + 1, N_CELLS + 1);
  WD_SYNC();
  WD_EACH_AGENT(local, env, agent) {  // the next cell's start is currently the next free place in this one
    if (!(all || crowd.ended[local])) continue;
    const int slot = WD_ATOMIC_ADD(&crowd.cell_start[local][cell_of(local, agent) + 1], 1);
    crowd.slot_agent[local][slot] = static_cast<unsigned short>(agent);
  }
  WD_SYNC();
}

// Searchable agents of an environment: those in the game.
struct Sorted {
  const Crowd& crowd;
  int local;

  WD_METHOD Position position(int slot) const {
    return {crowd.feature[X][local][id(slot)], crowd.feature[Y][local][id(slot)]};
  }
  WD_METHOD Grid grid() const { return crowd.grid[local]; }
  WD_METHOD int id(int slot) const { return crowd.slot_agent[local][slot]; }
  WD_METHOD int found(int slot) const { return id(slot); }
  WD_METHOD bool is_seen(int) const { return true; }
  WD_METHOD bool tags(int slot) const { return is_set(crowd, IS_TAGGER, local, id(slot)); }
  WD_METHOD int first(int cell) const { return crowd.cell_start[local][cell]; }
};

// Writes the ids of the nearest agents of each agent. Neighbours in space search together: they read the same cells.
WD_FN void find_in_cells(const Crowd& crowd, int n_envs, bool all, unsigned short (*nearest)[ROW]) {
  for (int item = WD_THREAD; item < N_ITEMS; item += WD_STRIDE) {
    const int local = item / N_AGENTS, slot = item % N_AGENTS;
    if (WD_FIRST_ENV + local >= n_envs || !(all || crowd.ended[local])) continue;
    const int self = crowd.slot_agent[local][slot];
    unsigned short* const own = nearest[local * N_AGENTS + self];
    if (is_set(crowd, PLAYS, local, self)) {
      const float x = crowd.feature[X][local][self], y = crowd.feature[Y][local][self];
      Search<Sorted>{{crowd, local}, slot, NOBODY, x, y, 0.f}.find_in_cells(own);
    } else {
      for (int i = 0; i < SLOTS; ++i) own[i] = NOBODY;
    }
  }
}

// Sorts or lists agents after a start. Ends with a block barrier.
WD_FN void arrange_started(Crowd& crowd, int n_envs) {
  if (GRID_SEARCH) sort_by_cell(crowd, n_envs, false);
#if defined(__CUDACC__)
  if (LISTS) {
    list_agents(crowd, n_envs);
    WD_SYNC();
  }
#endif
}

// ---------------------------------------------------------------------------------------------- rows

// Returns one entry of an observation: a feature of `other` (NOBODY: padding) for `self`. With partial observations only
// agents in the game have neighbours, and those are in the game, too.
WD_FN float seen(const Crowd& crowd, int local, int self, int other, int feature) {
  const bool sees = (!USE_FULL_OBSERVATION && feature != TIME) || is_set(crowd, PLAYS, local, self);
  if (feature == TIME) return sees ? crowd.progress[local] : 0.f;
  if (other == NOBODY) return 0.f;
  if (feature == TYPE) return is_set(crowd, IS_TAGGER, local, other) ? 1.f : 0.f;
  if (feature == IN_GAME) return !USE_FULL_OBSERVATION || is_set(crowd, PLAYS, local, other) ? 1.f : 0.f;
  const float difference = crowd.feature[feature][local][other] - crowd.feature[feature][local][self];
  return sees ? difference * scale_of(feature) : 0.f;
}

#if defined(__CUDACC__)

// Environment of an item, and its place in it.
WD_FN int local_of(int item) { return ENVS_PER_BLOCK == 1 ? 0 : item / N_AGENTS; }
WD_FN int place_of(int item) { return ENVS_PER_BLOCK == 1 ? item : item % N_AGENTS; }

// First item of this thread in a search. Listed agents fill only some warps, and warps of the same number share a
// scheduler. So each block starts with another warp.
WD_FN int first_searching_thread() {
  constexpr int WARPS = THREADS / 32;
  if (!LISTS || WARPS == 1) return WD_THREAD;
  const int turn = static_cast<int>((static_cast<unsigned>(WD_BLOCK) * 0x9E3779B9u) >> 30);  // of 4 schedulers
  return (WD_THREAD + 32 * turn) % THREADS;
}

#endif

// Writes final rows to `ends`, and all other rows too if all are observed. BATCH agents search their neighbours at a
// time, then all threads write these agents' rows. With GRID_SEARCH agents are sorted, with LISTS they are listed.
WD_FN void observe(Shared& shared, int n_envs, bool all, float (*observations)[N_AGENTS][N_FEATURES],
                   float (*ends)[N_AGENTS][N_FEATURES]) {
  const Crowd& crowd = shared.crowd;
  for (int first = 0; first < N_ITEMS; first += BATCH) {
    const int n_rows = wd_min(BATCH, N_ITEMS - first);
    for (int round = 0; round < ROUNDS; ++round) {
      if (GRID_SEARCH) {
        find_in_cells(crowd, n_envs, all, shared.nearest);
        WD_SYNC();
      } else if (!USE_FULL_OBSERVATION) {
#if defined(__CUDACC__)
        for (int row = first_searching_thread(); row < n_rows; row += WD_STRIDE) {
          const int local = local_of(first + row), self = place_of(first + row);
          if (WD_FIRST_ENV + local >= n_envs || !(all || crowd.ended[local])) continue;
          unsigned short* nearest = shared.nearest[row];
          const Places places = places_of(crowd, local);
          const bool plays = LISTS ? self < places.n : is_set(crowd, PLAYS, local, self);
          const int last = round == 0 ? NOBODY : nearest[SLOTS - 1];
          if (plays && (round == 0 || last != NOBODY)) {
            if (HAS_KEYS) find_by_keys(places, self, nearest);
            else find_nearest(places, self, last, nearest);
          } else {
            for (int slot = 0; slot < SLOTS; ++slot) nearest[slot] = NOBODY;
          }
        }
#else
        for (int row = 0, n = 0; row < n_rows; row += n) {
          const int local = (first + row) / N_AGENTS, self = (first + row) % N_AGENTS;
          n = wd_min(N_AGENTS - self, n_rows - row);
          if (WD_FIRST_ENV + local >= n_envs || !(all || crowd.ended[local])) continue;
          find_nearest(crowd, local, self, self + n, round == 0, shared.nearest + row);
        }
#endif
        WD_SYNC();
      }
#if defined(__CUDACC__)
      for (int item = WD_THREAD; item < n_rows * SLOTS; item += WD_STRIDE) {  // a thread writes all features of a neighbour
        const int row = item / SLOTS, slot = item % SLOTS, rank = round * SLOTS + slot;
        const int local = local_of(first + row), env = WD_FIRST_ENV + local;
        if (rank >= N_OBSERVED || env >= n_envs || !(all || crowd.ended[local])) continue;
        const int self = agent_at(crowd, local, place_of(first + row));
        int other = USE_FULL_OBSERVATION ? rank + (rank >= self) : shared.nearest[row][slot];
        if (LISTS && other != NOBODY) other = agent_at(crowd, local, other);
        float* const target = (crowd.ended[local] ? ends : observations)[env][self];
        float values[TIME] = {};
        if (USE_FULL_OBSERVATION || other != NOBODY) {
#pragma unroll
          for (int feature = X; feature < TIME; ++feature) values[feature] = seen(crowd, local, self, other, feature);
        }
#pragma unroll
        for (int feature = X; feature < TIME; ++feature) target[feature * N_OBSERVED + rank] = values[feature];
        if (rank == 0) target[TIME * N_OBSERVED] = seen(crowd, local, self, NOBODY, TIME);
      }
#else
      for (int row = 0; row < n_rows; ++row) {
        const int local = (first + row) / N_AGENTS, self = (first + row) % N_AGENTS;
        const int env = WD_FIRST_ENV + local;
        if (env >= n_envs || !(all || crowd.ended[local])) continue;
        float* const target = (crowd.ended[local] ? ends : observations)[env][self];
        const int n = wd_min(SLOTS, N_OBSERVED - round * SLOTS);
        int others[SLOTS];
        for (int slot = 0; slot < n; ++slot)
          others[slot] = USE_FULL_OBSERVATION ? slot + (slot >= self) : shared.nearest[row][slot];
#pragma GCC unroll 7
        for (int feature = X; feature < TIME; ++feature)
          WD_INDEPENDENT for (int slot = 0; slot < n; ++slot)
            target[feature * N_OBSERVED + round * SLOTS + slot] = seen(crowd, local, self, others[slot], feature);
        if (round == 0) target[TIME * N_OBSERVED] = seen(crowd, local, self, NOBODY, TIME);
      }
#endif
      WD_SYNC();
    }
  }
}

// ---------------------------------------------------------------------------------------------- start

// Uniform over the block: true for all of its threads or none.
WD_FN bool any_ended(const Crowd& crowd, int n_envs) {
  bool any = false;
  for (int local = 0; local < ENVS_PER_BLOCK && WD_BLOCK * ENVS_PER_BLOCK + local < n_envs; ++local)
    any |= crowd.ended[local] != 0;
  return any;
}

// Starts the next episode of the block's ended environments.
WD_FN void start(Crowd& crowd, int n_envs, float (*loc_x)[N_AGENTS], float (*loc_y)[N_AGENTS], float (*speed)[N_AGENTS],
                 float (*direction)[N_AGENTS], float (*acceleration)[N_AGENTS],
                 float (*edge_hit_reward_penalty)[N_AGENTS], int (*still_in_the_game)[N_AGENTS], int* num_runners,
                 const int* agent_types, const float* start_x, const float* start_y, const float* start_direction,
                 int* _timestep_, int* _episode_, const int* _reset_seed_) {
  WD_EACH_AGENT(local, env, agent) {
    if (!crowd.ended[local]) continue;
    const Agent first = started(_episode_[env], env, agent, _reset_seed_, start_x, start_y, start_direction);
    loc_x[env][agent] = first.x;
    loc_y[env][agent] = first.y;
    direction[env][agent] = first.direction;
    speed[env][agent] = acceleration[env][agent] = edge_hit_reward_penalty[env][agent] = 0.f;
    still_in_the_game[env][agent] = 1;
    show(crowd, local, agent, true, agent_types[agent] == 1, first);
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (!crowd.ended[local]) continue;
    num_runners[env] = N_AGENTS - N_TAGGERS;
    _timestep_[env] = 0;
    crowd.progress[local] = 0.f;
    if (GRID_SEARCH) crowd.grid[local] = grid_with(CELLS_PER_SIDE);
    _episode_[env] += 1;
    show_padding(crowd, local);
  }
  WD_SYNC();
}

// ---------------------------------------------------------------------------------------------- kernels

WD_KERNEL(step)(float (*loc_x)[N_AGENTS], float (*loc_y)[N_AGENTS], float (*speed)[N_AGENTS],
                float (*direction)[N_AGENTS], float (*acceleration)[N_AGENTS],
                float (*edge_hit_reward_penalty)[N_AGENTS], int (*still_in_the_game)[N_AGENTS], int* num_runners,
                const int* agent_types, const int* tagger_ids, const float* skill_levels, const float* step_rewards,
                const float* acceleration_actions, const float* turn_actions, const float* start_x,
                const float* start_y, const float* start_direction, const int (*sampled_actions)[N_AGENTS][2],
                float (*rewards)[N_AGENTS], float (*observations)[N_AGENTS][N_FEATURES],
                float (*final_observations)[N_AGENTS][N_FEATURES], int* terminated, int* truncated, int* _done_,
                int* _timestep_, int* _episode_, const int* _reset_seed_, int n_envs) {
  WD_SHARED Shared shared;
  Crowd& crowd = shared.crowd;

  // move
  WD_EACH_ENV(local, env) {
    const int timestep = _timestep_[env] += 1;
    crowd.timestep[local] = timestep;
    crowd.progress[local] = static_cast<float>(timestep) / static_cast<float>(EPISODE_LENGTH);
    crowd.n_tagged[local] = 0;
    if (GRID_SEARCH)  // few cells help the search for neighbours, and slow that for taggers a little
      crowd.grid[local] = grid_with(WD_OBSERVED ? cells_per_side_for(num_runners[env] + N_TAGGERS) : CELLS_PER_SIDE);
    show_padding(crowd, local);
  }
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
    shared.n_catches[local][agent] = 0;
    show(crowd, local, agent, in_game, agent_types[agent] == 1, after);
  }
  WD_SYNC();

  // tag: each runner in the game finds its nearest tagger in reach, the lowest id among equals
  if (GRID_SEARCH) sort_by_cell(crowd, n_envs, true);
#if defined(__CUDACC__)
  if (LISTS && WD_OBSERVED) list_agents(crowd, n_envs);
#endif
  WD_EACH_AGENT(local, env, place) {
    const int agent = GRID_SEARCH ? crowd.slot_agent[local][place] : place;
    int tagger = NOBODY;
    if (is_set(crowd, PLAYS, local, agent) && !is_set(crowd, IS_TAGGER, local, agent)) {
      if (GRID_SEARCH) {
        tagger = find_tagger(Sorted{crowd, local}, crowd.feature[X][local][agent], crowd.feature[Y][local][agent]);
      } else {
        float nearest = REACH_SQUARED;
        for (int index = 0; index < N_TAGGERS; ++index) {
          const int other = tagger_ids[index];
          const float distance = squared_distance(crowd.feature[X][local], crowd.feature[Y][local], other, agent);
          if (distance < nearest) {
            nearest = distance;
            tagger = other;
          }
        }
      }
    }
    crowd.flag[IS_TAGGED][local][agent] = tagger != NOBODY;
    if (tagger == NOBODY) continue;
    WD_ATOMIC_ADD(&shared.n_catches[local][tagger], 1);
    WD_ATOMIC_ADD(&crowd.n_tagged[local], 1);
  }
  WD_SYNC();

  // score
  WD_EACH_ENV(local, env) {
    const int n_left = num_runners[env] - (RUNNER_EXITS ? crowd.n_tagged[local] : 0);
    const bool nobody_left = n_left == 0, out_of_time = crowd.timestep[local] >= EPISODE_LENGTH;
    num_runners[env] = n_left;
    terminated[env] = nobody_left;
    truncated[env] = out_of_time && !nobody_left;
    _done_[env] = crowd.ended[local] = nobody_left || out_of_time;
  }
  WD_EACH_AGENT(local, env, agent) {
    const bool in_game = is_set(crowd, PLAYS, local, agent), is_tagger = is_set(crowd, IS_TAGGER, local, agent);
    const bool is_tagged = is_set(crowd, IS_TAGGED, local, agent);
    const bool stays = in_game && !(RUNNER_EXITS && is_tagged);
    const bool survives = stays && !is_tagger && crowd.timestep[local] >= EPISODE_LENGTH;
    const float of_the_move = edge_hit_reward_penalty[env][agent] + step_rewards[agent];
    rewards[env][agent] = reward(in_game, is_tagged, shared.n_catches[local][agent], survives, of_the_move);
    still_in_the_game[env][agent] = stays;
  }
  WD_SYNC();

  const bool restarts = AUTO_RESET && any_ended(crowd, n_envs);
#if defined(__CUDACC__)
  if (LISTS && !WD_OBSERVED && restarts) {
    list_agents(crowd, n_envs);
    WD_SYNC();
  }
#endif
  if (WD_OBSERVED || restarts)
    observe(shared, n_envs, WD_OBSERVED, observations, AUTO_RESET ? final_observations : observations);
  if (restarts) {
    start(crowd, n_envs, loc_x, loc_y, speed, direction, acceleration, edge_hit_reward_penalty, still_in_the_game,
          num_runners, agent_types, start_x, start_y, start_direction, _timestep_, _episode_, _reset_seed_);
    if (WD_OBSERVED) {
      arrange_started(crowd, n_envs);
      observe(shared, n_envs, false, observations, observations);
    }
  }
}

WD_KERNEL(reset)(float (*loc_x)[N_AGENTS], float (*loc_y)[N_AGENTS], float (*speed)[N_AGENTS],
                 float (*direction)[N_AGENTS], float (*acceleration)[N_AGENTS],
                 float (*edge_hit_reward_penalty)[N_AGENTS], int (*still_in_the_game)[N_AGENTS], int* num_runners,
                 const int* agent_types, const float* start_x, const float* start_y, const float* start_direction,
                 float (*observations)[N_AGENTS][N_FEATURES], int* _done_, int* _timestep_, int* _episode_,
                 const int* _reset_seed_, int force, int n_envs) {
  WD_SHARED Shared shared;
  Crowd& crowd = shared.crowd;
  WD_EACH_ENV(local, env) {
    crowd.ended[local] = force != 0 || _done_[env] != 0;
    _done_[env] = 0;
  }
  WD_SYNC();
  if (!any_ended(crowd, n_envs)) return;
  start(crowd, n_envs, loc_x, loc_y, speed, direction, acceleration, edge_hit_reward_penalty, still_in_the_game,
        num_runners, agent_types, start_x, start_y, start_direction, _timestep_, _episode_, _reset_seed_);
  arrange_started(crowd, n_envs);
  observe(shared, n_envs, false, observations, observations);
}

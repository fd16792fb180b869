// Search for the nearest agents in a square grid of cells, or among all. NOBODY is no agent's id.
#pragma once

#include "agent.cuh"
#include "keys.cuh"

// Returns how many cells a side has for `n` agents in the game, so that a cell has as many of them, on average, as with all.
// A search then covers about nine cells, not several rings of almost empty ones. No result depends on it.
WD_FN int cells_per_side_for(int n) {
  const float share = wd_clip(static_cast<float>(n) / static_cast<float>(N_AGENTS), 0.f, 1.f);
  const int side = static_cast<int>(static_cast<float>(CELLS_PER_SIDE) * sqrtf(share) + 0.5f);
  return side < 1 ? 1 : side;
}

struct Grid {
  int side;  // cells
  float cell_length, inv_cell_length;

  WD_METHOD int column_of(float position) const {
    return wd_min(static_cast<int>(position * inv_cell_length), side - 1);
  }
  WD_METHOD int cell_at(float x, float y) const { return column_of(y) * side + column_of(x); }

  // Number of columns or rows below a bound, which may be outside the grid.
  WD_METHOD int columns_below(int bound) const { return bound < 0 ? 0 : wd_min(bound, side); }
};

WD_FN Grid grid_with(int side) {
  return {side, GRID_LENGTH / static_cast<float>(side), static_cast<float>(side) / GRID_LENGTH};
}

struct WD_ALIGN(8) Position {
  float x, y;
};

// Finds the SLOTS nearest agents, or in a later round those after `last`, ascending by (distance, id). Writes what `found`
// says of them to `nearest`; missing ones are NOBODY. Among agents exactly as far as the farthest one taken, the lowest
// ids win.
//
// `Agents` provides the agents by slot, sorted by cell of `grid()`: `position(slot)`, `id(slot)`, `found(slot)`,
// `is_seen(slot)` and `tags(slot)`, and `first(cell)`, the first slot of a cell. Without GRID_SEARCH slots are ids.
template <class Agents>
struct Search {
  const Agents agents;
  int own, last;  // the searching agent's slot; the last id of the previous round, NOBODY in the first
  float x, y, last_distance;

  WD_METHOD float distance_to(int slot) const {
    const Position other = agents.position(slot);
    return squared(other.x - x, other.y - y);
  }

  WD_METHOD bool may_follow(int slot, float distance) const {
    if (slot == own || !agents.is_seen(slot)) return false;
    if (ROUNDS == 1 || last == NOBODY) return true;
    return distance > last_distance || (distance == last_distance && agents.id(slot) > last);
  }

  // Calls `look` with the first slot and the end of each run of cells in a ring around the own cell. The first ring includes
  // that cell.
  template <class Look>
  WD_METHOD void look_around(int ring, const Look& look) const {
    const Grid grid = agents.grid();
    const int column = grid.column_of(x), row = grid.column_of(y), end = grid.columns_below(row + ring + 1);
    for (int at = grid.columns_below(row - ring); at < end; ++at) {
      const bool is_whole = ring == 1 || at == row - ring || at == row + ring;  // else the two outer cells
      for (int from = column - ring; from <= column + ring; from += is_whole ? 2 * ring + 1 : 2 * ring) {
        const int to = is_whole ? column + ring : from, first = at * grid.side;
        look(agents.first(first + grid.columns_below(from)), agents.first(first + grid.columns_below(to + 1)));
      }
    }
  }

  // Returns a lower bound of the squared distance to agents beyond a ring. MARGIN exceeds the total rounding of positions,
  // cells and distances.
  WD_METHOD float beyond(int ring) const {
    const Grid grid = agents.grid();
    const int column = grid.column_of(x), row = grid.column_of(y);
    const int left = column - ring, right = column + ring, bottom = row - ring, top = row + ring;
    float unseen = 2.f * GRID_LENGTH;
    if (left > 0) unseen = smaller(unseen, x - static_cast<float>(left) * grid.cell_length);
    if (right < grid.side - 1) unseen = smaller(unseen, static_cast<float>(right + 1) * grid.cell_length - x);
    if (bottom > 0) unseen = smaller(unseen, y - static_cast<float>(bottom) * grid.cell_length);
    if (top < grid.side - 1) unseen = smaller(unseen, static_cast<float>(top + 1) * grid.cell_length - y);
    if (unseen == 2.f * GRID_LENGTH) return 3e38f;  // there are none
    unseen -= MARGIN;
    return unseen > 0.f ? unseen * unseen : 0.f;
  }

  // Searches ring by ring, until farther rings cannot hold a nearer agent. A first pass stores only distances, so a
  // comparison costs two instructions. A second pass over the same cells finds their agents.
  template <class Found>
  WD_METHOD void find_exactly(Found* nearest) const {
    float distances[SLOTS];  // the smallest, descending
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) distances[i] = TOO_FAR;
    int rings = 0;
    do {
      look_around(++rings, [&](int slot, int end) {
        for (; slot < end; ++slot) {
          const float distance = distance_to(slot);
          if (distance >= distances[0] || !may_follow(slot, distance)) continue;
          distances[0] = distance;
#pragma unroll
          for (int i = 1; i < SLOTS; ++i) sort(distances[i], distances[i - 1]);
        }
      });
    } while (distances[0] >= beyond(rings));

    const float limit = distances[0];
    int n_nearer = 0, n_found = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) n_nearer += distances[i] < limit;
    for (int i = n_nearer; i < SLOTS; ++i) nearest[i] = NOBODY;
    const auto take = [&](int slot) {
      const float distance = distance_to(slot);
      if (distance > limit || !may_follow(slot, distance)) return;
      if (distance < limit) nearest[n_found++] = static_cast<Found>(slot);
      for (int i = n_nearer; distance == limit && slot != NOBODY && i < SLOTS; ++i) {
        const int taken = nearest[i];
        if (taken != NOBODY && agents.id(taken) < agents.id(slot)) continue;
        nearest[i] = static_cast<Found>(slot);
        slot = taken;
      }
    };
    for (int ring = 1; ring <= rings; ++ring)
      look_around(ring, [&](int slot, int end) {
        for (; slot < end; ++slot) take(slot);
      });

    int slots[SLOTS], ids[SLOTS], ranks[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      slots[i] = nearest[i];
      ids[i] = slots[i] == NOBODY ? NOBODY : agents.id(slots[i]);
      distances[i] = i < n_nearer ? distance_to(slots[i]) : limit;
      ranks[i] = 0;
    }
#pragma unroll
    for (int later = 1; later < SLOTS; ++later) {
#pragma unroll
      for (int earlier = 0; earlier < later; ++earlier) {
        const bool is_before = distances[later] < distances[earlier] ||
                               (distances[later] == distances[earlier] && ids[later] < ids[earlier]);
        ranks[earlier] += is_before;
        ranks[later] += !is_before;
      }
    }
#pragma unroll
    for (int i = 0; i < SLOTS; ++i)
      nearest[ranks[i]] = static_cast<Found>(slots[i] == NOBODY ? NOBODY : agents.found(slots[i]));
  }

#if defined(__CUDACC__)
  // A search by keys numbers the candidates in the order of `look_around`. It keeps one agent more than it finds.
  static constexpr int TOGETHER = 8, KEPT = SLOTS + 1;
  static constexpr Key PLACES = 255, FAR = 0x7a000000u | PLACES;  // nearer than AWAY, farther than all agents

  // Merges TOGETHER slots into the smallest keys, which descend. The smaller ones of each pair form a bitonic sequence;
  // comparing its halves leaves two such sequences.
  WD_METHOD void keep_nearest(int slot, int end, int place, Key* keys) const {
    const int n = end - slot, self = own - slot;
    Position others[TOGETHER];  // read before they are compared, without branches
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) others[i] = i < n && i != self ? agents.position(slot + i) : Position{AWAY, AWAY};
    Key more[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const float distance = squared(others[i].x - x, others[i].y - y);
      more[i] = (__float_as_uint(distance) & ~PLACES) | (place + i);
      if (ROUNDS > 1 && i < n && !may_follow(slot + i, distance)) more[i] = FAR;
    }
    sort_keys<TOGETHER>(more);
    if (more[0] >= keys[0]) return;
#pragma unroll
    for (int i = 0; i < TOGETHER && i < KEPT; ++i) keys[i] = keys[i] < more[i] ? keys[i] : more[i];
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) {
#pragma unroll
      for (int i = 0; i < KEPT; ++i)
        if (!(i & bit) && i + bit < KEPT) sort(keys[i + bit], keys[i]);
    }
  }

  // Returns false if two distances differ in the replaced bits only, or if there are more candidates than places.
  template <class Found>
  WD_METHOD bool find_by_keys(Found* nearest) const {
    Key keys[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; ++i) keys[i] = FAR;
    int rings = 0, n_places = 0;
    do {
      look_around(++rings, [&](int first, int end) {
        for (int slot = first; slot < end; slot += TOGETHER) keep_nearest(slot, end, n_places + slot - first, keys);
        n_places += end - first;
      });
    } while ((keys[1] | PLACES) >= __float_as_uint(beyond(rings)));
    if (n_places > PLACES) return false;

    bool is_close = false;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      is_close |= (keys[i] ^ keys[i + 1]) <= PLACES && keys[i] < FAR;
      nearest[i] = NOBODY;
    }
    if (is_close) return false;
    n_places = 0;
    for (int ring = 1; ring <= rings; ++ring)
      look_around(ring, [&](int first, int end) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
          const int slot = first + static_cast<int>(keys[SLOTS - i] & PLACES) - n_places;
          if (slot >= first && slot < end) nearest[i] = static_cast<Found>(agents.found(slot));
        }
        n_places += end - first;
      });
    return true;
  }
#endif

  template <class Found>
  WD_METHOD void find_in_cells(Found* nearest) const {
#if defined(__CUDACC__)
    if (find_by_keys(nearest)) return;
#endif
    find_exactly(nearest);
  }

  // Searches all agents in the order of their ids, so that the lower id wins among equals.
  template <class Found>
  WD_METHOD void find_among_all(Found* nearest) const {
    float distances[SLOTS];
    int ids[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      distances[i] = TOO_FAR;
      ids[i] = NOBODY;
    }
    for (int id = 0; id < N_AGENTS; ++id) {
      const float distance = distance_to(id);
      if (distance >= distances[SLOTS - 1] || !may_follow(id, distance)) continue;
#pragma unroll
      for (int i = SLOTS - 1; i >= 0; --i) {
        const bool goes_on = i > 0 && distance < distances[i > 0 ? i - 1 : 0], stays = distance < distances[i];
        ids[i] = goes_on ? ids[i > 0 ? i - 1 : 0] : stays ? id : ids[i];
        distances[i] = goes_on ? distances[i > 0 ? i - 1 : 0] : stays ? distance : distances[i];
      }
    }
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) nearest[i] = static_cast<Found>(ids[i]);
  }
};

// Returns the nearest tagger in reach of a place, the lowest id among equals, or NOBODY.
template <class Agents>
WD_FN int find_tagger(const Agents& agents, float x, float y) {
  const Grid grid = agents.grid();
  const float reach = REACH + MARGIN;
  const auto column_of = [&](float position) { return grid.column_of(wd_clip(position, 0.f, GRID_LENGTH)); };
  const int left = column_of(x - reach), right = column_of(x + reach), top = column_of(y + reach);
  int tagger = NOBODY;
  float nearest = REACH_SQUARED;
  for (int row = column_of(y - reach); row <= top; ++row) {
    const int end = agents.first(row * grid.side + right + 1);
    for (int slot = agents.first(row * grid.side + left); slot < end; ++slot) {
      const Position other = agents.position(slot);
      const float distance = squared(other.x - x, other.y - y);
      const bool is_nearer =
          distance < nearest || (distance == nearest && tagger != NOBODY && agents.id(slot) < tagger);
      if (is_nearer && agents.tags(slot)) {
        nearest = distance;
        tagger = agents.id(slot);
      }
    }
  }
  return tagger;
}

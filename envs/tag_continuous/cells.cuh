// Search for the nearest agents in a square grid of cells, or among all. NOBODY is no agent's id.
#pragma once

#include "agent.cuh"

WD_FN int column_of(float position) { return wd_min(static_cast<int>(position * INV_CELL_LENGTH), CELLS_PER_SIDE - 1); }

WD_FN int cell_at(float x, float y) { return column_of(y) * CELLS_PER_SIDE + column_of(x); }

#if defined(__CUDACC__)
constexpr int TOGETHER = 4;  // slots whose distances are compared together
#else
constexpr int TOGETHER = 1;
#endif

// Finds the SLOTS nearest agents, or in a later round those after `last`, ascending by (distance, id). Writes their ids
// to `nearest`; missing ones are NOBODY. With cells, a first pass stores only distances, so a comparison costs two
// instructions. A second pass over the same cells finds their ids. Among agents exactly as far as the farthest one
// taken, the lowest ids win.
//
// `Agents` provides the agents by slot, sorted by cell: `x(slot)`, `y(slot)`, `id(slot)`, `is_seen(slot)` and
// `tags(slot)`, and `first(cell)`, the first slot of a cell. Without GRID_SEARCH slots are ids.
template <class Agents>
struct Search {
  const Agents agents;
  int own, last;  // the searching agent's slot; the last id of the previous round, NOBODY in the first
  float x, y, last_distance;

  WD_METHOD float distance_to(int slot) const { return squared(agents.x(slot) - x, agents.y(slot) - y); }

  WD_METHOD bool may_follow(int slot, float distance) const {
    if (slot == own || !agents.is_seen(slot)) return false;
    if (ROUNDS == 1 || last == NOBODY) return true;
    return distance > last_distance || (distance == last_distance && agents.id(slot) > last);
  }

  // Calls `look` for the slots in a run of cells of one row, each `stride` after the last, and the run's end.
  template <class Look>
  WD_METHOD void look_along(int row, int left, int right, int stride, const Look& look) const {
    const int end = agents.first(row * CELLS_PER_SIDE + right + 1);
    for (int slot = agents.first(row * CELLS_PER_SIDE + left); slot < end; slot += stride) look(slot, end);
  }

  // Calls `look` along a ring of cells around the middle one; the first ring includes its inside.
  template <class Look>
  WD_METHOD void look_around(int column, int row, int ring, const Look& look) const {
    const int left = column - ring, right = column + ring, bottom = row - ring, top = row + ring;
    for (int at = bottom < 0 ? 0 : bottom; at <= top && at < CELLS_PER_SIDE; ++at) {
      if (ring == 1 || at == bottom || at == top) {
        look_along(at, left < 0 ? 0 : left, wd_min(right, CELLS_PER_SIDE - 1), TOGETHER, look);
      } else {
        if (left >= 0) look_along(at, left, left, TOGETHER, look);
        if (right < CELLS_PER_SIDE) look_along(at, right, right, TOGETHER, look);
      }
    }
  }

  // Merges TOGETHER slots into the smallest `distances`, which descend. Of four sorted values the smaller ones of
  // each pair form a bitonic sequence; comparing its halves leaves two such sequences.
  WD_METHOD void keep_nearest(int slot, int end, float* distances) const {
    float more[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      more[i] = TOO_FAR;
      if (slot + i >= end) continue;
      const float distance = distance_to(slot + i);
      if (may_follow(slot + i, distance)) more[i] = distance;
    }
#if defined(__CUDACC__)
    sort_four(more);
    if (more[0] >= distances[0]) return;
#pragma unroll
    for (int i = 0; i < TOGETHER && i < SLOTS; ++i) distances[i] = smaller(distances[i], more[i]);
#pragma unroll
    for (int bit = 3; bit >= 0; --bit) {
#pragma unroll
      for (int i = 0; i < SLOTS; ++i)
        if (!(i >> bit & 1) && i + (1 << bit) < SLOTS) sort(distances[i + (1 << bit)], distances[i]);
    }
#else
    if (more[0] >= distances[0]) return;
    distances[0] = more[0];
    for (int i = 1; i < SLOTS; ++i) sort(distances[i], distances[i - 1]);
#endif
  }

  // Finds the smallest distances, ring by ring, until farther rings cannot hold a nearer agent; returns the number of rings.
  // MARGIN exceeds the total rounding of positions, cells and distances.
  WD_METHOD int measure(int column, int row, float* distances) const {
    for (int ring = 1;; ++ring) {
      look_around(column, row, ring, [&](int slot, int end) { keep_nearest(slot, end, distances); });
      const int left = column - ring, right = column + ring, bottom = row - ring, top = row + ring;
      float unseen = 2.f * GRID_LENGTH;  // lower bound of the distance to agents not searched; initially none
      if (left > 0) unseen = smaller(unseen, x - static_cast<float>(left) * CELL_LENGTH);
      if (right < CELLS_PER_SIDE - 1) unseen = smaller(unseen, static_cast<float>(right + 1) * CELL_LENGTH - x);
      if (bottom > 0) unseen = smaller(unseen, y - static_cast<float>(bottom) * CELL_LENGTH);
      if (top < CELLS_PER_SIDE - 1) unseen = smaller(unseen, static_cast<float>(top + 1) * CELL_LENGTH - y);
      if (unseen == 2.f * GRID_LENGTH) return ring;
      unseen -= MARGIN;
      if (unseen > 0.f && distances[0] < unseen * unseen) return ring;
    }
  }

  template <class Id>
  WD_METHOD void find_in_cells(Id* nearest) const {
    float distances[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) distances[i] = TOO_FAR;
    const int column = column_of(x), row = column_of(y), rings = measure(column, row, distances);

    const float limit = distances[0];
    int n_nearer = 0, n_found = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) n_nearer += distances[i] < limit;
    for (int i = n_nearer; i < SLOTS; ++i) nearest[i] = NOBODY;
    const auto take = [&](int slot, int) {
      const float distance = distance_to(slot);
      if (distance > limit || !may_follow(slot, distance)) return;
      if (distance < limit) nearest[n_found++] = static_cast<Id>(slot);
      for (int i = n_nearer; distance == limit && slot != NOBODY && i < SLOTS; ++i) {
        const int taken = nearest[i];
        if (taken != NOBODY && agents.id(taken) < agents.id(slot)) continue;
        nearest[i] = static_cast<Id>(slot);
        slot = taken;
      }
    };
    const int left = column < rings ? 0 : column - rings, right = wd_min(column + rings, CELLS_PER_SIDE - 1);
    const int top = wd_min(row + rings, CELLS_PER_SIDE - 1);
    for (int at = row < rings ? 0 : row - rings; at <= top; ++at) look_along(at, left, right, 1, take);

    int ids[SLOTS], ranks[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
      const int slot = nearest[i];
      ids[i] = slot == NOBODY ? NOBODY : agents.id(slot);
      distances[i] = i < n_nearer ? distance_to(slot) : limit;
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
    for (int i = 0; i < SLOTS; ++i) nearest[ranks[i]] = static_cast<Id>(ids[i]);
  }

  // Searches all agents in the order of their ids, so that the lower id wins among equals.
  template <class Id>
  WD_METHOD void find_among_all(Id* nearest) const {
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
    for (int i = 0; i < SLOTS; ++i) nearest[i] = static_cast<Id>(ids[i]);
  }
};

// Returns the nearest tagger in reach of a place, the lowest id among equals, or NOBODY.
template <class Agents>
WD_FN int find_tagger(const Agents& agents, float x, float y) {
  const float reach = REACH + MARGIN;
  const int left = column_of(wd_clip(x - reach, 0.f, GRID_LENGTH)), right = column_of(wd_clip(x + reach, 0.f, GRID_LENGTH));
  const int top = column_of(wd_clip(y + reach, 0.f, GRID_LENGTH));
  int tagger = NOBODY;
  float nearest = REACH_SQUARED;
  for (int row = column_of(wd_clip(y - reach, 0.f, GRID_LENGTH)); row <= top; ++row) {
    const int end = agents.first(row * CELLS_PER_SIDE + right + 1);
    for (int slot = agents.first(row * CELLS_PER_SIDE + left); slot < end; ++slot) {
      const float distance = squared(agents.x(slot) - x, agents.y(slot) - y);
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

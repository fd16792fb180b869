// Tag GridWorld. Phases as in reference.py: move, approach, score, observe, start.
//
// A block owns its environments, and its threads stride over any number of agents. Agents read each other's cells in
// global memory after a barrier, so shared memory holds a few words per environment. One thread finds the nearest of few
// taggers. Of many, minima of integers, which do not depend on their order, find first the distance and then the lowest id
// at it. Neighbouring threads write observations, most of the traffic, to consecutive addresses. Full observations may be
// written as a single row (N_ROWS is 1): the part that all agents share, without a mark of the agent itself.

#include "agent.cuh"

constexpr bool ARE_MANY = N_AGENTS > 32;
// Number of separate minima of many taggers, so that a warp's threads do not queue up at one address.
constexpr int BINS = ARE_MANY ? 32 : 1;

struct Game {
  int approached[ENVS_PER_BLOCK][BINS];  // squared distances of the runner to the nearest tagger of each bin
  int distance[ENVS_PER_BLOCK];          // the smallest of them
  int nearest[ENVS_PER_BLOCK];           // the tagger at this distance, the lowest id among equals; with partial observations
  unsigned char ended[ENVS_PER_BLOCK];
};

// ---------------------------------------------------------------------------------------------- approach

// Resets the minima of many taggers. Call a block barrier afterwards.
WD_FN void clear(Game& game) {
  if (!ARE_MANY) return;
  WD_EACH_ITEM(item, ENVS_PER_BLOCK * BINS) game.approached[item / BINS][item % BINS] = FAR;
}

// Computes the smallest distances of many taggers; ends with a block barrier.
WD_FN void approach(Game& game, int n_envs, const int (*loc_x)[N_AGENTS], const int (*loc_y)[N_AGENTS]) {
  if (!ARE_MANY) return;
  WD_EACH_AGENT(local, env, agent) {
    if (agent != RUNNER)
      lower(game.approached[local][agent % BINS], squared_distance(loc_x[env], loc_y[env], agent));
  }
  WD_SYNC();
}

// Finds the smallest distance, and of few taggers the nearest one's id. Call a block barrier afterwards.
WD_FN int settle(Game& game, int local, const int* x, const int* y) {
  int least = FAR, nearest = N_AGENTS;
  for (int bin = 0; ARE_MANY && bin < BINS; ++bin) least = wd_min(least, game.approached[local][bin]);
  for (int tagger = 0; !ARE_MANY && tagger < RUNNER; ++tagger) {
    const int distance = squared_distance(x, y, tagger);
    if (distance < least) nearest = tagger;
    least = wd_min(least, distance);
  }
  if (!USE_FULL_OBSERVATION) game.nearest[local] = nearest;
  return game.distance[local] = least;
}

// Finds the nearest one's id of many taggers, for partial observations; ends with a block barrier.
WD_FN void name_nearest(Game& game, int n_envs, const int (*loc_x)[N_AGENTS], const int (*loc_y)[N_AGENTS]) {
  if (!ARE_MANY || USE_FULL_OBSERVATION) return;
  WD_EACH_AGENT(local, env, agent) {
    if (agent != RUNNER && squared_distance(loc_x[env], loc_y[env], agent) == game.distance[local])
      lower(game.nearest[local], agent);
  }
  WD_SYNC();
}

// ---------------------------------------------------------------------------------------------- observe

// Agent of a row; no agent for the shared row.
WD_FN int self_of(int row) { return N_ROWS == 1 ? N_AGENTS : row; }

// With many rows, columns wait in shared memory, so that complete rows are written one after the other. Vectors of four
// floats repeat every four rows: if rows are a multiple of four and small, four of them wait.
constexpr bool IS_STAGED = N_ROWS > 8, IS_WIDE = IS_STAGED && N_ROWS % 4 == 0 && ENVS_PER_BLOCK * N_FEATURES <= 1024;
constexpr int WAITING_ROWS = IS_WIDE ? 4 : 1;

// True if a column of a full row marks the agent itself.
WD_FN bool marks(unsigned row, unsigned column) { return N_ROWS > 1 && column == 3 * N_AGENTS + row; }

#if defined(__CUDACC__)
struct Column {
  float value;
  bool is_end;  // of an ended environment
};

// Writes the rows of an environment from those that wait.
WD_FN void write_rows(float* rows, const float (*waiting)[N_FEATURES]) {
  if (IS_WIDE && reinterpret_cast<unsigned long long>(rows) % sizeof(float4) == 0) {
#pragma unroll 1
    for (unsigned item = WD_THREAD; item < N_ROWS / 4 * N_FEATURES; item += WD_STRIDE) {
      float4 four = reinterpret_cast<const float4*>(waiting)[item % N_FEATURES];
      // From one mark to the next there are N_FEATURES + 1 floats.
      const unsigned since_mark = (4 * item + N_AGENTS + 5) % (N_FEATURES + 1);
      if (since_mark == 0) four.w = 1.f;
      if (since_mark == 1) four.z = 1.f;
      if (since_mark == 2) four.y = 1.f;
      if (since_mark == 3) four.x = 1.f;
      reinterpret_cast<float4*>(rows)[item] = four;
    }
  } else {
    for (unsigned item = WD_THREAD; item < N_ROWS * N_FEATURES; item += WD_STRIDE)
      rows[item] = marks(item / N_FEATURES, item % N_FEATURES) ? 1.f : waiting[0][item % N_FEATURES];
  }
}
#endif

// Writes rows of ended environments to `ends` if there are `any`, and all other rows too if all are observed.
WD_FN void observe(const Game& game, int n_envs, bool all, bool any, const int* _timestep_, const int (*loc_x)[N_AGENTS],
                   const int (*loc_y)[N_AGENTS], float (*observations)[N_ROWS][N_FEATURES],
                   float (*ends)[N_ROWS][N_FEATURES]) {
#if defined(__CUDACC__)
  if (USE_FULL_OBSERVATION) {  // a thread writes columns, which are equal for all agents except for their own mark
    alignas(16) WD_SHARED float waiting[IS_STAGED ? ENVS_PER_BLOCK : 1][WAITING_ROWS][N_FEATURES];
    const auto load = [&](const int item) {
      const int local = item / N_FEATURES, env = WD_FIRST_ENV + local;
      const float progress = share<EPISODE_LENGTH>(_timestep_[env]);
      return Column{seen(progress, 0, loc_x[env], loc_y[env], N_AGENTS, item % N_FEATURES), any && game.ended[local]};
    };
    const auto store = [&](const int item, const Column of) {
      const int local = item / N_FEATURES, column = item % N_FEATURES, self = column - 3 * N_AGENTS;
      if (item >= WD_OWNED_ENVS * N_FEATURES || !(all || of.is_end)) return;
      if constexpr (IS_STAGED) {
        for (int row = 0; row < WAITING_ROWS; ++row) waiting[local][row][column] = of.value;
      } else {
        const auto write = [&](float(*const rows)[N_FEATURES]) {
          for (int row = 0; row < N_ROWS; ++row) rows[row][column] = of.value;
          if (N_ROWS > 1 && self >= 0 && self < N_AGENTS) rows[self][column] = 1.f;
        };
        const int env = WD_FIRST_ENV + local;
        // A choice of the array would load both addresses from the parameters in every step. A distance between them would
        // be wrong, as one of them may be in shared memory.
        if (of.is_end)
          write(ends[env]);
        else
          write(observations[env]);
      }
    };
    wd_move<ENVS_PER_BLOCK * N_FEATURES, WD_STRIDE>(WD_BEGIN(WD_THREAD), WD_OWNED_ENVS * N_FEATURES - 1, load, store);
    if constexpr (!IS_STAGED) return;
    WD_SYNC();
    for (int local = 0; local < WD_OWNED_ENVS; ++local) {
      const bool is_end = any && game.ended[local];
      if (all || is_end) write_rows((is_end ? ends : observations)[WD_FIRST_ENV + local][0], waiting[local]);
    }
    return;
  }
#endif
  float progress = 0.f;
  for (int item = WD_THREAD / LANES; item < ENVS_PER_BLOCK * N_ROWS; item += WD_STRIDE / LANES) {
    const int local = item / N_ROWS, row = item % N_ROWS, self = self_of(row), env = WD_FIRST_ENV + local;
    if (env >= n_envs) continue;
    const bool is_end = any && game.ended[local];
    if (!(all || is_end)) continue;
    float* const target = (is_end ? ends : observations)[env][row];
#if !defined(__CUDACC__)
    if (USE_FULL_OBSERVATION && row > 0) {  // the previous row, except for the mark
      std::memcpy(target, target - N_FEATURES, sizeof(float) * N_FEATURES);
      target[3 * N_AGENTS + self - 1] = 0.f;
      target[3 * N_AGENTS + self] = 1.f;
      continue;
    }
#endif
    if (WD_STRIDE > 1 || row == 0) progress = share<EPISODE_LENGTH>(_timestep_[env]);
    for (int column = WD_THREAD % LANES; column < N_FEATURES; column += LANES)
      target[column] = seen(progress, game.nearest[local], loc_x[env], loc_y[env], self, column);
  }
}

// ---------------------------------------------------------------------------------------------- start

// Starts the next episode of the block's ended environments. Call after a block barrier; the function ends with
// another one.
WD_FN void start(Game& game, int n_envs, int (*loc_x)[N_AGENTS], int (*loc_y)[N_AGENTS],
                 const int (*loc_x_reset_pool)[N_AGENTS], const int (*loc_y_reset_pool)[N_AGENTS], int* _timestep_,
                 int* _episode_, const int* _reset_seed_) {
  WD_EACH_AGENT(local, env, agent) {
    if (!game.ended[local]) continue;
    const int row = wd_pool_row(_episode_[env], env, _reset_seed_[0], _reset_seed_[1], N_STARTS);
    loc_x[env][agent] = loc_x_reset_pool[row][agent];
    loc_y[env][agent] = loc_y_reset_pool[row][agent];
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (!game.ended[local]) continue;
    _timestep_[env] = 0;
    _episode_[env] += 1;
  }
  if (!USE_FULL_OBSERVATION) clear(game);
  WD_SYNC();
  if (USE_FULL_OBSERVATION) return;
  // Environments without a restart compute the same minima again.
  approach(game, n_envs, loc_x, loc_y);
  WD_EACH_ENV(local, env) settle(game, local, loc_x[env], loc_y[env]);
  WD_SYNC();
  name_nearest(game, n_envs, loc_x, loc_y);
}

// ---------------------------------------------------------------------------------------------- kernels

WD_KERNEL(step)(int (*loc_x)[N_AGENTS], int (*loc_y)[N_AGENTS], const int (*loc_x_reset_pool)[N_AGENTS],
                const int (*loc_y_reset_pool)[N_AGENTS], const int (*sampled_actions)[N_AGENTS][1],
                float (*rewards)[N_AGENTS], float (*observations)[N_ROWS][N_FEATURES],
                float (*final_observations)[N_ROWS][N_FEATURES], int* terminated, int* truncated, int* _done_,
                int* _timestep_, int* _episode_, const int* _reset_seed_, int n_envs) {
  WD_SHARED Game game;

  // move: until the score the rewards hold the wall's cost
  clear(game);
  WD_EACH_AGENT(local, env, agent) {
    rewards[env][agent] = moved(loc_x[env][agent], loc_y[env][agent], sampled_actions[env][agent][0]);
  }
  WD_SYNC();
  approach(game, n_envs, loc_x, loc_y);

  // score
  bool ends = false;
  WD_EACH_ENV(local, env) {
    const int timestep = _timestep_[env] + 1;
    const bool is_tagged = settle(game, local, loc_x[env], loc_y[env]) == 0, out_of_time = timestep >= EPISODE_LENGTH;
    _timestep_[env] = timestep;
    terminated[env] = is_tagged;
    truncated[env] = out_of_time && !is_tagged;
    _done_[env] = game.ended[local] = is_tagged || out_of_time;
    ends |= is_tagged || out_of_time;
  }
  const bool restarts = WD_SYNC_ANY(ends) && AUTO_RESET;
  WD_EACH_AGENT(local, env, agent) {
    rewards[env][agent] += reward(agent, game.distance[local] == 0);
  }
  name_nearest(game, n_envs, loc_x, loc_y);
  if (WD_OBSERVED || restarts)
    observe(game, n_envs, WD_OBSERVED, restarts, _timestep_, loc_x, loc_y, observations, final_observations);
  if (restarts) {
    WD_SYNC();  // the old cells have been observed
    start(game, n_envs, loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, _timestep_, _episode_, _reset_seed_);
    if (WD_OBSERVED) observe(game, n_envs, false, true, _timestep_, loc_x, loc_y, observations, observations);
  }
}

WD_KERNEL(reset)(int (*loc_x)[N_AGENTS], int (*loc_y)[N_AGENTS], const int (*loc_x_reset_pool)[N_AGENTS],
                 const int (*loc_y_reset_pool)[N_AGENTS], float (*observations)[N_ROWS][N_FEATURES], int* _done_,
                 int* _timestep_, int* _episode_, const int* _reset_seed_, int force, int n_envs) {
  WD_SHARED Game game;
  bool starts = false;
  WD_EACH_ENV(local, env) {
    starts |= game.ended[local] = force != 0 || _done_[env] != 0;
    _done_[env] = 0;
  }
  if (!WD_SYNC_ANY(starts)) return;
  start(game, n_envs, loc_x, loc_y, loc_x_reset_pool, loc_y_reset_pool, _timestep_, _episode_, _reset_seed_);
  observe(game, n_envs, false, true, _timestep_, loc_x, loc_y, observations, observations);
}

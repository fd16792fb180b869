// Tag GridWorld with several blocks per environment. Phases as in reference.py, split into kernels where all blocks must
// synchronise (env.py lists the sequences): move, approach, name_nearest, observe; for a restart start, approach,
// name_nearest, observe. name_nearest, and approach after a start, are for partial observations. The nearest tagger is in
// global memory.

#include "agent.cuh"

WD_KERNEL(move)(int (*loc_x)[N_AGENTS], int (*loc_y)[N_AGENTS], const int (*sampled_actions)[N_AGENTS][1],
                float (*rewards)[N_AGENTS], int* nearest_distance, int* nearest_tagger, int* _timestep_, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    rewards[env][agent] = moved(loc_x[env][agent], loc_y[env][agent], sampled_actions[env][agent][0]);
    if (agent == RUNNER) {
      _timestep_[env] += 1;
      nearest_distance[env] = FAR;
      nearest_tagger[env] = N_AGENTS;
    }
  }
}

// Finds the smallest squared distance of a tagger. Each block reduces first, so that blocks queue up instead of threads.
WD_KERNEL(approach)(const int (*loc_x)[N_AGENTS], const int (*loc_y)[N_AGENTS], int* nearest_distance,
                    const int* restarts, int restarted, int n_envs) {
  WD_SHARED int least;
  const int this_env = WD_FIRST_ENV;
  if (this_env >= n_envs || (restarted && !restarts[this_env])) return;
  if (WD_THREAD == 0) least = FAR;
  WD_SYNC();
  int own = FAR;
  WD_EACH_AGENT(local, env, agent) {
    if (agent != RUNNER) own = wd_min(own, squared_distance(loc_x[env], loc_y[env], agent));
  }
  if (own != FAR) lower(least, own);
  WD_SYNC();
  if (WD_THREAD == 0) WD_ATOMIC_MIN(&nearest_distance[this_env], least);
}

// Finds the nearest tagger's id, the lowest among equals; each block reduces first. For partial observations.
WD_KERNEL(name_nearest)(const int (*loc_x)[N_AGENTS], const int (*loc_y)[N_AGENTS], const int* nearest_distance,
                        int* nearest_tagger, const int* restarts, int restarted, int n_envs) {
  WD_SHARED int lowest;
  const int this_env = WD_FIRST_ENV;
  if (this_env >= n_envs || (restarted && !restarts[this_env])) return;
  if (WD_THREAD == 0) lowest = N_AGENTS;
  WD_SYNC();
  WD_EACH_AGENT(local, env, agent) {
    if (agent != RUNNER && squared_distance(loc_x[env], loc_y[env], agent) == nearest_distance[env])
      lower(lowest, agent);
  }
  WD_SYNC();
  if (WD_THREAD == 0) WD_ATOMIC_MIN(&nearest_tagger[this_env], lowest);
}

// Writes the rows, and after a move the rewards and flags. The last kernel of a restart: it counts the episode.
WD_KERNEL(observe)(const int (*loc_x)[N_AGENTS], const int (*loc_y)[N_AGENTS], const int* nearest_distance,
                   const int* nearest_tagger, float (*rewards)[N_AGENTS], float (*observations)[N_AGENTS][N_FEATURES],
                   float (*final_observations)[N_AGENTS][N_FEATURES], int* terminated, int* truncated, int* _done_,
                   const int* _timestep_, int* _episode_, const int* restarts, int restarted, int clears_done,
                   int n_envs) {
  const int env = WD_FIRST_ENV;
  if (env >= n_envs || (restarted && !restarts[env])) return;
  const int timestep = _timestep_[env];
  const bool is_tagged = nearest_distance[env] == 0, out_of_time = timestep >= EPISODE_LENGTH;
  const float progress = share<EPISODE_LENGTH>(timestep);
  const bool is_final = AUTO_RESET && !restarted && (is_tagged || out_of_time);
  float (*const target)[N_FEATURES] = is_final ? final_observations[env] : observations[env];
  for (int self = WD_FIRST_ITEM + WD_THREAD / LANES; self < WD_END_ITEM; self += WD_STRIDE / LANES) {
    for (int column = WD_THREAD % LANES; column < N_FEATURES; column += LANES)
      target[self][column] = seen(progress, nearest_tagger[env], loc_x[env], loc_y[env], self, column);
    if (!restarted && WD_THREAD % LANES == 0) rewards[env][self] += reward(self, is_tagged);
  }
  if (WD_PART != 0 || WD_THREAD != 0) return;
  if (restarted) {
    _episode_[env] += 1;
    if (clears_done) _done_[env] = 0;
  } else {
    terminated[env] = is_tagged;
    truncated[env] = out_of_time && !is_tagged;
    _done_[env] = is_tagged || out_of_time;
  }
}

// Sets the agents of ended (or all) environments to their start; `restarts` marks them for the following kernels.
WD_KERNEL(start)(int (*loc_x)[N_AGENTS], int (*loc_y)[N_AGENTS], const int (*loc_x_reset_pool)[N_AGENTS],
                 const int (*loc_y_reset_pool)[N_AGENTS], int* nearest_distance, int* nearest_tagger,
                 const int* _done_, int* _timestep_, const int* _episode_, const int* _reset_seed_, int* restarts,
                 int force, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const bool ends = force || _done_[env];
    if (agent == RUNNER) restarts[env] = ends;
    if (!ends) continue;
    const int row = wd_pool_row(_episode_[env], env, _reset_seed_[0], _reset_seed_[1], N_STARTS);
    loc_x[env][agent] = loc_x_reset_pool[row][agent];
    loc_y[env][agent] = loc_y_reset_pool[row][agent];
    if (agent == RUNNER) {
      _timestep_[env] = 0;
      nearest_distance[env] = FAR;
      nearest_tagger[env] = N_AGENTS;
    }
  }
}

// What environments of one agent share in CUDA C: how a step ends, and how episodes start.
//
// Constants that come before this header: EPISODE_LENGTH, AUTO_RESET, RESET_POOL_SIZE. An environment defines after it,
// for these templates to find by its type of state:
//   struct State                          a row of `state`
//   observe(const State&)                 returns a row of `observations`, what is seen of the state
//   draw_start(State&, const wd_words&)   sets the state to a start, from the four words of an episode
#pragma once

// Uniform within plus or minus a limit.
WD_FN float symmetric(unsigned word, float limit) { return (wd_uniform(word) * 2.f - 1.f) * limit; }

// The start of an environment's next episode: a row of the pool, or one that is drawn.
template <class State, int N_STATE>
WD_FN State start(int env, int episode, const int* seed, const float (*pool)[N_AGENTS][N_STATE]) {
  static_assert(sizeof(State) == N_STATE * sizeof(float), "State must be a row of `state`");
  if (RESET_POOL_SIZE >= 1) {
    const int row = RESET_POOL_SIZE == 1 ? 0 : wd_pool_row(episode, env, seed[0], seed[1], RESET_POOL_SIZE);
    return wd_load<State>(pool[row][0]);
  }
  State s;
  draw_start(s, wd_philox(episode, env, 0, STREAM_START, seed[0], seed[1]));
  return s;
}

// A thread of a GPU starts the next episode with the state in registers. On the CPU, where the environments of a step are
// lanes of SIMD, the few that ended start after all have moved: `restart_finished`.
#if defined(__CUDACC__)
constexpr bool STARTS_AT_ONCE = AUTO_RESET;
#else
constexpr bool STARTS_AT_ONCE = false;
#endif

#if !defined(__CUDACC__)

// The words of the starts of up to WD_LANES environments.
WD_FN void draw_words(const int* envs, int n, const int* episodes, const int* seed, unsigned (*words)[WD_LANES]) {
  wd_number env[WD_LANES] = {}, episode[WD_LANES] = {};
  for (int i = 0; i < n; ++i) {
    env[i] = envs[i];
    episode[i] = episodes[envs[i]];
  }
  wd_lanes of_envs, of_episodes;
  std::memcpy(&of_envs, env, sizeof env);
  std::memcpy(&of_episodes, episode, sizeof episode);
  const auto drawn = wd_philox_lanes(of_episodes, of_envs, wd_number{0}, wd_number{STREAM_START}, seed[0], seed[1]);
  wd_store_lanes(words[0], drawn.x);
  wd_store_lanes(words[1], drawn.y);
  wd_store_lanes(words[2], drawn.z);
  wd_store_lanes(words[3], drawn.w);
}

#endif

// Writes what a step led to; with AUTO_RESET, goes on to the next episode if it ended one.
template <class State, class Seen, int N_STATE, int N_FEATURES>
WD_FN void finish(int env, State s, Seen seen, float reward, bool is_terminal, float (*state)[N_AGENTS][N_STATE],
                  float (*observations)[N_AGENTS][N_FEATURES], float (*final_observations)[N_AGENTS][N_FEATURES],
                  float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                  int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][N_STATE]) {
  static_assert(sizeof(Seen) == N_FEATURES * sizeof(float), "observe must return a row of `observations`");
  const int timestep = _timestep_[env] + 1;
  const bool out_of_time = (timestep >= EPISODE_LENGTH) & !is_terminal;
  const bool done = is_terminal | out_of_time;
  rewards[env][0] = reward;
  terminated[env] = is_terminal;
  truncated[env] = out_of_time;
  _done_[env] = done;
  _timestep_[env] = AUTO_RESET && done ? 0 : timestep;
  if (STARTS_AT_ONCE && done) {
    wd_store(final_observations[env][0], seen);
    s = start<State>(env, _episode_[env]++, _reset_seed_, state_reset_pool);
    seen = observe(s);
  }
  wd_store(state[env][0], s);
  wd_store(observations[env][0], seen);
}

// With AUTO_RESET, starts the next episode of the environments that `finish` has left at the end of one.
template <class State, int N_STATE, int N_FEATURES>
WD_FN void restart_finished(float (*state)[N_AGENTS][N_STATE], float (*observations)[N_AGENTS][N_FEATURES],
                            float (*final_observations)[N_AGENTS][N_FEATURES], const int* _done_, int* _episode_,
                            const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][N_STATE], int n_envs) {
#if !defined(__CUDACC__)
  if constexpr (AUTO_RESET) {
    int ended[ENVS_PER_BLOCK + WD_LISTED_MORE];
    const int n_ended = wd_list_set(_done_, WD_FIRST_ENV, wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs), ended);
    for (int first = 0; first < n_ended; first += WD_LANES) {
      const int* const envs = ended + first;
      const int n = wd_min(WD_LANES, n_ended - first);
      unsigned words[4][WD_LANES];
      if (RESET_POOL_SIZE == 0) draw_words(envs, n, _episode_, _reset_seed_, words);
      for (int i = 0; i < n; ++i) {
        const int env = envs[i];
        for (int feature = 0; feature < N_FEATURES; ++feature)
          final_observations[env][0][feature] = observations[env][0][feature];
        State s;
        if constexpr (RESET_POOL_SIZE == 0)
          draw_start(s, {words[0][i], words[1][i], words[2][i], words[3][i]});
        else
          s = start<State>(env, _episode_[env], _reset_seed_, state_reset_pool);
        _episode_[env] += 1;
        wd_store(state[env][0], s);
        wd_store(observations[env][0], observe(s));
      }
    }
  }
#endif
}

// The kernel `reset`: restarts the finished environments, or all.
template <class State, int N_STATE, int N_FEATURES>
WD_FN void restart(float (*state)[N_AGENTS][N_STATE], float (*observations)[N_AGENTS][N_FEATURES], int* _timestep_,
                   int* _done_, int* _episode_, const int* _reset_seed_,
                   const float (*state_reset_pool)[N_AGENTS][N_STATE], int force, int n_envs) {
  WD_EACH_ENV(local, env) {
    if (_done_[env] || force) {
      const State s = start<State>(env, _episode_[env]++, _reset_seed_, state_reset_pool);
      wd_store(state[env][0], s);
      wd_store(observations[env][0], observe(s));
      _timestep_[env] = 0;
      _done_[env] = 0;
    }
  }
}

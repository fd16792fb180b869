// Kernels of single-agent environments with the interface of `single.cuh`: `step`, `reset`, and rollouts.
//
// Constants required before this header: N_STATE, N_FEATURES, EPISODE_LENGTH, AUTO_RESET, RESET_POOL_SIZE. Rollouts also
// need KEEP_ALL, and those of `rollout.cuh` or `policy.cuh`.
#pragma once

static_assert(sizeof(State) == N_STATE * sizeof(float), "State must be a row of `state`");
static_assert(sizeof(Seen) == N_FEATURES * sizeof(float), "Seen must be a row of `observations`");

// Returns the start of an environment's next episode: a row of the pool, or a drawn state.
WD_FN State start(int env, int episode, const int* seed, const float (*pool)[N_AGENTS][N_STATE]) {
  if (RESET_POOL_SIZE >= 1) {
    const int row = RESET_POOL_SIZE == 1 ? 0 : wd_pool_row(episode, env, seed[0], seed[1], RESET_POOL_SIZE);
    return wd_load<State>(pool[row][0]);
  }
  State s;
  draw_start(s, wd_philox(episode, env, 0, STREAM_START, seed[0], seed[1]));
  return s;
}

// On a GPU a thread starts the next episode with the state in registers. On the CPU the environments of a step are lanes of
// SIMD, so the few that ended start after all have moved: `restart_finished`.
#if defined(__CUDACC__)
constexpr bool STARTS_AT_ONCE = AUTO_RESET;
#else
constexpr bool STARTS_AT_ONCE = false;
#endif

#if !defined(__CUDACC__)

// Calls `go_on` with each ended environment of this block and the start of its next episode, and counts the episode.
// Draws WD_LANES starts at once.
template <class Flag, class GoOn>
WD_FN void start_next_episodes(const Flag* const done, int* const episode, const int* const seed,
                               const float (*const pool)[N_AGENTS][N_STATE], const int n_envs, const GoOn& go_on) {
  int ended[ENVS_PER_BLOCK + WD_LISTED_MORE];
  const int n_ended = wd_list_set(done, WD_FIRST_ENV, wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs), ended);
  for (int i = 0; i < n_ended; i += WD_LANES) {
    const int n = wd_min(WD_LANES, n_ended - i);
    unsigned words[4][WD_LANES];
    if (RESET_POOL_SIZE == 0) {
      wd_lanes envs, episodes;
      for (int lane = 0; lane < WD_LANES; ++lane) {
        envs[lane] = ended[i + wd_min(lane, n - 1)];
        episodes[lane] = episode[envs[lane]];
      }
      const wd_lanes numbers = envs + wd_number{WD_ENVS_BEFORE};
      const auto drawn = wd_philox_lanes(episodes, numbers, wd_number{0}, wd_number{STREAM_START}, seed[0], seed[1]);
      wd_store_lanes(words[0], drawn.x);
      wd_store_lanes(words[1], drawn.y);
      wd_store_lanes(words[2], drawn.z);
      wd_store_lanes(words[3], drawn.w);
    }
    State starts[WD_LANES];
    for (int lane = 0; lane < WD_LANES; ++lane)
      if constexpr (RESET_POOL_SIZE == 0)
        draw_start(starts[lane], {words[0][lane], words[1][lane], words[2][lane], words[3][lane]});
      else
        starts[lane] = start(ended[i + wd_min(lane, n - 1)], episode[ended[i + wd_min(lane, n - 1)]], seed, pool);
    for (int lane = 0; lane < n; ++lane) {
      episode[ended[i + lane]] += 1;
      go_on(ended[i + lane], starts[lane]);
    }
  }
}

// Copies the flags of this block's environments to a row of one-byte flags.
WD_FN void copy_flags(const int* done, const int* terminated, const int* truncated, bool* done_row, bool* terminated_row,
                      bool* truncated_row, int n_envs) {
  WD_EACH_ENV(local, env) {
    done_row[env] = done[env] != 0;
    terminated_row[env] = terminated[env] != 0;
    truncated_row[env] = truncated[env] != 0;
  }
}

#endif

// With AUTO_RESET, starts the next episode of the environments that ended in this step.
WD_FN void restart_finished(float (*state)[N_AGENTS][N_STATE], float (*observations)[N_AGENTS][N_FEATURES],
                            float (*final_observations)[N_AGENTS][N_FEATURES], const int* _done_, int* _episode_,
                            const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][N_STATE], int n_envs) {
#if !defined(__CUDACC__)
  if constexpr (AUTO_RESET) {
    start_next_episodes(_done_, _episode_, _reset_seed_, state_reset_pool, n_envs, [=](int env, const State& s) {
      for (int feature = 0; feature < N_FEATURES; ++feature)
        final_observations[env][0][feature] = observations[env][0][feature];
      wd_store(state[env][0], s);
      wd_store(observations[env][0], observe(s));
    });
  }
#endif
}

// Steps the environments of this block; with AUTO_RESET, restarts those that ended.
WD_FN void take_step(float (*state)[N_AGENTS][N_STATE], const Action (*sampled_actions)[N_AGENTS][1],
                     float (*observations)[N_AGENTS][N_FEATURES], float (*final_observations)[N_AGENTS][N_FEATURES],
                     float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                     int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][N_STATE],
                     int n_envs) {
  WD_EACH_ENV(local, env) {
    auto after = outcome(wd_load<State>(state[env][0]), sampled_actions[env][0][0]);
    const int timestep = _timestep_[env] + 1;
    const bool out_of_time = (timestep >= EPISODE_LENGTH) & !after.is_terminal;
    const bool done = after.is_terminal | out_of_time;
    rewards[env][0] = after.reward;
    terminated[env] = after.is_terminal;
    truncated[env] = out_of_time;
    _done_[env] = done;
    _timestep_[env] = AUTO_RESET && done ? 0 : timestep;
    if (STARTS_AT_ONCE && done) {
      wd_store(final_observations[env][0], after.seen);
      const int episode = _episode_[env];  // written after the start has read its seed, to avoid a wait
      after.state = start(env, episode, _reset_seed_, state_reset_pool);
      after.seen = observe(after.state);
      _episode_[env] = episode + 1;
    }
    wd_store(state[env][0], after.state);
    wd_store(observations[env][0], after.seen);
  }
  restart_finished(state, observations, final_observations, _done_, _episode_, _reset_seed_, state_reset_pool, n_envs);
}

WD_KERNEL(step)(float (*state)[N_AGENTS][N_STATE], const Action (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][N_FEATURES], float (*final_observations)[N_AGENTS][N_FEATURES],
                float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int* terminated, int* truncated,
                int* _episode_, const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][N_STATE],
                int n_envs) {
  take_step(state, sampled_actions, observations, final_observations, rewards, _timestep_, _done_, terminated, truncated,
            _episode_, _reset_seed_, state_reset_pool, n_envs);
}

// Restarts the finished environments, or all.
WD_KERNEL(reset)(float (*state)[N_AGENTS][N_STATE], float (*observations)[N_AGENTS][N_FEATURES], int* _timestep_,
                 int* _done_, int* _episode_, const int* _reset_seed_,
                 const float (*state_reset_pool)[N_AGENTS][N_STATE], int force, int n_envs) {
  WD_EACH_ENV(local, env) {
    if (force || _done_[env]) {
      const int episode = _episode_[env];
      const State s = start(env, episode, _reset_seed_, state_reset_pool);
      wd_store(state[env][0], s);
      wd_store(observations[env][0], observe(s));
      _episode_[env] = episode + 1;
      _timestep_[env] = 0;
      _done_[env] = 0;
    }
  }
}

#if defined(__CUDACC__) && (defined(WD_ROLLOUT) || defined(WD_POLICY))

constexpr int STEPS_AHEAD = 8;  // steps between draws of the next starts; a warp draws together, and warps synchronise

// An environment in a thread's registers, the result of its last step, and the start of its next episode, if drawn.
// `n_drawn` counts starts: those of its episodes, and the next one if drawn.
struct Playing {
  State state;
  Seen seen;
  int timestep, n_drawn;
  float reward;
  bool is_terminal, is_done, is_drawn;
  State next;
  Seen led_to;  // what the last step led to, before a restart

  WD_METHOD bool out_of_time() const { return is_done & !is_terminal; }
};

WD_FN void draw_next_start(Playing& at, const int env, const int* const seed, const float (*const pool)[N_AGENTS][N_STATE]) {
  at.next = start(env, at.n_drawn - at.is_drawn, seed, pool);
  at.n_drawn += !at.is_drawn;
  at.is_drawn = true;
}

// Takes a step, after which `restart` must follow if an episode ended.
template <class Prepared>
WD_FN void advance(Playing& at, const Action action, const Prepared& prepared) {
  const auto after = outcome(at.state, action, prepared);
  at.state = after.state;
  at.seen = at.led_to = after.seen;
  at.reward = after.reward;
  at.is_terminal = after.is_terminal;
  at.timestep += 1;
  at.is_done = at.is_terminal | (at.timestep >= EPISODE_LENGTH);
}

// Starts the next episode of an environment whose episode ended, with the start drawn before.
WD_FN void restart(Playing& at, const bool is_done) {
  at.is_drawn &= !is_done;
  at.timestep = is_done ? 0 : at.timestep;
  at.state = is_done ? at.next : at.state;
  at.seen = observe(at.state);
}

// The same in a branch, which draws the start if needed. Writes the final observation if it has a place.
WD_FN void restart_apart(Playing& at, float* const ended, const int env, const int* const seed,
                         const float (*const pool)[N_AGENTS][N_STATE]) {
  if (!at.is_done) return;
  if (ended) wd_store(ended, at.led_to);
  if (!at.is_drawn) draw_next_start(at, env, seed, pool);
  restart(at, true);
}

WD_FN void keep_result(const Playing& at, float* const seen, float* const reward) {
  wd_store(seen, at.seen);
  *reward = at.reward;
}

template <class Flag>
WD_FN void keep_flags(const Playing& at, Flag* const done, Flag* const terminated, Flag* const truncated) {
  *done = at.is_done;
  *terminated = at.is_terminal;
  *truncated = at.out_of_time();
}

// Number of adjacent threads whose observation rows fill whole memory lines of LINE bytes.
constexpr int LINE = 32;
constexpr int greatest_divisor(const int a, const int b) { return b == 0 ? a : greatest_divisor(b, a % b); }
constexpr int NEIGHBOURS = LINE / greatest_divisor(LINE, sizeof(Seen));

// Neighbours of a thread, including itself, as a bit mask of lanes.
WD_FN unsigned neighbours() { return __match_any_sync(0xFFFFFFFFu, WD_THREAD % 32 / NEIGHBOURS); }

// True if an episode of a thread or a neighbour ended. If each step has its own rows, all of them then write their
// observations: memory writes a whole line much faster than a part.
WD_FN bool any_near(const bool is_done, const unsigned near) {
  return (__ballot_sync(0xFFFFFFFFu, is_done) & near) != 0u;
}

#endif

#if defined(WD_ROLLOUT)

#if !defined(__CUDACC__)
#include "single_lanes.cuh"
#else
#include "single_prepared.cuh"
#endif

// Takes n_steps steps. On a GPU a thread keeps its environment in registers throughout, and four draws share a block of
// random words. A warp draws its next starts at once, before its episodes end one by one. On the CPU environments are
// lanes of SIMD (`single_lanes.cuh`). With KEEP_ALL arrays have a row per step; the arrays of the last step are separate.
// Without it they are the same.
WD_KERNEL(rollout)(float (*state)[N_AGENTS][N_STATE], Action (*sampled_actions)[N_AGENTS][1],
                   float (*observations)[N_AGENTS][N_FEATURES], float (*final_observations)[N_AGENTS][N_FEATURES],
                   float (*rewards)[N_AGENTS], Action (*last_sampled_actions)[N_AGENTS][1],
                   float (*last_observations)[N_AGENTS][N_FEATURES], float (*last_rewards)[N_AGENTS],
                   int* _timestep_, int* _done_, int* terminated, int* truncated, bool* done_rows,
                   bool* terminated_rows, bool* truncated_rows, int* _episode_,
                   const int* _reset_seed_, const float (*state_reset_pool)[N_AGENTS][N_STATE],
                   int* draws, const int* seed, int stream, int n_steps, int n_envs) {
#if defined(__CUDACC__)
  static_assert(THREADS == ENVS_PER_BLOCK, "a thread has an environment");
  // The last warp's extra threads repeat the last environment and write the same values: a warp acts as one unit.
  const int env = wd_min(WD_FIRST_ENV + WD_THREAD, n_envs - 1);
  const unsigned near = neighbours();
  const int start_seed[2] = {_reset_seed_[0], _reset_seed_[1]};
  const int seed_low = RANDOM ? seed[0] : 0, seed_high = RANDOM ? seed[1] : 0;
  Playing at = {wd_load<State>(state[env][0]), {}, _timestep_[env], _episode_[env]};
  const unsigned first_word = RANDOM ? draws[env] : 0;
  wd_words words = {0u, 0u, 0u, 0u};
  Action action = 0;
  WD_SYNC();  // before overwriting the state that others start from
  long long row = env;
  // Bytes from `observations`; both are in global memory. Without this the compiler loads the array's address in every step,
  // and the warp waits.
  long long to_final = reinterpret_cast<char*>(final_observations) - reinterpret_cast<char*>(observations);
  asm("" : "+l"(to_final));
  float* const ended = KEEP_ALL ? nullptr : final_observations[env][0];
  const auto take = [&](const unsigned word, const auto& prepared) {
    action = RANDOM ? wd_chosen(word, 0, 0) : sampled_actions[row][0][0];
    advance(at, action, prepared);
  };
  const auto keep = [&] {
    if (KEEP_ALL) {
      if (RANDOM) sampled_actions[row][0][0] = action;
      keep_result(at, observations[row][0], rewards[row]);
      keep_flags(at, done_rows + row, terminated_rows + row, truncated_rows + row);
      float* const last = reinterpret_cast<float*>(reinterpret_cast<char*>(observations[row]) + to_final);
      if (any_near(at.is_done, near)) wd_store(last, at.led_to);
    }
    row += n_envs;
    asm("" : "+l"(row));  // the compiler would hold the addresses of several steps in registers
  };
  if (IS_PREPARED) {  // see single_prepared.cuh
    Prepared prepared = prepare(at.state);
    WordsAhead ahead = {{}, {}, 0u, env, stream, seed_low, seed_high};
    if (RANDOM) ahead.begin(first_word);
    bool is_late;
    const auto take_prepared = [&](const int i) {
      take(wd_word(words, i), prepared);
      if (at.is_done && ended) wd_store(ended, at.led_to);
      is_late = at.is_done & !at.is_drawn;
      restart(at, at.is_done);
      prepared = prepare_running(at.state);
    };
    int n_left = n_steps;
    for (int k = 0; n_left > 0; k += GROUP, n_left -= GROUP) {
      asm("" : "+r"(n_left));  // the compiler would load n_steps in each iteration
      if (k % STEPS_AHEAD == 0) {
        if (KEEP_ALL) WD_SYNC();  // warps write one contiguous piece of memory at about the same time
        if (__any_sync(WARP, !at.is_drawn)) draw_next_start(at, env, start_seed, state_reset_pool);
      }
      if (RANDOM) words = ahead.of_group();
      int i = 0;
      bool is_taken = false;  // step i, before its result is kept
      if (n_left >= GROUP) {
#pragma unroll
        for (; i < GROUP; ++i) {
          take_prepared(i);
          if (RANDOM && i == 0) ahead.draw();
          is_taken = __any_sync(WARP, is_late);
          if (is_taken) break;
          keep();
        }
        if (!is_taken) continue;
      }
      // The last steps, or those after an episode that was too short to draw its successor's start in time.
      const int until = wd_min(GROUP, n_left);
#pragma unroll 1
      for (; i < until; ++i) {
        if (!is_taken) take_prepared(i);
        is_taken = false;
        if (__any_sync(WARP, is_late)) start_late(at, prepared, is_late, env, start_seed, state_reset_pool);
        keep();
      }
    }
  } else {
    for (int k = 0; k < n_steps;) {
      if (KEEP_ALL) WD_SYNC();  // warps write one contiguous piece of memory at about the same time
      if (!at.is_drawn) draw_next_start(at, env, start_seed, state_reset_pool);
      for (const int until = wd_min(k + STEPS_AHEAD, n_steps); k < until; ++k) {
        const unsigned word = first_word + k;
        if (RANDOM && (k == 0 || word % 4u == 0u)) words = wd_philox(word / 4u, env, 0, stream, seed_low, seed_high);
        take(wd_word(words, static_cast<int>(word % 4u)), Nothing{});
        restart_apart(at, ended, env, start_seed, state_reset_pool);
        keep();
      }
    }
  }
  last_sampled_actions[env][0][0] = action;
  keep_result(at, last_observations[env][0], last_rewards[env]);
  keep_flags(at, _done_ + env, terminated + env, truncated + env);
  wd_store(state[env][0], at.state);
  _timestep_[env] = at.timestep;
  _episode_[env] = at.n_drawn - at.is_drawn;
  if (RANDOM) draws[env] = first_word + n_steps;
#else
  Lanes at;
  bool are_alike = true;
  WD_EACH_ENV(lane, env) {
    set_row(at.state, lane, wd_load<State>(state[env][0]));
    at.first_step[lane] = -_timestep_[env];
  }
  for (int env = WD_FIRST_ENV; RANDOM && env < wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs); ++env)
    are_alike &= draws[env] == draws[WD_FIRST_ENV];
  for (int k = 0; k < n_steps; ++k) {
    const long long row = static_cast<long long>(k) * n_envs, kept = KEEP_ALL ? row : 0;
    const unsigned* const words = RANDOM ? words_of(at, draws, k, are_alike, seed, stream, n_envs) : nullptr;
    const auto take = [&](const auto step) {
      step(at, k, words, sampled_actions + (KEEP_ALL || !RANDOM ? row : 0), observations + kept,
           final_observations + kept, rewards + kept, _done_, terminated, truncated, _episode_, _reset_seed_,
           state_reset_pool, n_envs);
    };
    if (KEEP_ALL || k == n_steps - 1)
      take([](auto&&... given) { step_lanes<true>(given...); });
    else
      take([](auto&&... given) { step_lanes<false>(given...); });
    if (KEEP_ALL)
      copy_flags(_done_, terminated, truncated, done_rows + row, terminated_rows + row, truncated_rows + row, n_envs);
  }
  WD_EACH_ENV(lane, env) {
    const long long last = static_cast<long long>(n_steps - 1) * n_envs + env;
    wd_store(state[env][0], row_of<State>(at.state, lane));
    if (KEEP_ALL || !RANDOM) last_sampled_actions[env][0][0] = sampled_actions[last][0][0];
    if (KEEP_ALL) wd_store(last_observations[env][0], wd_load<Seen>(observations[last][0]));
    if (KEEP_ALL) last_rewards[env][0] = rewards[last][0];
    _timestep_[env] = n_steps - at.first_step[lane];
    if (RANDOM) draws[env] += n_steps;
  }
#endif
}

#endif

#if defined(WD_POLICY)

// Values that training records of a step in addition to its row; see `record.cu`.
struct Recorder {
  float (*running_return)[N_AGENTS];
  int* running_steps;
  float (*finished_return)[N_AGENTS];
  int *finished_steps, *finished_episodes;
  float (*cuts)[N_FEATURES];
  int* n_cut;
  int n_cuts, n_envs;
};

WD_FN void record_step(const Recorder& to, const int env, const float reward, const bool is_done, const bool out_of_time,
                       const float (*const final_observations)[N_AGENTS][N_FEATURES]) {
  const float sum = to.running_return[env][0] + reward;
  const int steps = to.running_steps[env] + 1;
  to.running_return[env][0] = is_done ? 0.f : sum;
  to.running_steps[env] = is_done ? 0 : steps;
  if (!is_done) return;
  to.finished_return[env][0] += sum;
  to.finished_steps[env] += steps;
  to.finished_episodes[env] += 1;
  if (!out_of_time) return;
  const int cut = to.n_cut[env]++;
  for (int i = 0; cut < to.n_cuts && i < N_FEATURES; ++i)
    to.cuts[static_cast<long long>(cut) * to.n_envs + env][i] = final_observations[env][0][i];
}

// Takes n_steps steps with actions drawn by a policy from observations. Row k of `observations` precedes a step, and row
// k + 1 follows it; without KEEP_ALL they are one row. With RECORDS it records training data: `successes`, numeric flags
// of each step, and what the Recorder names. Then `final_observations` belong to no particular step. The arrays of
// the last step are as in `rollout`.
WD_KERNEL(rollout_with_policy)(float (*state)[N_AGENTS][N_STATE], Action (*sampled_actions)[N_AGENTS][1],
                               float (*observations)[N_AGENTS][N_FEATURES],
                               float (*final_observations)[N_AGENTS][N_FEATURES], float (*rewards)[N_AGENTS],
                               Action (*last_sampled_actions)[N_AGENTS][1],
                               float (*last_observations)[N_AGENTS][N_FEATURES], float (*last_rewards)[N_AGENTS],
                               int* last_terminated, int* last_truncated, int* _timestep_, int* _done_,
                               int* terminated, int* truncated, bool* done_rows, bool* terminated_rows,
                               bool* truncated_rows, int* _episode_, const int* _reset_seed_,
                               const float (*state_reset_pool)[N_AGENTS][N_STATE],
                               const float* weights, float (*log_probs)[N_AGENTS], float (*values)[N_AGENTS],
                               int* successes, float (*running_return)[N_AGENTS], int* running_steps,
                               float (*finished_return)[N_AGENTS], int* finished_steps, int* finished_episodes,
                               float (*cuts)[N_FEATURES], int* n_cut, int n_cuts, int* draws, const int* seed,
                               int stream, int* impossible, int n_steps, int n_envs) {
  constexpr bool KEEPS_ENDS = KEEP_ALL && !RECORDS;  // final observations, and one-byte flags, of each step
  const Recorder recorder = {running_return, running_steps, finished_return, finished_steps, finished_episodes,
                             cuts,           n_cut,         n_cuts,          n_envs};
#if defined(__CUDACC__)
  static_assert(THREADS == ENVS_PER_BLOCK || THREADS == 32, "a thread has an environment");
  WD_SHARED wd_policy policy;
  policy.begin(weights);
  WD_SYNC();
  // The last warp's extra threads repeat the last environment and record nothing: a warp acts as one unit.
  const int slot = wd_min(WD_THREAD, ENVS_PER_BLOCK - 1), env = wd_min(WD_FIRST_ENV + slot, n_envs - 1);
  const bool is_own = WD_THREAD < ENVS_PER_BLOCK && WD_FIRST_ENV + slot < n_envs;
  Playing at = {wd_load<State>(state[env][0]), wd_load<Seen>(observations[env][0]), _timestep_[env], _episode_[env]};
  const int start_seed[2] = {_reset_seed_[0], _reset_seed_[1]}, seed_low = seed[0], seed_high = seed[1];
  const unsigned first_word = draws[env];
  const unsigned near = neighbours();
  wd_words words = {0u, 0u, 0u, 0u};
  Action action = 0;
  WD_SYNC();  // before overwriting the state that others start from
  for (int k = 0; k < n_steps; ++k) {
    const long long row = static_cast<long long>(k) * n_envs + env, kept = KEEP_ALL ? row : env;
    const unsigned word = first_word + k;
    if (k % STEPS_AHEAD == 0 && !at.is_drawn) draw_next_start(at, env, start_seed, state_reset_pool);
    if (k == 0 || word % 4u == 0u) words = wd_philox(word / 4u, env, 0, stream, seed_low, seed_high);
    policy.evaluate(at.seen, weights);
    float* const out = policy.out[slot];
    const wd_drawn drawn = wd_draw(out, nullptr, N_CATEGORIES, wd_uniform(wd_word(words, static_cast<int>(word % 4u))));
    action = drawn.action;
    if (drawn.is_impossible && is_own) impossible[env] += 1;
    float* const ended = KEEPS_ENDS || !is_own ? nullptr : final_observations[env][0];
    advance(at, action, prepare(at.state));
    restart_apart(at, ended, env, start_seed, state_reset_pool);
    if (KEEPS_ENDS && any_near(at.is_done, near) && is_own) wd_store(final_observations[row][0], at.led_to);
    if (RECORDS && is_own) {
      record_step(recorder, env, at.reward, at.is_done, at.out_of_time(), final_observations);
      successes[kept] = terminated[kept] = at.is_terminal;
      truncated[kept] = at.out_of_time();
    }
    if (KEEPS_ENDS && is_own) keep_flags(at, done_rows + row, terminated_rows + row, truncated_rows + row);
    if (is_own && (KEEP_ALL || k == n_steps - 1)) {
      sampled_actions[kept][0][0] = action;
      log_probs[kept][0] = drawn.log_prob;
      if (HAS_VALUE) values[kept][0] = out[VALUE_COLUMN];
      keep_result(at, observations[KEEP_ALL ? row + n_envs : env][0], rewards[kept]);
    }
  }
  if (!is_own) return;
  last_sampled_actions[env][0][0] = action;
  keep_result(at, last_observations[env][0], last_rewards[env]);
  keep_flags(at, _done_ + env, last_terminated + env, last_truncated + env);
  wd_store(state[env][0], at.state);
  _timestep_[env] = at.timestep;
  _episode_[env] = at.n_drawn - at.is_drawn;
  draws[env] = first_word + n_steps;
#else
  wd_policy policy;
  const int end = wd_min(WD_FIRST_ENV + ENVS_PER_BLOCK, n_envs);
  for (int k = 0; k < n_steps; ++k) {
    const long long row = static_cast<long long>(k) * n_envs, kept = KEEP_ALL ? row : 0;
    for (int env = WD_FIRST_ENV; env < end; env += WD_ROWS) {
      const int n = wd_min(WD_ROWS, end - env);
      wd_drawn_words<1> words;
      words.draw(env / WD_ROWS, env, n, draws, stream, seed);
      policy.act(observations[kept + env], weights, words.of[0], impossible + env, &sampled_actions[kept + env][0][0],
                 log_probs[kept + env], values[HAS_VALUE ? kept + env : 0], n);
    }
    for (int env = WD_FIRST_ENV; env < end; ++env) draws[env] += 1;
    const long long recorded = RECORDS ? row : 0;
    take_step(state, sampled_actions + kept, observations + (KEEP_ALL ? row + n_envs : 0),
              final_observations + (KEEPS_ENDS ? row : 0), rewards + kept, _timestep_, _done_, terminated + recorded,
              truncated + recorded, _episode_, _reset_seed_, state_reset_pool, n_envs);
    for (int env = WD_FIRST_ENV; RECORDS && env < end; ++env) {
      record_step(recorder, env, rewards[kept + env][0], _done_[env], truncated[kept + env], final_observations);
      successes[kept + env] = terminated[kept + env];
    }
    if (KEEPS_ENDS)
      copy_flags(_done_, terminated, truncated, done_rows + row, terminated_rows + row, truncated_rows + row, n_envs);
  }
  for (int env = WD_FIRST_ENV; KEEP_ALL && env < end; ++env) {
    const long long last = static_cast<long long>(n_steps - 1) * n_envs + env;
    last_sampled_actions[env][0][0] = sampled_actions[last][0][0];
    wd_store(last_observations[env][0], wd_load<Seen>(observations[last + n_envs][0]));
    last_rewards[env][0] = rewards[last][0];
    last_terminated[env] = terminated[RECORDS ? last : env];
    last_truncated[env] = truncated[RECORDS ? last : env];
  }
#endif
}

#endif

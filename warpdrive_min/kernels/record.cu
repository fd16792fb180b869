// Recording of one env step for training.
//
// Reads rewards, _done_, terminated and truncated if HAS_FLAGS, final_observations if CUTS; writes the row of the step:
// reward_row, terminated_row, truncated_row, success_row. Adds to running_return and running_steps of the episode; at
// its end moves them to finished_return and finished_steps and counts it in finished_episodes. If CUTS, the final
// observation of a truncated episode, N_WORDS floats of all agents, goes to slot n_cut[env] of cuts, which counts on.
//
// `faults` records environments that break their contract: the largest n_cut above n_cuts, and with HAS_FLAGS the number of
// steps where _done_ differs from terminated or truncated.
//
// Without HAS_FLAGS every end is by the dynamics. A success is a terminated flag, or _done_ == 2.
//
// A sum belongs to one thread, so nothing is atomic and the order of additions is that of the steps.

WD_KERNEL(record)(const float (*rewards)[N_AGENTS], const int* _done_, const int* terminated, const int* truncated,
                  const float* final_observations, float (*reward_row)[N_AGENTS], int* terminated_row,
                  int* truncated_row, int* success_row, float (*running_return)[N_AGENTS], int* running_steps,
                  float (*finished_return)[N_AGENTS], int* finished_steps, int* finished_episodes, float* cuts,
                  int* n_cut, int n_cuts, int (*faults)[2], int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const float reward = rewards[env][agent];
    const float sum = running_return[env][agent] + reward;
    reward_row[env][agent] = reward;
    if (_done_[env]) finished_return[env][agent] += sum;
    running_return[env][agent] = _done_[env] ? 0.f : sum;
  }
  if (CUTS) {
    bool any = false;
    WD_EACH_ENV(local, env) any |= truncated[env] != 0;
    if (WD_SYNC_ANY(any)) {
      // Neighbouring threads copy neighbouring words.
      for (int item = WD_THREAD; item < ENVS_PER_BLOCK * N_WORDS; item += WD_STRIDE) {
        const int env = WD_FIRST_ENV + item / N_WORDS, word = item % N_WORDS;
        if (env >= n_envs || !truncated[env] || n_cut[env] >= n_cuts) continue;
        const long long source = static_cast<long long>(env) * N_WORDS + word;
        cuts[static_cast<long long>(n_cut[env]) * n_envs * N_WORDS + source] = final_observations[source];
      }
      WD_SYNC();  // all threads have read n_cut
    }
  }
  WD_EACH_ENV(local, env) {
    const bool is_done = _done_[env];
    const bool is_terminated = HAS_FLAGS ? terminated[env] : is_done;
    const bool is_truncated = HAS_FLAGS && truncated[env];
    terminated_row[env] = is_terminated;
    truncated_row[env] = is_truncated;
    success_row[env] = _done_[env] == 2 || (HAS_FLAGS && is_terminated);
    const int steps = running_steps[env] + 1;
    if (is_done) {
      finished_steps[env] += steps;
      finished_episodes[env] += 1;
    }
    running_steps[env] = is_done ? 0 : steps;
    if (CUTS && is_truncated) {
      const int n = n_cut[env] += 1;
      if (n > n_cuts && n > faults[env][0]) faults[env][0] = n;
    }
    if (HAS_FLAGS && is_done != (is_terminated || is_truncated)) faults[env][1] += 1;
  }
}

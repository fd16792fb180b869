// Fragile in blocks that own environments. Phases: move, see, sum, judge.
enum Fault { NONE, NO_BARRIER, SUM, UNWRITTEN, ARRAY, LAST_WRITER };

WD_KERNEL(step)(float (*place)[N_AGENTS], const float (*wind)[N_AGENTS], int* leader, const int (*sampled_actions)[N_AGENTS][1],
                float (*observations)[N_AGENTS][2], float (*rewards)[N_AGENTS], int* terminated, int* truncated, int* _timestep_,
                int* _done_, int n_envs) {
  WD_SHARED float total[ENVS_PER_BLOCK];
  if (FAULT != UNWRITTEN) {
    WD_EACH_ENV(local, env) { total[local] = 0.f; }
  }
  WD_SYNC();
  WD_EACH_AGENT(local, env, agent) {
    place[env][agent] += wind[env][agent] * (2 * sampled_actions[env][agent][0] - 1) / (agent + 3.f);
    if (FAULT == NO_BARRIER) observations[env][agent][0] = place[env][(agent + 1) % N_AGENTS];
    if (FAULT == LAST_WRITER) leader[env] = agent;
  }
  WD_SYNC();
  if (FAULT == SUM) {
    WD_EACH_AGENT(local, env, agent) { atomicAdd(&total[local], place[env][agent]); }
  } else {
    WD_EACH_ENV(local, env) {
      for (int agent = 0; agent < N_AGENTS; ++agent) total[local] += place[env][agent];
    }
  }
  WD_SYNC();
  WD_EACH_AGENT(local, env, agent) {
    if (FAULT != NO_BARRIER) observations[env][agent][0] = place[env][(agent + 1) % N_AGENTS];
    observations[env][agent][1] = leader[env];
    rewards[env][agent] = total[local];
  }
  WD_EACH_ENV(local, env) {
    const bool is_over = ++_timestep_[env] >= EPISODE_LENGTH;
    terminated[env] = 0;
    truncated[env] = _done_[env] = is_over;
    if (AUTO_RESET && is_over) _timestep_[env] = 0;
  }
}

WD_KERNEL(reset)(float (*place)[N_AGENTS], int* _timestep_, int* _done_, int force, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    if (force || _done_[env]) place[env][agent] = 0.f;
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (force || _done_[env]) _timestep_[env] = _done_[env] = 0;
  }
}

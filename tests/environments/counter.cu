// Counter in CUDA C. Phases: count, judge.
WD_KERNEL(CudaCounterStep)(int (*count)[N_AGENTS], const float (*place)[N_AGENTS], const float* weights,
                           const int (*sampled_actions)[N_AGENTS][1], float (*observations)[N_AGENTS][2],
                           float (*rewards)[N_AGENTS], int* _timestep_, int* _done_, int step_size, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const int value = count[env][agent] + step_size * sampled_actions[env][agent][0];
    count[env][agent] = value;
    observations[env][agent][0] = value;
    observations[env][agent][1] = place[env][agent];
    rewards[env][agent] = weights[agent] * value;
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    bool is_done = ++_timestep_[env] >= EPISODE_LENGTH;
    for (int agent = 0; agent < N_AGENTS; ++agent) is_done |= count[env][agent] >= LIMIT;
    if (is_done) _done_[env] = 1;
  }
}

WD_KERNEL(CudaCounterReset)(int (*count)[N_AGENTS], int step_size, int n_envs) {
  WD_EACH_AGENT(local, env, agent) count[env][agent] = -step_size;
}

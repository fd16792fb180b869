// Numbers all agents, to see that each was reached once and by which arguments.
WD_KERNEL(fill)(float (*target)[N_AGENTS], const int* offset, float scale, int n_envs) {
  WD_EACH_AGENT(local, env, agent) target[env][agent] += scale * (env * N_AGENTS + agent) + offset[0];
}

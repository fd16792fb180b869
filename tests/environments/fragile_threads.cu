// Fragile with a thread for each agent. Phases: move, see, sum, judge.
enum Fault { NONE, NO_BARRIER, SUM, UNWRITTEN, ARRAY, LAST_WRITER };

extern "C" __global__ void step(float* place, const float* wind, int* leader, const int* sampled_actions, float* observations,
                                float* rewards, int* terminated, int* truncated, int* _timestep_, int* _done_) {
  __shared__ float total;
  const int env = getEnvID(blockIdx.x), agent = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int mine = env * wkNumberAgents + agent, next = env * wkNumberAgents + (agent + 1) % wkNumberAgents;
  if (FAULT != UNWRITTEN && agent == 0) total = 0.f;
  place[mine] += wind[mine] * (2 * sampled_actions[mine] - 1) / (agent + 3.f);
  if (FAULT == LAST_WRITER) leader[env] = agent;
  if (FAULT != NO_BARRIER) __syncthreads();
  observations[2 * mine] = place[next];
  __syncthreads();
  if (FAULT == SUM) {
    atomicAdd(&total, place[mine]);
  } else if (agent == 0) {
    for (int other = 0; other < wkNumberAgents; ++other) total += place[env * wkNumberAgents + other];
  }
  __syncthreads();
  rewards[mine] = total;
  observations[2 * mine + 1] = leader[env];
  if (agent == 0) {
    const bool is_over = ++_timestep_[env] >= EPISODE_LENGTH;
    terminated[env] = 0;
    truncated[env] = _done_[env] = is_over;
    if (AUTO_RESET && is_over) _timestep_[env] = 0;
  }
}

extern "C" __global__ void reset(float* place, int* _timestep_, int* _done_, const int force) {
  const int env = getEnvID(blockIdx.x), agent = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const bool restarts = force || _done_[env];
  __syncthreads();
  if (restarts) place[env * wkNumberAgents + agent] = 0.f;
  if (restarts && agent == 0) _timestep_[env] = _done_[env] = 0;
}

// Relay, a thread for each agent. Phases: queue, pass on, see, add.
enum Fault { NONE, ARRIVAL, REUSED, UNPADDED, NEXT_ENV };

extern "C" __global__ void step(float* place, int* slot, const int* sampled_actions, float* observations, float* rewards,
                                int* terminated, int* truncated, int* _timestep_, int* _done_) {
  constexpr int WIDTH = 128;  // at least wkNumberAgents
  __shared__ float passed[WIDTH];
  __shared__ int n_queued;
  const int env = getEnvID(blockIdx.x), agent = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int first = env * wkNumberAgents, mine = first + agent;
  if (agent == 0) n_queued = 0;
  __syncthreads();
  slot[mine] = FAULT == ARRIVAL ? atomicAdd(&n_queued, 1) : agent;

  float held = place[mine] + (2 * sampled_actions[mine] - 1) / (agent + 3.f);
  for (int round = 0; round < 3; ++round) {
    passed[agent] = held;
    __syncthreads();
    held += passed[(agent + wkNumberAgents / 2) % wkNumberAgents] / 3.f;
    if (FAULT != REUSED) __syncthreads();
  }
  place[mine] = held - truncf(held);
  __syncthreads();

  const int next = FAULT == NEXT_ENV ? (mine + 1) % (wkNumberEnvs * wkNumberAgents) : first + (agent + 1) % wkNumberAgents;
  observations[2 * mine] = place[next];
  observations[2 * mine + 1] = slot[mine];

  passed[agent] = place[mine];
  if (FAULT != UNPADDED && agent == 0) {
    for (int i = wkNumberAgents; i < WIDTH; ++i) passed[i] = 0.f;
  }
  __syncthreads();
  for (int half = WIDTH / 2; half > 0; half /= 2) {
    for (int i = agent; i < half; i += wkNumberAgents) passed[i] += passed[i + half];
    __syncthreads();
  }
  rewards[mine] = passed[0];
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

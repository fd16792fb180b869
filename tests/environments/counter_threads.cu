// Counter with a thread for each agent, which shares out what the highest count is.
extern "C" __global__ void CudaCounterStep(int* count, const float* place, const float* weights, const int* actions,
                                           float* observations, float* rewards, int* timestep, int* done,
                                           const int step_size, const int n_envs) {
  __shared__ int highest;
  const int env = getEnvID(blockIdx.x), agent = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int mine = env * wkNumberAgents + agent;
  if (threadIdx.x == 0) highest = 0;
  __syncthreads();
  count[mine] += step_size * actions[mine];
  atomicMax(&highest, count[mine]);
  observations[2 * mine] = count[mine];
  observations[2 * mine + 1] = place[mine];
  rewards[mine] = weights[agent] * count[mine];
  __syncthreads();
  if (agent == 0 && (++timestep[env] >= EPISODE_LENGTH || highest >= LIMIT)) done[env] = 1;
}

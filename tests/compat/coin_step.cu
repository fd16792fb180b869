// Coins in CUDA C, as a user of WarpDrive writes it: actions (n_envs, n_agents), without an axis of types.
extern "C" {
__global__ void CudaCoinsStep(
    int *sum_arr, const int *action_arr, float *obs_arr, float *rewards_arr, int *done_arr, int *env_timestep_arr,
    const int episode_length) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kThisAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kThisAgentId == 0) {
    env_timestep_arr[kEnvId] += 1;
  }
  __sync_env_threads();
  if (kThisAgentId < wkNumberAgents) {
    const int kIndex = kEnvId * wkNumberAgents + kThisAgentId;
    sum_arr[kIndex] += action_arr[kIndex];
    obs_arr[2 * kIndex] = sum_arr[kIndex];
    obs_arr[2 * kIndex + 1] = env_timestep_arr[kEnvId];
    rewards_arr[kIndex] = action_arr[kIndex];
    if (kThisAgentId == 0 && env_timestep_arr[kEnvId] == episode_length) {
      done_arr[kEnvId] = 1;
    }
  }
}
}

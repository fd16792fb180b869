// Walkers in CUDA C, as a user of WarpDrive writes it.
__constant__ int kIndexToActionArr[3];

extern "C" {
__device__ int CudaWalkersWrap(const int cell) { return (cell + 2 * wkNumberAgents) % (2 * wkNumberAgents); }

__global__ void CudaWalkersStep(int* cell_arr, int* action_indices_arr, float* obs_arr, float* rewards_arr,
                                int* done_arr, int* env_timestep_arr, const float reward_per_meeting,
                                const int episode_length) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kThisAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kThisAgentArrayIdx = kEnvId * wkNumberAgents + kThisAgentId;
  if (kThisAgentId == 0) env_timestep_arr[kEnvId] += 1;
  if (kThisAgentId < wkNumberAgents) {
    const int kMove = kIndexToActionArr[action_indices_arr[kThisAgentArrayIdx]];
    cell_arr[kThisAgentArrayIdx] = CudaWalkersWrap(cell_arr[kThisAgentArrayIdx] + kMove);
    __sync_env_threads();
    int meetings = -1;
    for (int other = 0; other < wkNumberAgents; other++) {
      meetings += cell_arr[kEnvId * wkNumberAgents + other] == cell_arr[kThisAgentArrayIdx];
    }
    const float kFeatures[3] = {cell_arr[kThisAgentArrayIdx] / (2.0f * wkNumberAgents), static_cast<float>(meetings),
                                env_timestep_arr[kEnvId] / static_cast<float>(episode_length)};
    for (int feature = 0; feature < 3; feature++) {
      const int kIndex[3] = {kEnvId, kThisAgentId, feature};
      const int kDimension[3] = {wkNumberEnvs, wkNumberAgents, 3};
      obs_arr[get_flattened_array_index(kIndex, kDimension, 3)] = kFeatures[feature];
    }
    rewards_arr[kThisAgentArrayIdx] = reward_per_meeting * meetings;
    if (kThisAgentId == 0 && env_timestep_arr[kEnvId] == episode_length) done_arr[kEnvId] = 1;
  }
}

__global__ void CudaWalkersReset(int* cell_arr) {
  const int kThisAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kThisAgentId < wkNumberAgents) cell_arr[getEnvID(blockIdx.x) * wkNumberAgents + kThisAgentId] = kThisAgentId;
}
}

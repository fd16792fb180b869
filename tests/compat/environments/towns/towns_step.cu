// The towns in CUDA C: a thread for each town, and one for the council, whose column holds the sums.

__constant__ float kLagWeights[3];

const int kNumTownFeatures = 5;

extern "C" {

// How strictly a town was closed some steps ago, 0 to 1; open before the episode.
__device__ float CudaTownsClosed(const int* closing_arr, const int kEnvId, const int kTownId, const int kTimestep,
                                 const int kEpisodeLength, const int kNumLevels) {
  const int kDimension[3] = {wkNumberEnvs, kEpisodeLength + 1, wkNumberAgents - 1};
  const int kIndex[3] = {kEnvId, max(kTimestep, 0), kTownId};
  return closing_arr[get_flattened_array_index(kIndex, kDimension, 3)] / (kNumLevels - 1.0f);
}

__device__ float CudaTownsSum(const float* arr, const int kEnvId) {
  float sum = 0.0f;
  for (int town = 0; town < wkNumberAgents - 1; town++) {
    sum += arr[kEnvId * wkNumberAgents + town];
  }
  return sum;
}

__global__ void CudaTownsStep(float* wealth_arr, float* paid_arr, int* closing_arr, int* subsidy_arr,
                              const float* growth_arr, const int kNumLevels, const int kInterval, const float kGrant,
                              const bool kAgentsLast, float* town_obs_arr, float* council_obs_arr,
                              int* town_actions_arr, int* council_actions_arr, int* done_arr, int* env_timestep_arr,
                              const int kEpisodeLength) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kNumTowns = wkNumberAgents - 1;
  const int kIndex = kEnvId * wkNumberAgents + kAgentId;
  const int kTimestep = env_timestep_arr[kEnvId] + 1;
  const float kTime = kTimestep / static_cast<float>(kEpisodeLength);
  if (kAgentId < kNumTowns) {
    const int kDimension[3] = {wkNumberEnvs, kEpisodeLength + 1, kNumTowns};
    const int kPlace[3] = {kEnvId, kTimestep, kAgentId};
    closing_arr[get_flattened_array_index(kPlace, kDimension, 3)] = town_actions_arr[kEnvId * kNumTowns + kAgentId];
  } else if (kAgentId == kNumTowns && (kTimestep - 1) % kInterval == 0) {
    subsidy_arr[kEnvId] = council_actions_arr[kEnvId];
  }
  // Everyone has read the step counter, and the council has set the subsidy.
  __sync_env_threads();

  const float kShare = subsidy_arr[kEnvId] / 19.0f;
  if (kAgentId < kNumTowns) {
    float closed = 0.0f;
    for (int lag = 0; lag < 3; lag++) {
      closed += kLagWeights[lag] *
                CudaTownsClosed(closing_arr, kEnvId, kAgentId, kTimestep - lag, kEpisodeLength, kNumLevels);
    }
    paid_arr[kIndex] += kGrant * kShare;
    wealth_arr[kIndex] = wealth_arr[kIndex] * growth_arr[kAgentId] * (1.0f - closed / 2.0f) + kGrant * kShare;
    const float kFeatures[kNumTownFeatures] = {
        wealth_arr[kIndex], growth_arr[kAgentId],
        CudaTownsClosed(closing_arr, kEnvId, kAgentId, kTimestep, kEpisodeLength, kNumLevels), kShare, kTime};
    const int kDimension[3] = {wkNumberEnvs, kNumTowns, kNumTownFeatures};
    const int kDimensionLast[3] = {wkNumberEnvs, kNumTownFeatures, kNumTowns};
    for (int feature = 0; feature < kNumTownFeatures; feature++) {
      const int kPlace[3] = {kEnvId, kAgentId, feature};
      const int kPlaceLast[3] = {kEnvId, feature, kAgentId};
      town_obs_arr[kAgentsLast ? get_flattened_array_index(kPlaceLast, kDimensionLast, 3)
                               : get_flattened_array_index(kPlace, kDimension, 3)] = kFeatures[feature];
    }
  }
  __sync_env_threads();

  if (kAgentId == kNumTowns) {
    env_timestep_arr[kEnvId] = kTimestep;
    wealth_arr[kIndex] = CudaTownsSum(wealth_arr, kEnvId);
    paid_arr[kIndex] = CudaTownsSum(paid_arr, kEnvId);
    float* features = council_obs_arr + kEnvId * (4 + kNumTowns);
    features[0] = wealth_arr[kIndex];
    features[1] = paid_arr[kIndex];
    features[2] = kShare;
    features[3] = kTime;
    for (int town = 0; town < kNumTowns; town++) {
      features[4 + town] = CudaTownsClosed(closing_arr, kEnvId, town, kTimestep, kEpisodeLength, kNumLevels);
    }
    if (kTimestep == kEpisodeLength) {
      done_arr[kEnvId] = 1;
    }
  }
}

__global__ void CudaTownsRewards(const float* wealth_arr, const float* paid_arr, const float kCost,
                                 float* town_rewards_arr, float* council_rewards_arr) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kNumTowns = wkNumberAgents - 1;
  if (kAgentId < kNumTowns) {
    town_rewards_arr[kEnvId * kNumTowns + kAgentId] = logf(wealth_arr[kEnvId * wkNumberAgents + kAgentId] + 0.01f);
  }
  // The council's reward is made of the towns'.
  __sync_env_threads();

  if (kAgentId == kNumTowns) {
    float sum = 0.0f;
    for (int town = 0; town < kNumTowns; town++) {
      sum += town_rewards_arr[kEnvId * kNumTowns + town];
    }
    council_rewards_arr[kEnvId] = sum / kNumTowns - kCost * paid_arr[kEnvId * wkNumberAgents + kNumTowns];
  }
}
}

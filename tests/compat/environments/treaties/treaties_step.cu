// The treaties in CUDA C: a thread for each region; the first one also moves the heat on.

__constant__ float kHeatTransition[4];

const int kNumActionTypes = 4;
const int kNumFeatures = 5;
enum ActionType { kSavings, kMitigation, kProposal, kAcceptance };

extern "C" {

__device__ int CudaTreatiesAction(const int* actions_arr, const int kEnvId, const int kAgentId,
                                  const ActionType kType) {
  const int kDimension[3] = {wkNumberEnvs, wkNumberAgents, kNumActionTypes};
  const int kIndex[3] = {kEnvId, kAgentId, kType};
  return actions_arr[get_flattened_array_index(kIndex, kDimension, 3)];
}

__global__ void CudaTreatiesStep(float* capital_arr, float* emissions_arr, const int* mitigation_floor_arr,
                                 float* temperature_arr, const float* productivity_arr, const int kNumLevels,
                                 const float* reward_weight_arr, float* features_arr, int* actions_arr,
                                 float* rewards_arr, int* done_arr, int* env_timestep_arr, const int kEpisodeLength) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kIndex = kEnvId * wkNumberAgents + kAgentId;
  const int kTimestep = env_timestep_arr[kEnvId] + 1;
  float* temperature = temperature_arr + kEnvId * 2;
  if (kAgentId < wkNumberAgents) {
    const int kChosen = CudaTreatiesAction(actions_arr, kEnvId, kAgentId, kMitigation);
    const int kLevel = max(kChosen, mitigation_floor_arr[kIndex]);
    const float kShare = kLevel / (kNumLevels - 1.0f);
    const float kSaved = CudaTreatiesAction(actions_arr, kEnvId, kAgentId, kSavings) / (kNumLevels - 1.0f);
    const float kGross = productivity_arr[kAgentId] * sqrtf(capital_arr[kIndex]);
    const float kNet = kGross * (1.0f - 0.1f * kShare) / (1.0f + 0.05f * temperature[0]);
    const float kInvested = kSaved * 0.5f * kNet;
    emissions_arr[kIndex] = (1.0f - kShare) * kGross;
    capital_arr[kIndex] = 0.8f * capital_arr[kIndex] + kInvested;
    rewards_arr[kIndex] = reward_weight_arr[kIndex] * logf(kNet - kInvested + 1.0f);
  }
  // Everyone has read the step counter and the temperature.
  __sync_env_threads();

  if (kAgentId == 0) {
    float emitted = 0.0f;
    for (int region = 0; region < wkNumberAgents; region++) {
      emitted += emissions_arr[kEnvId * wkNumberAgents + region];
    }
    const float kAir = kHeatTransition[0] * temperature[0] + kHeatTransition[1] * temperature[1];
    temperature[1] = kHeatTransition[2] * temperature[0] + kHeatTransition[3] * temperature[1];
    temperature[0] = kAir + 0.01f * emitted;
    env_timestep_arr[kEnvId] = kTimestep;
    if (kTimestep == kEpisodeLength) {
      done_arr[kEnvId] = 1;
    }
  }
  __sync_env_threads();

  if (kAgentId < wkNumberAgents) {
    float* features = features_arr + kIndex * kNumFeatures;
    features[0] = capital_arr[kIndex];
    features[1] = emissions_arr[kIndex];
    features[2] = temperature[0];
    features[3] = kTimestep / static_cast<float>(kEpisodeLength);
  }
}

// Binds each region to the best of its treaties: both joined, and offered levels that lie close.
__global__ void CudaTreatiesStepNegotiate(int* treaties_arr, int* mitigation_floor_arr, const int kNumLevels,
                                          const int kTolerance, float* features_arr, int* action_mask_arr,
                                          int* actions_arr) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kAgentId < wkNumberAgents) {
    const int kIndex = kEnvId * wkNumberAgents + kAgentId;
    const int kOffer = CudaTreatiesAction(actions_arr, kEnvId, kAgentId, kProposal);
    const bool kJoins = CudaTreatiesAction(actions_arr, kEnvId, kAgentId, kAcceptance) == 1;
    int floor_level = 0;
    int n_treaties = 0;
    for (int partner = 0; partner < wkNumberAgents; partner++) {
      const int kTheirs = CudaTreatiesAction(actions_arr, kEnvId, partner, kProposal);
      const bool kBothJoin = kJoins && CudaTreatiesAction(actions_arr, kEnvId, partner, kAcceptance) == 1;
      const bool kTreaty = kBothJoin && partner != kAgentId && abs(kOffer - kTheirs) <= kTolerance;
      treaties_arr[kIndex * wkNumberAgents + partner] = kTreaty;
      if (kTreaty) {
        floor_level = max(floor_level, min(kOffer, kTheirs));
        n_treaties++;
      }
    }
    mitigation_floor_arr[kIndex] = floor_level;
    features_arr[kIndex * kNumFeatures + 4] = n_treaties / static_cast<float>(wkNumberAgents);
    int* mask = action_mask_arr + kIndex * (3 * kNumLevels + 2) + kNumLevels;
    for (int level = 0; level < kNumLevels; level++) {
      mask[level] = level >= floor_level;
    }
  }
}

__device__ void CudaTreatiesRestore(float* arr, const float* at_reset_arr, const int kFirst, const int kCount) {
  for (int index = kFirst; index < kFirst + kCount; index++) {
    arr[index] = at_reset_arr[index];
  }
}

__device__ void CudaTreatiesRestoreInt(int* arr, const int* at_reset_arr, const int kFirst, const int kCount) {
  for (int index = kFirst; index < kFirst + kCount; index++) {
    arr[index] = at_reset_arr[index];
  }
}

// Restarts every environment in one launch; the weights of the rewards stay as they were turned.
__global__ void CudaTreatiesReset(float* capital_arr, const float* capital_at_reset_arr, float* emissions_arr,
                                  const float* emissions_at_reset_arr, int* mitigation_floor_arr,
                                  const int* mitigation_floor_at_reset_arr, int* treaties_arr,
                                  const int* treaties_at_reset_arr, float* temperature_arr,
                                  const float* temperature_at_reset_arr, float* features_arr,
                                  const float* features_at_reset_arr, int* action_mask_arr,
                                  const int* action_mask_at_reset_arr, const int kNumLevels, int* done_arr,
                                  int* env_timestep_arr) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kAgentId < wkNumberAgents) {
    const int kIndex = kEnvId * wkNumberAgents + kAgentId;
    const int kMaskSize = 3 * kNumLevels + 2;
    CudaTreatiesRestore(capital_arr, capital_at_reset_arr, kIndex, 1);
    CudaTreatiesRestore(emissions_arr, emissions_at_reset_arr, kIndex, 1);
    CudaTreatiesRestoreInt(mitigation_floor_arr, mitigation_floor_at_reset_arr, kIndex, 1);
    CudaTreatiesRestoreInt(treaties_arr, treaties_at_reset_arr, kIndex * wkNumberAgents, wkNumberAgents);
    CudaTreatiesRestore(features_arr, features_at_reset_arr, kIndex * kNumFeatures, kNumFeatures);
    CudaTreatiesRestoreInt(action_mask_arr, action_mask_at_reset_arr, kIndex * kMaskSize, kMaskSize);
    if (kAgentId == 0) {
      CudaTreatiesRestore(temperature_arr, temperature_at_reset_arr, kEnvId * 2, 2);
      done_arr[kEnvId] = 0;
      env_timestep_arr[kEnvId] = 0;
    }
  }
}
}

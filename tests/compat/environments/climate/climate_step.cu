// The climate in CUDA C: a thread for each region; the first one also moves carbon and heat on.

__constant__ float kCarbonTransition[9];
__constant__ float kHeatTransition[4];

const int kNumActionTypes = 5;
const int kNumFeatures = 11;
const int kTreatyFeature = 9;
enum ActionType { kSavings, kMitigation, kExport, kProposal, kAcceptance };

extern "C" {

__device__ int CudaClimateIndex(const int kEnvId, const int kAgentId) { return kEnvId * wkNumberAgents + kAgentId; }

__device__ int CudaClimateAction(const int* actions_arr, const int kEnvId, const int kAgentId, const ActionType kType) {
  const int kDimension[3] = {wkNumberEnvs, wkNumberAgents, kNumActionTypes};
  const int kIndex[3] = {kEnvId, kAgentId, kType};
  return actions_arr[get_flattened_array_index(kIndex, kDimension, 3)];
}

__device__ float CudaClimateTotal(const float* arr, const int kEnvId) {
  float total = 0.0f;
  for (int region = 0; region < wkNumberAgents; region++) {
    total += arr[CudaClimateIndex(kEnvId, region)];
  }
  return total;
}

// Moves carbon and heat of one environment on.
__device__ void CudaClimateWarm(float* carbon_arr, float* temperature_arr, const float kEmissions, const float kYears,
                                const int kEnvId) {
  float* carbon = carbon_arr + kEnvId * 3;
  float* temperature = temperature_arr + kEnvId * 2;
  float next[3] = {0.0f, 0.0f, 0.0f};
  for (int from = 0; from < 3; from++) {
    for (int to = 0; to < 3; to++) {
      next[to] += kCarbonTransition[from * 3 + to] * carbon[from];
    }
  }
  next[0] += kYears * kEmissions * 0.27f;
  for (int box = 0; box < 3; box++) {
    carbon[box] = next[box];
  }
  const float kForcing = 5.35f * logf(carbon[0] / 588.0f);
  const float kAir = kHeatTransition[0] * temperature[0] + kHeatTransition[1] * temperature[1];
  const float kOcean = kHeatTransition[2] * temperature[0] + kHeatTransition[3] * temperature[1];
  temperature[0] = kAir + 0.1f * kForcing;
  temperature[1] = kOcean;
}

__device__ void CudaClimateObserve(float* features_arr, const float* kFeatures, const int kEnvId, const int kAgentId) {
  const int kDimension[3] = {wkNumberEnvs, wkNumberAgents, kNumFeatures};
  for (int feature = 0; feature < kNumFeatures; feature++) {
    if (feature == kTreatyFeature) {
      continue;  // the negotiation writes it
    }
    const int kIndex[3] = {kEnvId, kAgentId, feature};
    features_arr[get_flattened_array_index(kIndex, kDimension, 3)] = kFeatures[feature];
  }
}

__global__ void CudaClimateStep(float* capital_arr, float* labour_arr, float* technology_arr, float* intensity_arr,
                                float* gross_output_arr, float* exports_arr, float* consumption_arr,
                                float* emissions_arr, int* mitigation_floor_arr, float* carbon_arr,
                                float* temperature_arr, const float* labour_growth_arr,
                                const float* technology_growth_arr, const float* vulnerability_arr,
                                const int kNumLevels, const float kYearsPerStep, const float kCapitalShare,
                                const float kDepreciation, const float kRiskAversion, const float kAbatementPrice,
                                const float kAbatementPower, const float kDamagePower, const float kExportLimit,
                                const float* reward_weight_arr, float* features_arr, int* actions_arr,
                                float* rewards_arr, int* done_arr, int* env_timestep_arr, const int kEpisodeLength) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kIndex = CudaClimateIndex(kEnvId, kAgentId);
  const bool kIsRegion = kAgentId < wkNumberAgents;
  const float kHighest = kNumLevels - 1.0f;
  const int kTimestep = env_timestep_arr[kEnvId] + 1;
  const float kAllLabour = CudaClimateTotal(labour_arr, kEnvId);

  float mitigation = 0.0f;
  float net = 0.0f;
  float invested = 0.0f;
  if (kIsRegion) {
    const int kLevel = CudaClimateAction(actions_arr, kEnvId, kAgentId, kMitigation);
    mitigation = max(kLevel, mitigation_floor_arr[kIndex]) / kHighest;
    const float kDamage = vulnerability_arr[kAgentId] * powf(temperature_arr[kEnvId * 2], kDamagePower);
    const float kCost = kAbatementPrice * powf(mitigation, kAbatementPower);
    gross_output_arr[kIndex] = technology_arr[kIndex] * powf(capital_arr[kIndex], kCapitalShare) *
                               powf(labour_arr[kIndex] / 1000.0f, 1.0f - kCapitalShare);
    net = gross_output_arr[kIndex] * (1.0f - kCost) / (1.0f + kDamage);
    invested = CudaClimateAction(actions_arr, kEnvId, kAgentId, kSavings) / kHighest * 0.5f * net;
    exports_arr[kIndex] =
        CudaClimateAction(actions_arr, kEnvId, kAgentId, kExport) / kHighest * kExportLimit * (net - invested);
    emissions_arr[kIndex] = intensity_arr[kIndex] * (1.0f - mitigation) * gross_output_arr[kIndex];
  }
  // Everyone has read the step counter, all labour and the temperature, and knows what the others export and emit.
  __sync_env_threads();

  if (kIsRegion) {
    const float kLabour = labour_arr[kIndex];
    // What all of them export is bought by the regions in proportion to their people.
    const float kImported = CudaClimateTotal(exports_arr, kEnvId) * kLabour / kAllLabour;
    consumption_arr[kIndex] = net - invested - exports_arr[kIndex] + kImported;
    capital_arr[kIndex] =
        powf(1.0f - kDepreciation, kYearsPerStep) * capital_arr[kIndex] + kYearsPerStep * invested;
    const float kPerPerson = consumption_arr[kIndex] / (kLabour / 1000.0f) + 0.01f;
    const float kPower = 1.0f - kRiskAversion;
    rewards_arr[kIndex] = reward_weight_arr[kIndex] * (powf(kPerPerson, kPower) - 1.0f) / kPower;
    labour_arr[kIndex] = kLabour * labour_growth_arr[kAgentId];
    technology_arr[kIndex] *= technology_growth_arr[kAgentId];
    intensity_arr[kIndex] *= 0.97f;
  }
  if (kAgentId == 0) {
    CudaClimateWarm(carbon_arr, temperature_arr, CudaClimateTotal(emissions_arr, kEnvId), kYearsPerStep, kEnvId);
    env_timestep_arr[kEnvId] = kTimestep;
    if (kTimestep == kEpisodeLength) {
      done_arr[kEnvId] = 1;
    }
  }
  // Everyone observes the new climate.
  __sync_env_threads();

  if (kIsRegion) {
    const float kFeatures[kNumFeatures] = {capital_arr[kIndex] / 100.0f,
                                           labour_arr[kIndex] / 1000.0f,
                                           technology_arr[kIndex] / 10.0f,
                                           intensity_arr[kIndex],
                                           gross_output_arr[kIndex] / 100.0f,
                                           consumption_arr[kIndex] / 100.0f,
                                           emissions_arr[kIndex] / 10.0f,
                                           temperature_arr[kEnvId * 2],
                                           carbon_arr[kEnvId * 3] / 1000.0f,
                                           0.0f,
                                           kTimestep / static_cast<float>(kEpisodeLength)};
    CudaClimateObserve(features_arr, kFeatures, kEnvId, kAgentId);
  }
}

// Binds each region to the best of its treaties: both joined, and offered levels that lie close.
__global__ void CudaClimateStepNegotiate(int* treaties_arr, int* mitigation_floor_arr, const int kNumLevels,
                                         const int kTreatyTolerance, float* features_arr, int* action_mask_arr,
                                         int* actions_arr) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kAgentId < wkNumberAgents) {
    const int kOffer = CudaClimateAction(actions_arr, kEnvId, kAgentId, kProposal);
    const bool kJoins = CudaClimateAction(actions_arr, kEnvId, kAgentId, kAcceptance) == 1;
    int floor_level = 0;
    int n_treaties = 0;
    for (int partner = 0; partner < wkNumberAgents; partner++) {
      const int kTheirs = CudaClimateAction(actions_arr, kEnvId, partner, kProposal);
      const bool kBothJoin = kJoins && CudaClimateAction(actions_arr, kEnvId, partner, kAcceptance) == 1;
      const bool kTreaty = kBothJoin && partner != kAgentId && abs(kOffer - kTheirs) <= kTreatyTolerance;
      const int kDimension[3] = {wkNumberEnvs, wkNumberAgents, wkNumberAgents};
      const int kIndex[3] = {kEnvId, kAgentId, partner};
      treaties_arr[get_flattened_array_index(kIndex, kDimension, 3)] = kTreaty;
      if (kTreaty) {
        floor_level = max(floor_level, min(kOffer, kTheirs));
        n_treaties++;
      }
    }
    const int kIndex = CudaClimateIndex(kEnvId, kAgentId);
    mitigation_floor_arr[kIndex] = floor_level;
    features_arr[kIndex * kNumFeatures + kTreatyFeature] = n_treaties / static_cast<float>(wkNumberAgents);
    int* mask = action_mask_arr + kIndex * (4 * kNumLevels + 2) + kNumLevels;
    for (int level = 0; level < kNumLevels; level++) {
      mask[level] = level >= floor_level;
    }
  }
}

__device__ void CudaClimateRestore(float* arr, const float* at_reset_arr, const int kFirst, const int kCount) {
  for (int index = kFirst; index < kFirst + kCount; index++) {
    arr[index] = at_reset_arr[index];
  }
}

__device__ void CudaClimateRestoreInt(int* arr, const int* at_reset_arr, const int kFirst, const int kCount) {
  for (int index = kFirst; index < kFirst + kCount; index++) {
    arr[index] = at_reset_arr[index];
  }
}

// Restarts every environment in one launch; the weights of the rewards stay as they were turned.
__global__ void CudaClimateReset(
    float* capital_arr, const float* capital_at_reset_arr, float* labour_arr, const float* labour_at_reset_arr,
    float* technology_arr, const float* technology_at_reset_arr, float* intensity_arr,
    const float* intensity_at_reset_arr, float* gross_output_arr, const float* gross_output_at_reset_arr,
    float* exports_arr, const float* exports_at_reset_arr, float* consumption_arr,
    const float* consumption_at_reset_arr, float* emissions_arr, const float* emissions_at_reset_arr,
    int* mitigation_floor_arr, const int* mitigation_floor_at_reset_arr, int* treaties_arr,
    const int* treaties_at_reset_arr, float* carbon_arr, const float* carbon_at_reset_arr, float* temperature_arr,
    const float* temperature_at_reset_arr, float* features_arr, const float* features_at_reset_arr,
    int* action_mask_arr, const int* action_mask_at_reset_arr, const int kNumLevels, int* done_arr,
    int* env_timestep_arr) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kAgentId < wkNumberAgents) {
    const int kIndex = CudaClimateIndex(kEnvId, kAgentId);
    const int kMaskSize = 4 * kNumLevels + 2;
    CudaClimateRestore(capital_arr, capital_at_reset_arr, kIndex, 1);
    CudaClimateRestore(labour_arr, labour_at_reset_arr, kIndex, 1);
    CudaClimateRestore(technology_arr, technology_at_reset_arr, kIndex, 1);
    CudaClimateRestore(intensity_arr, intensity_at_reset_arr, kIndex, 1);
    CudaClimateRestore(gross_output_arr, gross_output_at_reset_arr, kIndex, 1);
    CudaClimateRestore(exports_arr, exports_at_reset_arr, kIndex, 1);
    CudaClimateRestore(consumption_arr, consumption_at_reset_arr, kIndex, 1);
    CudaClimateRestore(emissions_arr, emissions_at_reset_arr, kIndex, 1);
    CudaClimateRestoreInt(mitigation_floor_arr, mitigation_floor_at_reset_arr, kIndex, 1);
    CudaClimateRestoreInt(treaties_arr, treaties_at_reset_arr, kIndex * wkNumberAgents, wkNumberAgents);
    CudaClimateRestore(features_arr, features_at_reset_arr, kIndex * kNumFeatures, kNumFeatures);
    CudaClimateRestoreInt(action_mask_arr, action_mask_at_reset_arr, kIndex * kMaskSize, kMaskSize);
    if (kAgentId == 0) {
      CudaClimateRestore(carbon_arr, carbon_at_reset_arr, kEnvId * 3, 3);
      CudaClimateRestore(temperature_arr, temperature_at_reset_arr, kEnvId * 2, 2);
      done_arr[kEnvId] = 0;
      env_timestep_arr[kEnvId] = 0;
    }
  }
}
}

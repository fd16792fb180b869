// The epidemic in CUDA C: a thread for each state, and one for the federal government, whose column holds the totals.

__constant__ float kLagWeights[4];

const int kNumLags = 4;
const int kNumStateFeatures = 10;
const int kNumNationalFeatures = 7;

extern "C" {

__device__ int CudaEpidemicNumStates() { return wkNumberAgents - 1; }

__device__ int CudaEpidemicIndex(const int kEnvId, const int kAgentId) { return kEnvId * wkNumberAgents + kAgentId; }

// How strictly a state was closed some steps ago, 0 to 1; open before the episode.
__device__ float CudaEpidemicClosed(const int* stringency_arr, const int kEnvId, const int kStateId,
                                    const int kTimestep, const int kLag, const int kEpisodeLength,
                                    const int kNumStringencyLevels) {
  const int kDimension[3] = {wkNumberEnvs, kEpisodeLength + 1, CudaEpidemicNumStates()};
  const int kIndex[3] = {kEnvId, max(kTimestep - kLag, 0), kStateId};
  return stringency_arr[get_flattened_array_index(kIndex, kDimension, 3)] / (kNumStringencyLevels - 1.0f);
}

__device__ float CudaEpidemicShare(const int kLevel, const int kNumLevels) { return kLevel / (kNumLevels - 1.0f); }

__device__ float CudaEpidemicNation(const float* population_arr) {
  float total = 0.0f;
  for (int state = 0; state < CudaEpidemicNumStates(); state++) {
    total += population_arr[state];
  }
  return total;
}

// Total of an array's states; with weights, their weighted sum.
__device__ float CudaEpidemicTotal(const float* arr, const int kEnvId, const float* weights_arr) {
  float total = 0.0f;
  for (int state = 0; state < CudaEpidemicNumStates(); state++) {
    const float kValue = arr[CudaEpidemicIndex(kEnvId, state)];
    total += weights_arr == nullptr ? kValue : kValue * weights_arr[state];
  }
  return total;
}

// What the agents decided, as the dynamics of this step see it.
__device__ void CudaEpidemicDecide(int* stringency_arr, int* subsidy_level_arr, const int* state_actions_arr,
                                   const int* federal_actions_arr, const int kEnvId, const int kAgentId,
                                   const int kTimestep, const int kEpisodeLength, const int kSubsidyInterval) {
  if (kAgentId < CudaEpidemicNumStates()) {
    const int kDimension[3] = {wkNumberEnvs, kEpisodeLength + 1, CudaEpidemicNumStates()};
    const int kIndex[3] = {kEnvId, kTimestep, kAgentId};
    stringency_arr[get_flattened_array_index(kIndex, kDimension, 3)] =
        state_actions_arr[kEnvId * CudaEpidemicNumStates() + kAgentId];
  } else if ((kTimestep - 1) % kSubsidyInterval == 0) {
    subsidy_level_arr[kEnvId] = federal_actions_arr[kEnvId];
  }
}

// Moves people of one state between the groups.
__device__ void CudaEpidemicSpread(float* susceptible_arr, float* infected_arr, float* recovered_arr,
                                   float* deaths_arr, float* vaccinated_arr, float* new_deaths_arr,
                                   const float* population_arr, const float kContacts, const float kNation,
                                   const float kDoseShare, const float kRecoveryRate, const float kMortality,
                                   const float kTravelShare, const int kEnvId, const int kStateId) {
  const int kIndex = CudaEpidemicIndex(kEnvId, kStateId);
  const float kSusceptible = susceptible_arr[kIndex];
  const float kInfected = infected_arr[kIndex];
  // The government's column still holds the total of the last step.
  const float kInfectedInNation = infected_arr[CudaEpidemicIndex(kEnvId, CudaEpidemicNumStates())];
  const float kPressure = (1.0f - kTravelShare) * kInfected / population_arr[kStateId] +
                          kTravelShare * kInfectedInNation / kNation;
  const float kCases = min(kSusceptible, kContacts * kSusceptible * kPressure);
  const float kResolved = kRecoveryRate * kInfected;
  const float kDoses = min(kSusceptible - kCases, population_arr[kStateId] * kDoseShare);
  const float kNewDeaths = kMortality * kResolved;
  susceptible_arr[kIndex] = kSusceptible - kCases - kDoses;
  infected_arr[kIndex] = kInfected + kCases - kResolved;
  recovered_arr[kIndex] += (1.0f - kMortality) * kResolved + kDoses;
  deaths_arr[kIndex] += kNewDeaths;
  vaccinated_arr[kIndex] += kDoses;
  new_deaths_arr[kEnvId * CudaEpidemicNumStates() + kStateId] = kNewDeaths;
}

// What one state produces and owes.
__device__ void CudaEpidemicProduce(const float* infected_arr, const float* deaths_arr, float* unemployment_arr,
                                    float* output_arr, float* debt_arr, const float kPopulation,
                                    const float kLaggedClosing, const float kJobSensitivity,
                                    const float kBaseUnemployment, const float kInterestRate, const float kSubsidy,
                                    const int kIndex) {
  // The softplus keeps unemployment above its base, smoothly.
  const float kExcess = kJobSensitivity * log1pf(expf(6.0f * kLaggedClosing - 3.0f)) / 6.0f;
  const float kUnemployment = min(1.0f, kBaseUnemployment + kExcess);
  const float kAble = kPopulation - deaths_arr[kIndex] - infected_arr[kIndex];
  unemployment_arr[kIndex] = kUnemployment;
  output_arr[kIndex] = kAble * (1.0f - kUnemployment) + kSubsidy;
  debt_arr[kIndex] = (1.0f + kInterestRate) * debt_arr[kIndex] + kSubsidy;
}

__device__ void CudaEpidemicObserveState(float* obs_arr, const float* susceptible_arr, const float* infected_arr,
                                         const float* recovered_arr, const float* deaths_arr,
                                         const float* vaccinated_arr, const float* unemployment_arr,
                                         const float* output_arr, const float kPopulation, const float kClosed,
                                         const float kSubsidyShare, const float kTime, const bool kAgentsLast,
                                         const int kEnvId, const int kStateId) {
  const int kIndex = CudaEpidemicIndex(kEnvId, kStateId);
  const float kFeatures[kNumStateFeatures] = {
      susceptible_arr[kIndex] / kPopulation, infected_arr[kIndex] / kPopulation,
      recovered_arr[kIndex] / kPopulation,   deaths_arr[kIndex] / kPopulation,
      vaccinated_arr[kIndex] / kPopulation,  unemployment_arr[kIndex],
      output_arr[kIndex] / kPopulation,      kClosed,
      kSubsidyShare,                         kTime};
  const int kDimension[3] = {wkNumberEnvs, CudaEpidemicNumStates(), kNumStateFeatures};
  const int kDimensionLast[3] = {wkNumberEnvs, kNumStateFeatures, CudaEpidemicNumStates()};
  for (int feature = 0; feature < kNumStateFeatures; feature++) {
    const int kFeatureIndex[3] = {kEnvId, kStateId, feature};
    const int kFeatureIndexLast[3] = {kEnvId, feature, kStateId};
    obs_arr[kAgentsLast ? get_flattened_array_index(kFeatureIndexLast, kDimensionLast, 3)
                        : get_flattened_array_index(kFeatureIndex, kDimension, 3)] = kFeatures[feature];
  }
}

__device__ void CudaEpidemicObserveNation(float* obs_arr, const float* infected_arr, const float* deaths_arr,
                                          const float* vaccinated_arr, const float* unemployment_arr,
                                          const float* debt_arr, const int* stringency_arr,
                                          const float* population_arr, const float kNation, const float kSubsidyShare,
                                          const int kTimestep, const int kEpisodeLength,
                                          const int kNumStringencyLevels, const int kEnvId) {
  const int kTotals = CudaEpidemicIndex(kEnvId, CudaEpidemicNumStates());
  const float kFeatures[kNumNationalFeatures] = {infected_arr[kTotals] / kNation,
                                                 deaths_arr[kTotals] / kNation,
                                                 vaccinated_arr[kTotals] / kNation,
                                                 unemployment_arr[kTotals],
                                                 debt_arr[kTotals] / kNation,
                                                 kSubsidyShare,
                                                 kTimestep / static_cast<float>(kEpisodeLength)};
  float* features = obs_arr + kEnvId * (kNumNationalFeatures + 2 * CudaEpidemicNumStates());
  for (int feature = 0; feature < kNumNationalFeatures; feature++) {
    features[feature] = kFeatures[feature];
  }
  features += kNumNationalFeatures;
  for (int state = 0; state < CudaEpidemicNumStates(); state++) {
    features[state] = infected_arr[CudaEpidemicIndex(kEnvId, state)] / population_arr[state];
    features[CudaEpidemicNumStates() + state] = CudaEpidemicClosed(stringency_arr, kEnvId, state, kTimestep, 0,
                                                                   kEpisodeLength, kNumStringencyLevels);
  }
}

__global__ void CudaEpidemicStep(float* susceptible_arr, float* infected_arr, float* recovered_arr, float* deaths_arr,
                                 float* vaccinated_arr, float* unemployment_arr, float* output_arr, float* debt_arr,
                                 int* stringency_arr, int* subsidy_level_arr, float* new_deaths_arr,
                                 const float* population_arr, const float* transmission_arr,
                                 const float* closing_effect_arr, const float* job_sensitivity_arr,
                                 const int kNumStringencyLevels, const int kNumSubsidyLevels,
                                 const int kSubsidyInterval, const int kClosingDelay, const int kVaccinationStart,
                                 const float kVaccinationShare, const float kRecoveryRate, const float kMortality,
                                 const float kTravelShare, const float kBaseUnemployment, const float kInterestRate,
                                 const float kMaxSubsidyPerPerson, const bool kAgentsLast, float* state_obs_arr,
                                 float* federal_obs_arr, int* state_actions_arr, int* federal_actions_arr,
                                 int* done_arr, int* env_timestep_arr, const int kEpisodeLength) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kNumStates = CudaEpidemicNumStates();
  const bool kIsState = kAgentId < kNumStates;
  const bool kIsFederal = kAgentId == kNumStates;
  const int kTimestep = env_timestep_arr[kEnvId] + 1;
  const float kTime = kTimestep / static_cast<float>(kEpisodeLength);
  const float kNation = CudaEpidemicNation(population_arr);

  if (kAgentId < wkNumberAgents) {
    CudaEpidemicDecide(stringency_arr, subsidy_level_arr, state_actions_arr, federal_actions_arr, kEnvId, kAgentId,
                       kTimestep, kEpisodeLength, kSubsidyInterval);
  }
  // Everyone has read the step counter, and the government has set the subsidies.
  __sync_env_threads();

  const float kSubsidyShare = CudaEpidemicShare(subsidy_level_arr[kEnvId], kNumSubsidyLevels);
  if (kIsFederal) {
    env_timestep_arr[kEnvId] = kTimestep;
  }
  if (kIsState) {
    const float kDelayed = CudaEpidemicClosed(stringency_arr, kEnvId, kAgentId, kTimestep, kClosingDelay,
                                              kEpisodeLength, kNumStringencyLevels);
    const float kContacts = transmission_arr[kAgentId] * expf(-closing_effect_arr[kAgentId] * kDelayed);
    const float kDoseShare = kTimestep >= kVaccinationStart ? kVaccinationShare : 0.0f;
    CudaEpidemicSpread(susceptible_arr, infected_arr, recovered_arr, deaths_arr, vaccinated_arr, new_deaths_arr,
                       population_arr, kContacts, kNation, kDoseShare, kRecoveryRate, kMortality, kTravelShare,
                       kEnvId, kAgentId);
    float lagged = 0.0f;
    for (int lag = 0; lag < kNumLags; lag++) {
      lagged += kLagWeights[lag] * CudaEpidemicClosed(stringency_arr, kEnvId, kAgentId, kTimestep, lag,
                                                      kEpisodeLength, kNumStringencyLevels);
    }
    CudaEpidemicProduce(infected_arr, deaths_arr, unemployment_arr, output_arr, debt_arr, population_arr[kAgentId],
                        lagged, job_sensitivity_arr[kAgentId], kBaseUnemployment, kInterestRate,
                        population_arr[kAgentId] * kMaxSubsidyPerPerson * kSubsidyShare,
                        CudaEpidemicIndex(kEnvId, kAgentId));
  }
  __sync_env_threads();

  if (kIsFederal) {
    const int kTotals = CudaEpidemicIndex(kEnvId, kNumStates);
    susceptible_arr[kTotals] = CudaEpidemicTotal(susceptible_arr, kEnvId, nullptr);
    infected_arr[kTotals] = CudaEpidemicTotal(infected_arr, kEnvId, nullptr);
    recovered_arr[kTotals] = CudaEpidemicTotal(recovered_arr, kEnvId, nullptr);
    deaths_arr[kTotals] = CudaEpidemicTotal(deaths_arr, kEnvId, nullptr);
    vaccinated_arr[kTotals] = CudaEpidemicTotal(vaccinated_arr, kEnvId, nullptr);
    unemployment_arr[kTotals] = CudaEpidemicTotal(unemployment_arr, kEnvId, population_arr) / kNation;
    output_arr[kTotals] = CudaEpidemicTotal(output_arr, kEnvId, nullptr);
    debt_arr[kTotals] = CudaEpidemicTotal(debt_arr, kEnvId, nullptr);
    CudaEpidemicObserveNation(federal_obs_arr, infected_arr, deaths_arr, vaccinated_arr, unemployment_arr, debt_arr,
                              stringency_arr, population_arr, kNation, kSubsidyShare, kTimestep, kEpisodeLength,
                              kNumStringencyLevels, kEnvId);
    if (kTimestep == kEpisodeLength) {
      done_arr[kEnvId] = 1;
    }
  }
  if (kIsState) {
    const float kClosed = CudaEpidemicClosed(stringency_arr, kEnvId, kAgentId, kTimestep, 0, kEpisodeLength,
                                             kNumStringencyLevels);
    CudaEpidemicObserveState(state_obs_arr, susceptible_arr, infected_arr, recovered_arr, deaths_arr, vaccinated_arr,
                             unemployment_arr, output_arr, population_arr[kAgentId], kClosed, kSubsidyShare, kTime,
                             kAgentsLast, kEnvId, kAgentId);
  }
}

__global__ void CudaEpidemicRewards(const float* output_arr, const float* debt_arr, const float* new_deaths_arr,
                                    const float* population_arr, const float kHealthWeight, const float kDebtWeight,
                                    float* state_rewards_arr, float* federal_rewards_arr) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  const int kNumStates = CudaEpidemicNumStates();
  if (kAgentId < kNumStates) {
    const int kRow = kEnvId * kNumStates + kAgentId;
    const float kPopulation = population_arr[kAgentId];
    const float kHealth = -1000.0f * new_deaths_arr[kRow] / kPopulation;
    const float kWealth = logf(output_arr[CudaEpidemicIndex(kEnvId, kAgentId)] / kPopulation + 0.01f);
    state_rewards_arr[kRow] = kHealthWeight * kHealth + (1.0f - kHealthWeight) * kWealth;
  }
  // The government's reward is made of the states'.
  __sync_env_threads();

  if (kAgentId == kNumStates) {
    const float kNation = CudaEpidemicNation(population_arr);
    float welfare = 0.0f;
    for (int state = 0; state < kNumStates; state++) {
      welfare += state_rewards_arr[kEnvId * kNumStates + state] * population_arr[state];
    }
    const float kDebt = debt_arr[CudaEpidemicIndex(kEnvId, kNumStates)];
    federal_rewards_arr[kEnvId] = welfare / kNation - kDebtWeight * kDebt / kNation;
  }
}
}

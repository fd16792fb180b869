#include "common/quantities.h"
#include "common/trees.cuh"

extern "C" {

__global__ void CudaOrchardStep(quantity* fruit, int* season, quantity* price, const quantity* bonus, const int kNumLevels,
                                quantity* observations, const int* actions, quantity* rewards, int* done,
                                Clock env_timestep, const int kEpisodeLength);

__global__ void CudaOrchardStep(quantity* fruit, int* season, quantity* price, const quantity* bonus, const int kNumLevels,
                                quantity* observations, const int* actions, quantity* rewards, int* done,
                                Clock env_timestep, const int kEpisodeLength) {
  const int kEnvId = getEnvID(blockIdx.x);
  const int kAgentId = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (kAgentId == 0) {
    season[kEnvId] += 1;
    price[kEnvId] *= kGrowth;
    env_timestep[kEnvId] += 1;
  }
  __sync_env_threads();
  assert(env_timestep[kEnvId] <= kEpisodeLength);
  if (kAgentId < wkNumberAgents) {
    int index[] = {kEnvId, kAgentId, 0};
    int trees[] = {wkNumberEnvs, wkNumberAgents};
    int features[] = {wkNumberEnvs, wkNumberAgents, 3};
    const int tree = get_flattened_array_index(index, trees, 2);
    quantity* observation = observations + get_flattened_array_index(index, features, 3);
    const int picked = actions[tree];
    rewards[tree] = picked * fruit[tree] * price[kEnvId] + bonus[kAgentId];
    fruit[tree] = fruit[tree] * (1 - picked / float(kNumLevels)) + new_fruit(season[kEnvId]);
    observation[0] = fruit[tree];
    observation[1] = price[kEnvId];
    observation[2] = share(season[kEnvId], kEpisodeLength);
  }
  if (kAgentId == 0) done[kEnvId] = env_timestep[kEnvId] >= kEpisodeLength;
}

}

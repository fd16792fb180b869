// A kernel as in WarpDrive's own tests: halves x, doubles y, and is done at a step or from a value of y on.
extern "C" {
__global__ void halve_and_double(float* x, int* y, int* done, const float factor, const int target, const int step,
                                 const int episode_length) {
  const int env_id = getEnvID(blockIdx.x);
  const int agent_id = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  if (agent_id < wkNumberAgents) {
    const int index = env_id * wkNumberAgents + agent_id;
    x[index] /= factor;
    y[index] *= static_cast<int>(factor);
  }
  __sync_env_threads();
  if (agent_id == 0) {
    bool is_done = step == episode_length;
    for (int other = 0; other < wkNumberAgents; other++) is_done |= y[env_id * wkNumberAgents + other] >= target;
    if (is_done) done[env_id] = 1;
  }
}
}

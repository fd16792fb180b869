// Content of WarpDrive's compiled file for tutorials and tests, without the default functions: a step that divides x and
// multiplies y, both (n_envs, n_agents), until an element of y reaches a target. An action has three numbered parts.
extern "C" __global__ void testkernel(float* x, int* y, int* done, int* actions, float multiplier, int target, int step,
                                      int episode_length) {
  const int env = getEnvID(blockIdx.x);
  const int agent = getAgentID(threadIdx.x, blockIdx.x, blockDim.x);
  __shared__ int has_reached;
  if (threadIdx.x == 0) has_reached = step == episode_length;
  __syncthreads();
  if (agent < wkNumberAgents) {
    const int item = env * wkNumberAgents + agent;
    x[item] /= multiplier;
    y[item] *= multiplier;
    if (y[item] >= target) has_reached = 1;
    for (int part = 0; part < 3; ++part) actions[3 * item + part] = part;
  }
  __syncthreads();
  if (threadIdx.x == 0 && has_reached) atomicMax(done + env, 1);
}

// Faulty, whose actions are choices.
#include "faulty.cuh"

WD_KERNEL(step)(int fault, int fault_step, int* age, const int (*sampled_actions)[N_AGENTS][1], float (*observations)[N_AGENTS][2],
                float (*final_observations)[N_AGENTS][2], float (*rewards)[N_AGENTS], int* terminated, int* truncated,
                int* _timestep_, int* _done_, int n_envs) {
  take_step(fault, fault_step, age, observations, final_observations, rewards, terminated, truncated, _timestep_, _done_, n_envs);
}

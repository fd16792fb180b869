// Lookout in CUDA C. Phases: count and show, judge.
WD_FN void show(int agent, int time, int total, float (&numbers)[2], float& hour, int (&map)[2][3], int (&mask)[3]) {
  numbers[0] = time;
  numbers[1] = total;
  hour = 0.5f * time;
  for (int cell = 0; cell < 6; ++cell) map[cell / 3][cell % 3] = 10 * agent + total + cell;
  for (int choice = 0; choice < 3; ++choice) mask[choice] = choice != (time + agent) % 3;
}

WD_KERNEL(step)(int (*total)[N_AGENTS], const int (*sampled_actions)[N_AGENTS][1], float (*rewards)[N_AGENTS],
                float (*observations_numbers)[N_AGENTS][2], float (*observations_hour)[N_AGENTS],
                int (*observations_map)[N_AGENTS][2][3], int (*observations_action_mask)[N_AGENTS][3],
                float (*final_observations_numbers)[N_AGENTS][2], float (*final_observations_hour)[N_AGENTS],
                int (*final_observations_map)[N_AGENTS][2][3], int (*final_observations_action_mask)[N_AGENTS][3],
                int* terminated, int* truncated, int* _timestep_, int* _done_, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    const int action = sampled_actions[env][agent][0];
    int time = _timestep_[env] + 1, sum = total[env][agent] + action;
    rewards[env][agent] = observations_action_mask[env][agent][action] ? action : -100.f;
    if (AUTO_RESET && time >= EPISODE_LENGTH) {
      show(agent, time, sum, final_observations_numbers[env][agent], final_observations_hour[env][agent],
           final_observations_map[env][agent], final_observations_action_mask[env][agent]);
      time = sum = 0;
    }
    total[env][agent] = sum;
    show(agent, time, sum, observations_numbers[env][agent], observations_hour[env][agent],
         observations_map[env][agent], observations_action_mask[env][agent]);
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    const int time = _timestep_[env] + 1;
    _done_[env] = truncated[env] = time >= EPISODE_LENGTH;
    terminated[env] = 0;
    _timestep_[env] = AUTO_RESET && _done_[env] ? 0 : time;
  }
}

WD_KERNEL(reset)(int (*total)[N_AGENTS], float (*observations_numbers)[N_AGENTS][2],
                 float (*observations_hour)[N_AGENTS], int (*observations_map)[N_AGENTS][2][3],
                 int (*observations_action_mask)[N_AGENTS][3], int* _timestep_, int* _done_, int force, int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    if (force || _done_[env]) {
      total[env][agent] = 0;
      show(agent, 0, 0, observations_numbers[env][agent], observations_hour[env][agent],
           observations_map[env][agent], observations_action_mask[env][agent]);
    }
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (force || _done_[env]) _timestep_[env] = _done_[env] = 0;
  }
}

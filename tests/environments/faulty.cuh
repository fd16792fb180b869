// Steps of Faulty in CUDA C, which do not depend on actions. Phases: show, judge.
#pragma once

WD_FN void show(float (&seen)[2], const int time, const int age) {
  seen[0] = time;
  seen[1] = age / 64.f;
}

WD_FN void take_step(int fault, int fault_step, int* age, float (*observations)[N_AGENTS][2], float (*final_observations)[N_AGENTS][2],
                     float (*rewards)[N_AGENTS], int* terminated, int* truncated, int* _timestep_, int* _done_,
                     int n_envs) {
  const float nan = wd_float(0x7FC00000u), infinity = wd_float(0x7F800000u);
  WD_EACH_AGENT(local, env, agent) {
    const int time = _timestep_[env] + 1;
    const bool is_over = time >= CUT_AFTER;
    const bool is_faulty = env == FAULT_ENV && agent == FAULT_AGENT && age[env] + 1 == fault_step;
    if (is_over && fault != 5) show(final_observations[env][agent], time, age[env] + 1);
    if (fault != 4 || agent != 1) show(observations[env][agent], AUTO_RESET && is_over ? 0 : time, age[env] + 1);
    rewards[env][agent] = is_faulty && fault == 2 ? nan : 1.f;
    for (int k = 0; is_faulty && k < 2; ++k) {
      if (fault == 1 || fault == 8) observations[env][agent][k] = fault == 8 ? infinity : nan;
      if (fault == 3) final_observations[env][agent][k] = nan;
    }
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    const int time = _timestep_[env] + 1;
    const bool is_over = time >= CUT_AFTER;
    age[env] += 1;
    terminated[env] = 0;
    truncated[env] = is_over;
    _done_[env] = fault == 6 ? 0 : is_over;
    _timestep_[env] = fault == 7 ? 1 : AUTO_RESET && is_over ? 0 : time;
  }
}

WD_KERNEL(reset)(const int* age, float (*observations)[N_AGENTS][2], int* _timestep_, int* _done_, int force,
                 int n_envs) {
  WD_EACH_AGENT(local, env, agent) {
    if (force || _done_[env]) show(observations[env][agent], 0, age[env]);
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (force || _done_[env]) _timestep_[env] = _done_[env] = 0;
  }
}

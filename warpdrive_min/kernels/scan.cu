// Advantages and returns, by one backward pass over time. Rows are the (environment, agent) pairs, AGENTS_PER_ENV of
// each environment, and to the macros a row is an environment of one agent: a thread has a row, and the threads of a
// warp read neighbouring ones.
//
// Reads rewards, terminated, truncated, values if VALUES, last_values unless COMPAT, cut_values if CUTS; writes
// returns, and advantages if VALUES. Arrays whose flag is false are never touched. In each case follow_t is 0 at an end, the
// cut's value at an end by the time limit with CUTS, else the value or return of step t + 1, as below.
//
//   VALUES: delta_t = r_t + gamma follow_t - v_t;  A_t = delta_t + gamma lam A_{t+1}, without A_{t+1} at an end;
//           R_t = A_t + v_t;  step t + 1 has the value v_{t+1}, v_T = last_values
//   else:   R_t = r_t + gamma follow_t;  step t + 1 has the return R_{t+1}, R_T = last_values
//   COMPAT, with VALUES: as the second, but R_{T-1} = v_{T-1} without reward and discount unless that step is an end,
//           as in WarpDrive; A_t = R_t - v_t
//
// Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", eq. 16.
// The k-th truncation of an environment has slot k of cut_values.
//
// Compiled without contraction always, so that the numbers are the same in all languages.

WD_KERNEL(scan)(const float* __restrict__ rewards, const float* __restrict__ values, const int* __restrict__ terminated,
                const int* __restrict__ truncated, const float* __restrict__ last_values,
                const float* __restrict__ cut_values, float* __restrict__ advantages, float* __restrict__ returns,
                float gamma, float lam, int n_steps, int n_cuts, int n_rows) {
  const int n_envs = n_rows;  // bound of WD_EACH_ENV
  const int n_flags = n_rows / AGENTS_PER_ENV;
  const float decay = gamma * lam;
  WD_EACH_ENV(local, row) {
    const int env = row / AGENTS_PER_ENV;
    int slot = 0;  // of the next truncation backwards; starts after the last one
    for (int step = 0; CUTS && step < n_steps; ++step)
      slot += truncated[static_cast<long long>(step) * n_flags + env] != 0;
    float after = COMPAT ? 0.f : last_values[row], advantage = 0.f;  // after: value or return of step t + 1
    for (int step = n_steps - 1; step >= 0; --step) {
      const long long flag = static_cast<long long>(step) * n_flags + env;
      const long long at = static_cast<long long>(step) * n_rows + row;
      const bool is_terminated = terminated[flag], is_truncated = truncated[flag];
      const bool is_over = is_terminated || is_truncated;
      float follow = is_over ? 0.f : after;
      if (CUTS && is_truncated) {
        slot -= 1;
        if (!is_terminated && slot < n_cuts) follow = cut_values[static_cast<long long>(slot) * n_rows + row];
      }
      const float target = rewards[at] + gamma * follow;
      const float value = VALUES ? values[at] : 0.f;
      if (VALUES && !COMPAT) {
        advantage = (target - value) + decay * (is_over ? 0.f : advantage);
        after = value;
        advantages[at] = advantage;
        returns[at] = advantage + value;
      } else {
        after = COMPAT && step == n_steps - 1 && !is_over ? value : target;
        returns[at] = after;
        if (VALUES) advantages[at] = after - value;
      }
    }
  }
}

// ContinuousMountainCar in CUDA C; one thread per environment. Phases: move, judge.

#include "../_common/valley.cuh"

typedef float Action;

WD_FN Outcome<State, Seen> outcome(const State& s, Action action) {
  const State next = roll(s, wd_clip(action, MIN_ACTION, MAX_ACTION) * POWER);
  const bool arrived = is_at_goal(next);
  const float reward = (arrived ? GOAL_REWARD : 0.f) - ACTION_COST * action * action;
  return {next, observe(next), reward, arrived};
}

#include "../_common/single_kernels.cuh"

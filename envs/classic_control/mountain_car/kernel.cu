// MountainCar in CUDA C; one thread per environment. Phases: move, judge.

#include "../_common/valley.cuh"

typedef int Action;

WD_FN Outcome<State, Seen> outcome(const State& s, Action action) {
  const State next = roll(s, static_cast<float>(action - 1) * FORCE);
  return {next, observe(next), -1.f, is_at_goal(next)};
}

#include "../_common/single_kernels.cuh"

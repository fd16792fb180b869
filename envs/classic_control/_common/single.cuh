// Interface of single-agent environments in CUDA C; `single_kernels.cuh`, included later, makes the kernels.
//
// An environment defines
//   struct State                     a row of `state`
//   struct Seen                      a row of `observations`
//   Action                           int or float
// observe(const State&)            returns a state's observation
// outcome(const State&, Action)    returns the result of an action, an Outcome
// draw_start(State&, words)        sets a state to a start, from an episode's four random words
#pragma once

// Result of an action: next state, observation, reward, and termination by the dynamics.
template <class State, class Seen>
struct Outcome {
  State state;
  Seen seen;
  float reward;
  bool is_terminal;
};

// Uniform within plus or minus a limit.
WD_FN float symmetric(unsigned word, float limit) { return (wd_uniform(word) * 2.f - 1.f) * limit; }

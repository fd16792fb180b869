// What environments of one agent say in CUDA C; `single_kernels.cuh`, which comes after it, makes kernels of that.
//
// An environment defines
//   struct State                     a row of `state`
//   struct Seen                      a row of `observations`
//   Action                           int or float
//   observe(const State&)            returns what is seen of a state
//   outcome(const State&, Action)    returns what an action leads to, an Outcome
//   draw_start(State&, words)        sets a state to a start, from the four words of an episode
#pragma once

// What an action leads to: a state, what is seen of it, the reward, and whether the dynamics end the episode.
template <class State, class Seen>
struct Outcome {
  State state;
  Seen seen;
  float reward;
  bool is_terminal;
};

// Uniform within plus or minus a limit.
WD_FN float symmetric(unsigned word, float limit) { return (wd_uniform(word) * 2.f - 1.f) * limit; }

// Interface of single-agent environments in CUDA C; `single_kernels.cuh`, included later, makes the kernels.
//
// An environment defines
//   struct State                     a row of `state`
//   struct Seen                      a row of `observations`
//   Action                           int or float
// observe(const State&)            returns a state's observation
// outcome(const State&, Action)    returns the result of an action, an Outcome
// draw_start(State&, words)        sets a state to a start, from an episode's four random words
//
// It may also define
// prepare(const State&)            returns values of a state that its outcome needs, whatever the action
// prepare_running(const State&)    the same, to the bit, for a start or a state in which no episode ended
// outcome(const State&, Action, prepared)
// A rollout then prepares a state before the step that leads to it is complete.
#pragma once

struct Nothing {};

template <class State>
WD_FN Nothing prepare(const State&) {
  return {};
}

template <class State>
WD_FN auto prepare_running(const State& s) {
  return prepare(s);
}

template <class State, class Action>
WD_FN auto outcome(const State& s, const Action action, Nothing) {
  return outcome(s, action);
}

template <class A, class B>
constexpr bool are_same = false;
template <class A>
constexpr bool are_same<A, A> = true;

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

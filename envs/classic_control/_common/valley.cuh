// Valley of both mountain cars in CUDA C: motion, goal and starts.
//
// Constants required before this header: GRAVITY, MAX_SPEED, MIN_POSITION, MAX_POSITION, GOAL_POSITION, GOAL_VELOCITY,
// START_OFFSET, START_WIDTH.
#pragma once

#include "../_common/single.cuh"

// Position, m, and velocity, m/step.
struct WD_ALIGN(8) State {
  float x, v;
};

typedef State Seen;  // the whole state

// One step with the motor's push in m/step^2.
WD_FN State roll(const State& s, const float push) {
  const float v = wd_clip(s.v + (push - GRAVITY * wd_cos(3.f * s.x)), -MAX_SPEED, MAX_SPEED);
  const float x = wd_clip(s.x + v, MIN_POSITION, MAX_POSITION);
  return {x, (x == MIN_POSITION) & (v < 0.f) ? 0.f : v};
}

WD_FN bool is_at_goal(const State& s) { return (s.x >= GOAL_POSITION) & (s.v >= GOAL_VELOCITY); }

WD_FN Seen observe(const State& s) { return s; }

WD_FN void draw_start(State& s, const wd_words& words) {
  // Add first: in the other order, contraction to FMA would change the start.
  s = {(wd_uniform(words.x) + START_OFFSET) * START_WIDTH, 0.f};
}

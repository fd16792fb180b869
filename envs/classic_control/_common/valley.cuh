// The valley of both mountain cars in CUDA C: how a car rolls, arrives and starts.
//
// Constants that come before this header: GRAVITY, MAX_SPEED, MIN_POSITION, MAX_POSITION, GOAL_POSITION, GOAL_VELOCITY,
// START_OFFSET, START_WIDTH, RESET_POOL_SIZE.
#pragma once

// Position, m, and velocity, m/step. A row of `state` is one, so that it moves in one access of 8 bytes.
struct alignas(8) State {
  float x, v;
};

WD_FN State load(const float* const from) { return *reinterpret_cast<const State*>(from); }

WD_FN void store(float* const to, const State& s) { *reinterpret_cast<State*>(to) = s; }

// One step with the motor's push in m/step^2.
WD_FN State roll(const State& s, const float push) {
  const float v = wd_clip(s.v + (push - GRAVITY * wd_cos(3.f * s.x)), -MAX_SPEED, MAX_SPEED);
  const float x = wd_clip(s.x + v, MIN_POSITION, MAX_POSITION);
  return {x, x == MIN_POSITION && v < 0.f ? 0.f : v};
}

WD_FN bool is_at_goal(const State& s) { return s.x >= GOAL_POSITION && s.v >= GOAL_VELOCITY; }

// The start of an environment's next episode.
WD_FN State start(const int env, const int episode, const int* const seed, const float (*const pool)[N_AGENTS][2]) {
  if (RESET_POOL_SIZE >= 2) return load(pool[wd_pool_row(episode, env, seed[0], seed[1], RESET_POOL_SIZE)][0]);
  if (RESET_POOL_SIZE == 1) return load(pool[0][0]);
  const unsigned word = wd_philox(episode, env, 0, STREAM_START, seed[0], seed[1]).x;
  // The sum goes first: the other way round, contraction to FMA would change the start.
  return {(wd_uniform(word) + START_OFFSET) * START_WIDTH, 0.f};
}

// Pendulum in CUDA C; one thread per environment. Phases: score, move.

#include "../_common/single.cuh"

struct WD_ALIGN(8) State {
  float angle, velocity;
};

struct Seen {
  float cosine, sine, velocity;
};

typedef float Action;

// One semi-implicit Euler step.
WD_FN State move(const State& s, float torque) {
  const float pushed = s.velocity + (GRAVITY_GAIN * wd_sin(s.angle) + TORQUE_GAIN * torque) * TIME_STEP;
  const float velocity = wd_clip(pushed, -MAX_VELOCITY, MAX_VELOCITY);
  return {s.angle + TIME_STEP * velocity, velocity};
}

// Returns the reward of a step from the state before it.
WD_FN float score(const State& s, float torque) {
  return -(s.angle * s.angle + VELOCITY_COST * s.velocity * s.velocity + TORQUE_COST * torque * torque);
}

WD_FN Seen observe(const State& s) {
  float sine, cosine;
  wd_sincos(s.angle, &sine, &cosine);
  return {cosine, sine, s.velocity};
}

// Uniform in both components.
WD_FN void draw_start(State& s, const wd_words& words) {
  s = {symmetric(words.x, START_ANGLE), symmetric(words.y, START_VELOCITY)};
}

WD_FN Outcome<State, Seen> outcome(State s, Action action) {
  s.angle = wd_principal(s.angle);
  const float torque = wd_clip(action, -MAX_TORQUE, MAX_TORQUE);
  const State next = move(s, torque);
  return {next, observe(next), score(s, torque), false};
}

#include "../_common/single_kernels.cuh"

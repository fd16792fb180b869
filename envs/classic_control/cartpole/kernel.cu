// CartPole in CUDA C; one thread per environment. Phases: move, judge.

#include "../_common/single.cuh"

struct WD_ALIGN(16) State {
  float x, x_dot, theta, theta_dot;
};

typedef State Seen;  // the whole state
typedef int Action;

// One explicit Euler step.
WD_FN State move(const State& s, Action action) {
  float sin_theta, cos_theta;
  wd_sincos(s.theta, &sin_theta, &cos_theta);
  const float force = action == 1 ? FORCE : -FORCE;
  const float push = wd_quotient(force + POLE_MASS_LENGTH * s.theta_dot * s.theta_dot * sin_theta, TOTAL_MASS);
  const float inertia = HALF_LENGTH * (4.f / 3.f - wd_quotient(POLE_MASS * cos_theta * cos_theta, TOTAL_MASS));
  const float theta_acc = wd_quotient(GRAVITY * sin_theta - cos_theta * push, inertia);
  const float x_acc = push - wd_quotient(POLE_MASS_LENGTH * theta_acc * cos_theta, TOTAL_MASS);
  return {s.x + TIME_STEP * s.x_dot, s.x_dot + TIME_STEP * x_acc, s.theta + TIME_STEP * s.theta_dot,
          s.theta_dot + TIME_STEP * theta_acc};
}

WD_FN Seen observe(const State& s) { return s; }

// Uniform in every component.
WD_FN void draw_start(State& s, const wd_words& words) {
  s = {symmetric(words.x, START_RANGE), symmetric(words.y, START_RANGE), symmetric(words.z, START_RANGE),
       symmetric(words.w, START_RANGE)};
}

WD_FN Outcome<State, Seen> outcome(const State& s, Action action) {
  const State next = move(s, action);
  const bool failed = (fabsf(next.x) > MAX_POSITION) | (fabsf(next.theta) > MAX_ANGLE);
  return {next, observe(next), 1.f, failed};
}

#include "../_common/single_kernels.cuh"

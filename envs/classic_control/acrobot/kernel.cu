// Acrobot in CUDA C; one thread per environment. Phases: move, observe, judge.

#include "../_common/single.cuh"

struct WD_ALIGN(16) State {
  float angle_1, angle_2, velocity_1, velocity_2;
};

struct WD_ALIGN(8) Seen {
  float cos_1, sin_1, cos_2, sin_2, velocity_1, velocity_2;
};

typedef int Action;

// Returns the time derivative of the state by the book's equations; their cos(x - pi/2) is sin x.
WD_FN State slope(const State& s, float torque) {
  float sin_2, cos_2;
  wd_sincos(s.angle_2, &sin_2, &cos_2);
  const float d_1 = INERTIA_1 + 2.f * COUPLING * cos_2;
  const float d_2 = INERTIA_2 + COUPLING * cos_2;
  const float ratio = d_2 / d_1;
  const float phi_2 = WEIGHT_2 * wd_sin(s.angle_1 + s.angle_2);
  const float swing = COUPLING * s.velocity_2 * (s.velocity_2 + 2.f * s.velocity_1) * sin_2;
  const float phi_1 = WEIGHT_1 * wd_sin(s.angle_1) + phi_2 - swing;
  const float pull = COUPLING * s.velocity_1 * s.velocity_1 * sin_2;
  const float acc_2 = (torque + ratio * phi_1 - pull - phi_2) / (INERTIA_2 - d_2 * ratio);
  const float acc_1 = -(d_2 * acc_2 + phi_1) / d_1;
  return {s.velocity_1, s.velocity_2, acc_1, acc_2};
}

WD_FN State advance(const State& s, const State& by, float time) {
  return {s.angle_1 + time * by.angle_1, s.angle_2 + time * by.angle_2, s.velocity_1 + time * by.velocity_1,
          s.velocity_2 + time * by.velocity_2};
}

// One Runge-Kutta step.
WD_FN State move(const State& s, Action action) {
  const float torque = static_cast<float>(action - 1) * TORQUE;
  const State slope_1 = slope(s, torque);
  const State slope_2 = slope(advance(s, slope_1, HALF_STEP), torque);
  const State slope_3 = slope(advance(s, slope_2, HALF_STEP), torque);
  const State slope_4 = slope(advance(s, slope_3, TIME_STEP), torque);
  const State sum = advance(advance(advance(slope_1, slope_2, 2.f), slope_3, 2.f), slope_4, 1.f);
  const State moved = advance(s, sum, SIXTH_STEP);
  return {wd_principal(moved.angle_1), wd_principal(moved.angle_2),
          wd_clip(moved.velocity_1, -MAX_VELOCITY_1, MAX_VELOCITY_1),
          wd_clip(moved.velocity_2, -MAX_VELOCITY_2, MAX_VELOCITY_2)};
}

WD_FN Seen observe(const State& s) {
  float sin_1, cos_1, sin_2, cos_2;
  wd_sincos(s.angle_1, &sin_1, &cos_1);
  wd_sincos(s.angle_2, &sin_2, &cos_2);
  return {cos_1, sin_1, cos_2, sin_2, s.velocity_1, s.velocity_2};
}

// The height of the tip above the fixed joint.
WD_FN float height(const Seen& seen) {
  return -LENGTH_1 * seen.cos_1 - LENGTH_2 * (seen.cos_1 * seen.cos_2 - seen.sin_1 * seen.sin_2);
}

// Uniform in every component.
WD_FN void draw_start(State& s, const wd_words& words) {
  s = {symmetric(words.x, START_RANGE), symmetric(words.y, START_RANGE), symmetric(words.z, START_RANGE),
       symmetric(words.w, START_RANGE)};
}

WD_FN Outcome<State, Seen> outcome(const State& s, Action action) {
  const State next = move(s, action);
  const Seen seen = observe(next);
  const bool reached = height(seen) > GOAL_HEIGHT;
  return {next, seen, reached ? 0.f : -1.f, reached};
}

#include "../_common/single_kernels.cuh"

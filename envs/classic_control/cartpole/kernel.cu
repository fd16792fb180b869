// CartPole in CUDA C; one thread per environment. Phases: move, judge.

#include "../_common/single.cuh"

struct WD_ALIGN(16) State {
  float x, x_dot, theta, theta_dot;
};

typedef State Seen;  // the whole state
typedef int Action;

// Sine and cosine of the pole's angle.
struct Lean {
  float sine, cosine;
};

WD_FN Lean lean_of(const State& s, bool is_small) {
  Lean lean;
  if (is_small)
    wd_sincos_small(s.theta, &lean.sine, &lean.cosine);
  else
    wd_sincos(s.theta, &lean.sine, &lean.cosine);
  return lean;
}

WD_FN Lean prepare(const State& s) { return lean_of(s, !OWN_SINE && fabsf(s.theta) <= MOST_SMALL); }

// Angles of running episodes are small, unless they start from a pool.
WD_FN Lean prepare_running(const State& s) {
  constexpr bool are_small =
      RESET_POOL_SIZE == 0 && MAX_ANGLE < MOST_SMALL && START_RANGE < MOST_SMALL && -START_RANGE < MOST_SMALL;
  return are_small ? lean_of(s, true) : prepare(s);
}

// One explicit Euler step. The next position and angle do not depend on the accelerations.
WD_FN State move(const State& s, Action action, const Lean& lean) {
  const float sin_theta = lean.sine, cos_theta = lean.cosine;
  const float force = action == 1 ? FORCE : -FORCE;
  const float push = wd_quotient(force + POLE_MASS_LENGTH * s.theta_dot * s.theta_dot * sin_theta, TOTAL_MASS);
  const float inertia = HALF_LENGTH * (4.f / 3.f - wd_quotient(POLE_MASS * cos_theta * cos_theta, TOTAL_MASS));
  const float torque = GRAVITY * sin_theta - cos_theta * push;
  constexpr bool is_normal = HALF_LENGTH > 1e-30f && HALF_LENGTH < 1e30f;  // inertia is at least a third of it
  const float theta_acc = is_normal ? wd_quotient_by_normal(torque, inertia) : wd_quotient(torque, inertia);
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

WD_FN Outcome<State, Seen> outcome(const State& s, Action action, const Lean& lean) {
  const State next = move(s, action, lean);
  const bool failed = (fabsf(next.x) > MAX_POSITION) | (fabsf(next.theta) > MAX_ANGLE);
  return {next, observe(next), 1.f, failed};
}

WD_FN Outcome<State, Seen> outcome(const State& s, Action action) { return outcome(s, action, prepare(s)); }

#include "../_common/single_kernels.cuh"

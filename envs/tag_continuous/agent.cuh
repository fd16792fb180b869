// Step of one agent, for every layout: shared by kernel.cu and spread.cu.
#pragma once

enum Feature { X, Y, SPEED, ACCELERATION, DIRECTION, TYPE, IN_GAME, TIME };

// SLOTS neighbours are searched at a time; registers hold as many distances.
constexpr int SLOTS = USE_FULL_OBSERVATION || N_OBSERVED <= 16 ? N_OBSERVED : 16;
constexpr int ROUNDS = (N_OBSERVED + SLOTS - 1) / SLOTS;

// Squared distance larger than any neighbour's.
constexpr float TOO_FAR = 1e35f;

// A coordinate from which squared distances to all agents are larger than TOO_FAR.
constexpr float AWAY = 1e18f;

struct Agent {
  float x, y, speed, acceleration, direction;
};

WD_FN bool is_outside(float position) { return position < 0.f || position > GRID_LENGTH; }

// Turns, accelerates and moves an agent; agents out of the game stay still.
WD_FN Agent moved(const Agent& agent, bool in_game, float thrust, float turn, float skill, bool& hits_edge) {
  const float top_speed = MAX_SPEED * skill;
  const float push = agent.acceleration + thrust;
  const float turned = wd_wrap(agent.direction + turn, TWO_PI);
  const float direction = in_game ? turned : 0.f;
  const float speed = in_game ? wd_clip(agent.speed + push, 0.f, top_speed) : 0.f;
  const float acceleration = speed <= 0.f || speed >= top_speed ? 0.f : push;
  float sine, cosine;
  wd_sincos(direction, &sine, &cosine);
  const float x = agent.x + speed * cosine, y = agent.y + speed * sine;
  hits_edge = is_outside(x) || is_outside(y);
  return {wd_clip(x, 0.f, GRID_LENGTH), wd_clip(y, 0.f, GRID_LENGTH), speed, acceleration, direction};
}

// Start of an agent's episode.
WD_FN Agent started(int episode, int env, int agent, const int* seed, const float* start_x, const float* start_y,
                    const float* start_direction) {
  const auto words = wd_philox(episode, env, agent, STREAM_START, seed[0], seed[1]);
  return {RANDOM_X ? GRID_LENGTH * wd_uniform(words.x) : start_x[agent],
          RANDOM_Y ? GRID_LENGTH * wd_uniform(words.y) : start_y[agent], 0.f, 0.f,
          RANDOM_DIRECTION ? static_cast<float>(wd_below(words.z, 4)) * HALF_PI : start_direction[agent]};
}

// Never contracted on the GPU: every pass over the agents recomputes it and must get the same value.
WD_FN float squared(float dx, float dy) {
#if defined(__CUDACC__)
  return __fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy));
#else
  return dx * dx + dy * dy;
#endif
}

WD_FN float smaller(float a, float b) {
#if defined(__CUDACC__)
  return fminf(a, b);
#else
  return a < b ? a : b;
#endif
}

WD_FN float larger(float a, float b) {
#if defined(__CUDACC__)
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// Puts the smaller one first.
WD_FN void sort(float& a, float& b) {
  const float low = smaller(a, b);
  b = larger(a, b);
  a = low;
}

WD_FN void sort_four(float (&four)[4]) {
  sort(four[0], four[1]), sort(four[2], four[3]);
  sort(four[0], four[2]), sort(four[1], four[3]);
  sort(four[1], four[2]);
}

WD_FN float reward(bool in_game, bool is_tagged, int n_catches, bool survives, float of_the_move) {
  const float tagged = of_the_move + (is_tagged ? TAG_PENALTY : 0.f);
  const float caught = tagged + TAG_REWARD * static_cast<float>(n_catches);
  return in_game ? caught + (survives ? END_OF_GAME_REWARD : 0.f) : 0.f;
}

// Returns the scale of a relative feature in an observation.
WD_FN float scale_of(int feature) {
  return feature <= Y ? INV_DIAGONAL : feature <= ACCELERATION ? INV_MAX_SPEED : INV_TWO_PI;
}

// One state's day and its observations: phases of kernel.cu. Names and formulas are those of reference.py.
#pragma once

constexpr int GOVERNMENT = N_STATES;
constexpr float LINEAR_ABOVE = 15.f, MIN_INCOME = 0.1f, MAX_INCOME = 3.f, PER_CENT = 0.01f;
constexpr float TENTH = 0.1f, HUNDRED = 100.f, HUNDRED_THOUSAND = 100000.f;
constexpr int N_TRAITS = 4;  // of `shown`
// Columns of `national`.
constexpr int SUSCEPTIBLE = 0, INFECTED = 1, RECOVERED = 2, VACCINATED = 3;
constexpr int UNEMPLOYMENT = 4, PRODUCTIVITY = 5, NEW_DEATHS = 6, STRINGENCY = 7;
constexpr int OF_EACH_STATE = 4;  // features of each state in the government's observation

// Applies a choice if allowed; returns true if applied.
WD_FN bool choose(int& cooldown, int action, int last, int days) {
  const bool is_choice = cooldown == 0 && action > 0 && action <= last;
  const int left = (is_choice ? days : cooldown) - 1;
  cooldown = left > 0 ? left : 0;
  return is_choice;
}

WD_FN float softplus(const float x) { return x > LINEAR_ABOVE ? x : wd_log(1.f + wd_exp(x)); }

// Returns the production as a share of everybody's potential; sick and unemployed people do not produce.
WD_FN float produced(const float recovered, const float infected, const float unemployment) {
  const float able = (1.f - MORTALITY * recovered) - TOO_SICK_TO_WORK * infected;
  return able * (1.f - unemployment * PER_CENT);
}

// Returns unemployment, per cent, from the filtered changes of stringency.
WD_FN float unemployed(const float* filters, const float* weights, const float floor) {
  float signal = 0.f;
  for (int k = 0; k < N_FILTERS; ++k) signal = signal + weights[k] * filters[k];
  const float share = softplus(signal) + floor;
  return share < HUNDRED ? share : HUNDRED;
}

WD_FN float utility(const float income) {
  const float logarithm = wd_log(wd_clip(income, MIN_INCOME, MAX_INCOME));
  if (IS_LOGARITHMIC) return 1.f + logarithm;
  return 1.f + (wd_exp(ONE_MINUS_AVERSION * logarithm) - 1.f) * INV_ONE_MINUS_AVERSION;
}

// Weights of a day's deaths and income in one agent's welfare.
struct Weights {
  float health, health_low, health_scale, economy_low, economy_scale;
};

WD_FN float welfare(const float deaths, const float income, const Weights& weights) {
  const float health = (-deaths - weights.health_low) * weights.health_scale;
  const float wealth = (utility(income) - weights.economy_low) * weights.economy_scale;
  return weights.health * health + (1.f - weights.health) * wealth;
}

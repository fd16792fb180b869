// COVID-19 economy. Phases as in reference.py: decide, spread, work, score, observe, start.
//
// A block owns its environments, and its threads stride over their agents; the last agent is the government. A state is
// in global memory, and others read it after a barrier. One thread sums each national average over the states in
// order, so it does not depend on thread timing.

#include "agent.cuh"

struct Block {
  float day[ENVS_PER_BLOCK];  // elapsed share of the episode
  unsigned char ended[ENVS_PER_BLOCK];
};

// Arrays of all environments, by the kernels' names.
struct World {
  int n_envs;
  float (*susceptible)[N_STATES], (*infected)[N_STATES], (*recovered)[N_STATES], (*vaccinated)[N_STATES];
  float (*new_deaths)[N_STATES], (*unemployment)[N_STATES], (*productivity)[N_STATES];
  float (*filters)[N_STATES][N_FILTERS];
  int (*stringency)[N_STATES], (*past_stringency)[DELAY][N_STATES], *subsidy, (*cooldown)[N_AGENTS];
  const float *unemployment_floor, (*filter_weight)[N_FILTERS], *population_share, (*shown)[N_TRAITS], *health_weight;
  const float *start_infected, *start_recovered, (*start_filters)[N_FILTERS];
  const int (*start_past_stringency)[N_STATES], *start_stringency;
  float (*national)[N_NATIONAL];
  float (*governor_seen)[N_STATES][SEEN_BY_GOVERNOR], (*government_seen)[1][SEEN_BY_GOVERNMENT];
  int (*governor_mask)[N_STATES][N_LEVELS + 1], (*government_mask)[1][N_SUBSIDIES + 1];
  float (*governor_seen_last)[N_STATES][SEEN_BY_GOVERNOR], (*government_seen_last)[1][SEEN_BY_GOVERNMENT];
  int *_timestep_, *_episode_;
  const int* _reset_seed_;
};

// ---------------------------------------------------------------------------------------------- nation

// Returns a national average.
WD_FN float average(const World& world, int env, int which) {
  // Selected once: an array of pointers would need local memory.
  const float* of_states = which == SUSCEPTIBLE    ? world.susceptible[env]
                           : which == INFECTED     ? world.infected[env]
                           : which == RECOVERED    ? world.recovered[env]
                           : which == VACCINATED   ? world.vaccinated[env]
                           : which == UNEMPLOYMENT ? world.unemployment[env]
                           : which == PRODUCTIVITY ? world.productivity[env]
                                                   : world.new_deaths[env];
  float total = 0.f;
  for (int state = 0; state < N_STATES; ++state) {
    const float value = which == STRINGENCY ? static_cast<float>(world.stringency[env][state]) : of_states[state];
    total = total + world.population_share[state] * value;
  }
  return total;
}

// Writes the averages of every environment, or only of restarted ones. Call after a block barrier.
WD_FN void nation(const Block& block, const World& world, bool restarted) {
  for (int item = WD_THREAD; item < ENVS_PER_BLOCK * N_NATIONAL; item += WD_STRIDE) {
    const int local = item / N_NATIONAL, which = item % N_NATIONAL, env = WD_BLOCK * ENVS_PER_BLOCK + local;
    if (env < world.n_envs && (!restarted || block.ended[local]))
      world.national[env][which] = average(world, env, which);
  }
}

// ---------------------------------------------------------------------------------------------- observe

// Returns a national average in the unit of observations.
WD_FN float shown_average(const float* national, int which) {
  const bool is_level = which == UNEMPLOYMENT || which == STRINGENCY;
  const float scale = which == INFECTED     ? HUNDRED
                      : which == NEW_DEATHS ? HUNDRED_THOUSAND
                      : is_level            ? TENTH
                                            : 1.f;
  return national[which] * scale;
}

// Writes rows and masks of every environment, or only of restarted ones.
WD_FN void observe(const Block& block, const World& world, bool restarted) {
  const int n_envs = world.n_envs;
  WD_EACH_AGENT(local, env, agent) {
    if (restarted && !block.ended[local]) continue;
    const bool is_final = AUTO_RESET && !restarted && block.ended[local], may_choose = world.cooldown[env][agent] == 0;
    const float* national = world.national[env];
    const float paid = static_cast<float>(world.subsidy[env]) * INV_SUBSIDY_LEVELS;
    const float wait = static_cast<float>(world.cooldown[env][GOVERNMENT]) * INV_SUBSIDY_DAYS;
    float* of_states = is_final ? world.government_seen_last[env][0] : world.government_seen[env][0];
    if (agent == GOVERNMENT) {
      float* row = of_states + OF_EACH_STATE * N_STATES;
      for (int which = 0; which < N_NATIONAL; ++which) row[which] = shown_average(national, which);
      row[N_NATIONAL] = paid;
      row[N_NATIONAL + 1] = wait;
      row[N_NATIONAL + 2] = block.day[local];
      for (int choice = 0; choice <= N_SUBSIDIES; ++choice)
        world.government_mask[env][0][choice] = choice == 0 || may_choose;
      continue;
    }
    const int delayed = world.past_stringency[env][world._timestep_[env] % DELAY][agent];
    const float level = static_cast<float>(world.stringency[env][agent]) * TENTH;
    const float ill = world.infected[env][agent] * HUNDRED, deaths = world.new_deaths[env][agent] * HUNDRED_THOUSAND;
    const float idle = world.unemployment[env][agent] * TENTH;
    of_states[agent] = level;
    of_states[N_STATES + agent] = ill;
    of_states[2 * N_STATES + agent] = deaths;
    of_states[3 * N_STATES + agent] = idle;
    float* row = is_final ? world.governor_seen_last[env][agent] : world.governor_seen[env][agent];
    row[0] = level;
    row[1] = static_cast<float>(delayed) * TENTH;
    row[2] = static_cast<float>(world.cooldown[env][agent]) * INV_STRINGENCY_DAYS;
    row[3] = world.susceptible[env][agent];
    row[4] = ill;
    row[5] = world.recovered[env][agent];
    row[6] = world.vaccinated[env][agent];
    row[7] = deaths;
    row[8] = idle;
    row[9] = world.productivity[env][agent];
    row[10] = paid;
    row[11] = shown_average(national, INFECTED);
    row[12] = shown_average(national, NEW_DEATHS);
    row[13] = shown_average(national, UNEMPLOYMENT);
    row[14] = shown_average(national, STRINGENCY);
    row[15] = block.day[local];
    row[16] = wait;
    row[17] = world.health_weight[agent];
    for (int trait = 0; trait < N_TRAITS; ++trait) row[18 + trait] = world.shown[agent][trait];
    for (int choice = 0; choice <= N_LEVELS; ++choice)
      world.governor_mask[env][agent][choice] = choice == 0 || may_choose;
  }
}

// ---------------------------------------------------------------------------------------------- start

// Uniform over the block: true for all of its threads or none.
WD_FN bool any_ended(const Block& block, int n_envs) {
  bool any = false;
  for (int local = 0; local < ENVS_PER_BLOCK && WD_BLOCK * ENVS_PER_BLOCK + local < n_envs; ++local)
    any |= block.ended[local] != 0;
  return any;
}

// Starts and observes the next episode of the block's ended environments. Call after a block barrier.
WD_FN void start(Block& block, const World& world) {
  const int n_envs = world.n_envs;
  WD_EACH_AGENT(local, env, agent) {
    if (!block.ended[local]) continue;
    world.cooldown[env][agent] = 0;
    if (agent == GOVERNMENT) {
      world.subsidy[env] = 0;
      continue;
    }
    const unsigned word =
        wd_philox(world._episode_[env], env, agent, STREAM_START, world._reset_seed_[0], world._reset_seed_[1]).x;
    const float more = 1.f + START_SPREAD * (2.f * wd_uniform(word) - 1.f);
    const float ill = world.start_infected[agent] * more, over = world.start_recovered[agent];
    world.infected[env][agent] = ill;
    world.recovered[env][agent] = over;
    world.susceptible[env][agent] = (1.f - ill) - over;
    world.vaccinated[env][agent] = 0.f;
    world.new_deaths[env][agent] = 0.f;
    world.stringency[env][agent] = world.start_stringency[agent];
    for (int k = 0; k < N_FILTERS; ++k) world.filters[env][agent][k] = world.start_filters[agent][k];
    for (int day = 0; day < DELAY; ++day)
      world.past_stringency[env][day][agent] = world.start_past_stringency[day][agent];
    const float idle =
        unemployed(world.start_filters[agent], world.filter_weight[agent], world.unemployment_floor[agent]);
    world.unemployment[env][agent] = idle;
    world.productivity[env][agent] = produced(over, ill, idle);
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (block.ended[local]) {
      world._timestep_[env] = 0;
      world._episode_[env] += 1;
      block.day[local] = 0.f;
    }
  }
  nation(block, world, true);
  WD_SYNC();
  observe(block, world, true);
}

// ---------------------------------------------------------------------------------------------- kernels

WD_KERNEL(step)(float (*susceptible)[N_STATES], float (*infected)[N_STATES], float (*recovered)[N_STATES],
                float (*vaccinated)[N_STATES], float (*new_deaths)[N_STATES], float (*unemployment)[N_STATES],
                float (*productivity)[N_STATES], float (*filters)[N_STATES][N_FILTERS], int (*stringency)[N_STATES],
                int (*past_stringency)[DELAY][N_STATES], int* subsidy, int (*cooldown)[N_AGENTS],
                const float* transmission_slope, const float* transmission_intercept, const float* unemployment_floor,
                const float (*filter_weight)[N_FILTERS], const float* population_share, const float (*shown)[N_TRAITS],
                const float* health_weight, const float* health_low, const float* health_scale,
                const float* economy_low, const float* economy_scale, const float* start_infected,
                const float* start_recovered, const float (*start_filters)[N_FILTERS],
                const int (*start_past_stringency)[N_STATES], const int* start_stringency,
                const int (*sampled_actions_governor)[N_STATES][1], const int (*sampled_actions_government)[1][1],
                float (*rewards_governor)[N_STATES], float (*rewards_government)[1],
                float (*observations_governor_seen)[N_STATES][SEEN_BY_GOVERNOR],
                float (*observations_government_seen)[1][SEEN_BY_GOVERNMENT],
                int (*observations_governor_action_mask)[N_STATES][N_LEVELS + 1],
                int (*observations_government_action_mask)[1][N_SUBSIDIES + 1],
                float (*final_observations_governor_seen)[N_STATES][SEEN_BY_GOVERNOR],
                float (*final_observations_government_seen)[1][SEEN_BY_GOVERNMENT], int* terminated, int* truncated,
                float (*national)[N_NATIONAL], int* _done_, int* _timestep_, int* _episode_, const int* _reset_seed_,
                int n_envs) {
  WD_SHARED Block block;
  const World world = {n_envs,
                       susceptible, infected, recovered, vaccinated,
                       new_deaths, unemployment, productivity, filters,
                       stringency, past_stringency, subsidy, cooldown,
                       unemployment_floor, filter_weight, population_share, shown, health_weight,
                       start_infected, start_recovered, start_filters, start_past_stringency, start_stringency,
                       national,
                       observations_governor_seen, observations_government_seen,
                       observations_governor_action_mask, observations_government_action_mask,
                       final_observations_governor_seen, final_observations_government_seen,
                       _timestep_, _episode_, _reset_seed_};

  // decide, spread and work
  WD_EACH_AGENT(local, env, agent) {
    if (agent == GOVERNMENT) {
      const int action = sampled_actions_government[env][0][0];
      if (choose(cooldown[env][agent], action, N_SUBSIDIES, SUBSIDY_DAYS)) subsidy[env] = action - 1;
      continue;
    }
    const int action = sampled_actions_governor[env][agent][0], before = stringency[env][agent];
    const int level = choose(cooldown[env][agent], action, N_LEVELS, STRINGENCY_DAYS) ? action : before;
    const float change = static_cast<float>(level - before);
    stringency[env][agent] = level;
    const int timestep = _timestep_[env], slot = timestep % DELAY;
    const float delayed = static_cast<float>(past_stringency[env][slot][agent]);
    past_stringency[env][slot][agent] = level;

    const float healthy = susceptible[env][agent], ill = infected[env][agent];
    const float rate = transmission_slope[agent] * delayed + transmission_intercept[agent];
    const float would = ((rate > 0.f ? rate : 0.f) * healthy) * ill;
    const float infections = would < healthy ? would : healthy;
    const float removed = REMOVAL_RATE * ill;
    const float left = healthy - infections;
    const float doses = timestep >= VACCINATION_START ? DAILY_VACCINATIONS : 0.f;
    const float shots = doses < left ? doses : left;
    const float now_ill = (ill + infections) - removed, now_over = recovered[env][agent] + removed;
    susceptible[env][agent] = left - shots;
    infected[env][agent] = now_ill;
    recovered[env][agent] = now_over;
    vaccinated[env][agent] = vaccinated[env][agent] + shots;
    new_deaths[env][agent] = MORTALITY * removed;

    float* filter = filters[env][agent];
    for (int k = 0; k < N_FILTERS; ++k) filter[k] = filter[k] * FILTER_DECAY[k] + change;
    const float idle = unemployed(filter, filter_weight[agent], unemployment_floor[agent]);
    unemployment[env][agent] = idle;
    productivity[env][agent] = produced(now_over, now_ill, idle);
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    const int timestep = _timestep_[env] += 1, out_of_time = timestep >= EPISODE_LENGTH;
    block.day[local] = static_cast<float>(timestep) * INV_EPISODE_LENGTH;
    terminated[env] = 0;
    truncated[env] = out_of_time;
    _done_[env] = block.ended[local] = out_of_time;
  }
  nation(block, world, false);
  WD_SYNC();

  // score
  WD_EACH_AGENT(local, env, agent) {
    const Weights weights = {health_weight[agent], health_low[agent], health_scale[agent], economy_low[agent],
                             economy_scale[agent]};
    const float paid = SUBSIDY_UNIT * static_cast<float>(subsidy[env]);
    if (agent == GOVERNMENT)
      rewards_government[env][0] = welfare(national[env][NEW_DEATHS], national[env][PRODUCTIVITY] - INTEREST_RATE * paid, weights);
    else
      rewards_governor[env][agent] = welfare(new_deaths[env][agent], productivity[env][agent] + paid, weights);
  }
  observe(block, world, false);
  if (AUTO_RESET && any_ended(block, n_envs)) {
    WD_SYNC();  // the last day has been observed
    start(block, world);
  }
}

WD_KERNEL(reset)(float (*susceptible)[N_STATES], float (*infected)[N_STATES], float (*recovered)[N_STATES],
                 float (*vaccinated)[N_STATES], float (*new_deaths)[N_STATES], float (*unemployment)[N_STATES],
                 float (*productivity)[N_STATES], float (*filters)[N_STATES][N_FILTERS], int (*stringency)[N_STATES],
                 int (*past_stringency)[DELAY][N_STATES], int* subsidy, int (*cooldown)[N_AGENTS],
                 const float* unemployment_floor, const float (*filter_weight)[N_FILTERS],
                 const float* population_share, const float (*shown)[N_TRAITS], const float* health_weight,
                 const float* start_infected, const float* start_recovered, const float (*start_filters)[N_FILTERS],
                 const int (*start_past_stringency)[N_STATES], const int* start_stringency,
                 float (*observations_governor_seen)[N_STATES][SEEN_BY_GOVERNOR],
                 float (*observations_government_seen)[1][SEEN_BY_GOVERNMENT],
                 int (*observations_governor_action_mask)[N_STATES][N_LEVELS + 1],
                 int (*observations_government_action_mask)[1][N_SUBSIDIES + 1], float (*national)[N_NATIONAL],
                 int* _done_, int* _timestep_, int* _episode_, const int* _reset_seed_, int force, int n_envs) {
  WD_SHARED Block block;
  const World world = {n_envs,
                       susceptible, infected, recovered, vaccinated,
                       new_deaths, unemployment, productivity, filters,
                       stringency, past_stringency, subsidy, cooldown,
                       unemployment_floor, filter_weight, population_share, shown, health_weight,
                       start_infected, start_recovered, start_filters, start_past_stringency, start_stringency,
                       national,
                       observations_governor_seen, observations_government_seen,
                       observations_governor_action_mask, observations_government_action_mask,
                       nullptr, nullptr,
                       _timestep_, _episode_, _reset_seed_};

  WD_EACH_ENV(local, env) {
    block.ended[local] = force != 0 || _done_[env] != 0;
    _done_[env] = 0;
  }
  WD_SYNC();
  if (any_ended(block, n_envs)) start(block, world);
}

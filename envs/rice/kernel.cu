// RICE. Phases as in reference.py: bargain, produce, trade, warm, consume, observe, start.
//
// A block owns its environments, and its threads stride over their regions. Values that regions share are in shared
// memory, a few words each. One thread sums over regions in their order, so sums are bit-identical to the
// reference. LANES neighbouring threads write a row of observations, which are most of the traffic.

constexpr int N_WORLD = 6, N_PROFILE = 4;
constexpr int MITIGATION = 0, SAVINGS = 1, EXPORTS = 2, IMPORTS = 3, TARIFFS = IMPORTS + N_AGENTS;  // columns of actions
constexpr int PROMISES = N_ACTS, ASKS = N_ACTS + N_AGENTS, ANSWERS = N_ACTS + 2 * N_AGENTS;
constexpr float WHOLE = N_LEVELS - 1;
constexpr float SMALLEST = 1.17549435e-38f;

// Threads per row of the observations.
constexpr int LANES = WD_STRIDE < 32 ? 1 : 32;
static_assert(WD_STRIDE % LANES == 0, "rice: THREADS must be a multiple of 32");

// Proposals, agreements, and the mask of the next choices.
struct Bargain {
  int (*promise)[N_AGENTS][N_PARTNERS];
  int (*ask)[N_AGENTS][N_PARTNERS];
  int (*pledge)[N_AGENTS];
  int (*action_mask)[N_AGENTS][N_CHOICES];
};

struct World {
  float spare[ENVS_PER_BLOCK][N_AGENTS];          // surplus for consumption or export
  float unit[ENVS_PER_BLOCK][N_AGENTS];           // value of a level of imports; with trade
  float share[ENVS_PER_BLOCK][N_AGENTS];          // share of the demand that is sold; with trade
  float all[ENVS_PER_BLOCK][N_AGENTS][N_PUBLIC];  // public features of each region
  float world[ENVS_PER_BLOCK][N_WORLD];           // public features of the world
  int timestep[ENVS_PER_BLOCK];
  unsigned char ended[ENVS_PER_BLOCK];
};

WD_FN float largest(float a, float b) { return a > b ? a : b; }
WD_FN float least(float a, float b) { return a < b ? a : b; }

// Returns the period of a step; steps after the last one repeat it.
WD_FN int period_at(int timestep) { return wd_min(timestep, EPISODE_LENGTH - 1) / N_STAGES; }

// True if regions act at this stage of a period.
WD_FN bool acts_at(int timestep) { return timestep % N_STAGES == N_STAGES - 1; }

// Returns x to a power; 0 unless x is positive and normal.
WD_FN float power(float x, float exponent) { return x >= SMALLEST ? wd_exp(exponent * wd_log(x)) : 0.f; }

// ---------------------------------------------------------------------------------------------- trade

// Returns a region's desired imports from another one, levels.
WD_FN float wanted(const int* actions, int buyer, int seller) {
  return buyer == seller ? 0.f : static_cast<float>(actions[IMPORTS + seller]);
}

// Computes the value of a level of imports, given trust in a region's balance. Call a block barrier afterwards.
WD_FN float unit_of(const int* actions, int buyer, float output, float balance, float credit) {
  float levels = 0.f;  // small integers
  for (int seller = 0; seller < N_AGENTS; ++seller) levels += wanted(actions, buyer, seller);
  const float trust = wd_clip(1.f + balance / credit, 0.f, 1.f);
  return output / largest(levels, WHOLE) * trust;
}

// ---------------------------------------------------------------------------------------------- bargain

// Writes a region's proposals, or its agreed mitigation from all answers. Reads others' proposals of an
// earlier step. Call a block barrier afterwards.
WD_FN void negotiate(const Bargain& bargain, int stage, int env, int self, const int (*actions)[N_TYPES]) {
  int pledge = 0;
  for (int other = 0; other < N_AGENTS && stage < 2; ++other) {
    if (other == self) {
      if (stage == 0) bargain.promise[env][self][other % N_PARTNERS] = bargain.ask[env][self][other % N_PARTNERS] = 0;
    } else if (stage == 0) {
      bargain.promise[env][self][other % N_PARTNERS] = actions[self][PROMISES + other];
      bargain.ask[env][self][other % N_PARTNERS] = actions[self][ASKS + other];
    } else {
      const int kept = bargain.promise[env][self][other % N_PARTNERS] * actions[other][ANSWERS + self];
      const int granted = bargain.ask[env][other][self % N_PARTNERS] * actions[self][ANSWERS + other];
      pledge = kept > pledge ? kept : pledge;
      pledge = granted > pledge ? granted : pledge;
    }
  }
  if (stage == 1) bargain.pledge[env][self] = pledge;
}

// Clears a region's proposals and agreement.
WD_FN void forget(const Bargain& bargain, int env, int self) {
  if constexpr (!NEGOTIATION) return;
  for (int other = 0; other < N_PARTNERS; ++other)
    bargain.promise[env][self][other] = bargain.ask[env][self][other] = 0;
  bargain.pledge[env][self] = 0;
}

// True if a choice is allowed at a stage; an unused action allows only the first.
WD_FN bool allowed(int stage, int self, int pledge, int choice) {
  if (choice < N_ACTS * N_LEVELS) {
    const int level = choice % N_LEVELS;
    return (stage == N_STAGES - 1 || level == 0) && (choice >= N_LEVELS || level >= pledge);
  }
  choice -= N_ACTS * N_LEVELS;
  if (choice < 2 * N_AGENTS * N_LEVELS)
    return choice % N_LEVELS == 0 || (stage == 0 && choice / N_LEVELS % N_AGENTS != self);
  choice -= 2 * N_AGENTS * N_LEVELS;
  return choice % 2 == 0 || (stage == 1 && choice / 2 != self);
}

// ---------------------------------------------------------------------------------------------- observe

// Writes a region's public features. Call a block barrier afterwards.
WD_FN void publish(World& block, int local, int agent, float capital, float output, float emissions, float mitigation,
                   float balance, float credit) {
  float* row = block.all[local][agent];
  row[0] = wd_log(largest(capital, SMALLEST)) * 0.25f;
  row[1] = wd_log(1.f + output) * 0.25f;
  row[2] = emissions * 0.1f;
  row[3] = mitigation;
  if constexpr (TRADE) row[N_PUBLIC - 1] = wd_clip(balance / credit, -1.f, 1.f);
}

// Writes the world's public features. Call a block barrier afterwards.
WD_FN void look(World& block, int local, int timestep, const float* carbon, const float* temperature) {
  float* row = block.world[local];
  row[0] = static_cast<float>(timestep) / static_cast<float>(EPISODE_LENGTH);
  row[1] = temperature[0] / 5.f;
  row[2] = temperature[1] / 5.f;
  row[3] = carbon[0] / CARBON_EQUILIBRIUM;
  row[4] = carbon[1] / UPPER_EQUILIBRIUM;
  row[5] = carbon[2] / LOWER_EQUILIBRIUM;
  block.timestep[local] = timestep;
}

WD_FN float seen(const World& block, const Bargain& bargain, int local, int env, int self, int column,
                 const float (*profile)[N_AGENTS][N_PROFILE]) {
  if (column < N_WORLD) return block.world[local][column];
  column -= N_WORLD;
  if (column < N_PROFILE)
    return profile[wd_min(block.timestep[local], EPISODE_LENGTH) / N_STAGES][self][column];
  column -= N_PROFILE;
  if (column < N_PUBLIC) return block.all[local][self][column];
  column -= N_PUBLIC;
  if (column < N_AGENTS) return column == self ? 1.f : 0.f;
  column -= N_AGENTS;
  if (column < N_AGENTS * N_PUBLIC) return block.all[local][column / N_PUBLIC][column % N_PUBLIC];
  column -= N_AGENTS * N_PUBLIC;
  if (column < 3) return block.timestep[local] % N_STAGES == column ? 1.f : 0.f;
  if (column == 3) return static_cast<float>(bargain.pledge[env][self]) / WHOLE;
  const int other = (column - 4) / 4, entry = (column - 4) % 4;
  const int (*proposals)[N_PARTNERS] = entry % 2 == 0 ? bargain.promise[env] : bargain.ask[env];
  const int level = entry < 2 ? proposals[self][other % N_PARTNERS] : proposals[other][self % N_PARTNERS];
  return static_cast<float>(level) / WHOLE;
}

// Writes a row from one thread, part by part: `seen` would look up the part of each column.
WD_FN void write_row(const World& block, const Bargain& bargain, int local, int env, int self,
                     const float (*profile)[N_AGENTS][N_PROFILE], float* target) {
  const float* of_self = profile[wd_min(block.timestep[local], EPISODE_LENGTH) / N_STAGES][self];
  const float* all = block.all[local][0];
  int column = 0;
  for (int entry = 0; entry < N_WORLD; ++entry) target[column++] = block.world[local][entry];
  for (int entry = 0; entry < N_PROFILE; ++entry) target[column++] = of_self[entry];
  for (int entry = 0; entry < N_PUBLIC; ++entry) target[column++] = all[self * N_PUBLIC + entry];
  for (int agent = 0; agent < N_AGENTS; ++agent) target[column++] = agent == self ? 1.f : 0.f;
  for (int entry = 0; entry < N_AGENTS * N_PUBLIC; ++entry) target[column++] = all[entry];
  for (; column < N_FEATURES; ++column) target[column] = seen(block, bargain, local, env, self, column, profile);
}

// Writes the rows of every environment, or only of restarted ones.
WD_FN void observe(const World& block, const Bargain& bargain, int n_envs, bool restarted, const float (*profile)[N_AGENTS][N_PROFILE],
                   float (*observations)[N_AGENTS][N_FEATURES], float (*final_observations)[N_AGENTS][N_FEATURES]) {
  for (int row = WD_THREAD / LANES; row < ENVS_PER_BLOCK * N_AGENTS; row += WD_STRIDE / LANES) {
    const int local = row / N_AGENTS, self = row % N_AGENTS, env = WD_BLOCK * ENVS_PER_BLOCK + local;
    if (env >= n_envs || (restarted && !block.ended[local])) continue;
    const bool is_final = AUTO_RESET && !restarted && block.ended[local];
    float* target = is_final ? final_observations[env][self] : observations[env][self];
    if constexpr (LANES == 1)
      write_row(block, bargain, local, env, self, profile, target);
    else
      for (int column = WD_THREAD % LANES; column < N_FEATURES; column += LANES)
        target[column] = seen(block, bargain, local, env, self, column, profile);
    if (!NEGOTIATION || is_final) continue;
    const int stage = block.timestep[local] % N_STAGES, pledge = bargain.pledge[env][self];
    for (int choice = WD_THREAD % LANES; choice < N_CHOICES; choice += LANES)
      bargain.action_mask[env][self][choice] = allowed(stage, self, pledge, choice);
  }
}

// ---------------------------------------------------------------------------------------------- start

// Uniform over the block: true for all of its threads or none.
WD_FN bool any_ended(const World& block, int n_envs) {
  bool any = false;
  for (int local = 0; local < ENVS_PER_BLOCK && WD_BLOCK * ENVS_PER_BLOCK + local < n_envs; ++local)
    any |= block.ended[local] != 0;
  return any;
}

// Starts the next episode of the block's ended environments. Call after a block barrier; the function ends
// with another one.
WD_FN void start(World& block, const Bargain& bargain, int n_envs, float (*capital)[N_AGENTS], float (*output)[N_AGENTS],
                 float (*consumption)[N_AGENTS], float (*emissions)[N_AGENTS], float (*mitigation)[N_AGENTS],
                 float (*balance)[N_AGENTS], float (*reserve)[N_AGENTS], float (*carbon)[3], float (*temperature)[2],
                 const float (*capital_reset_pool)[N_AGENTS], const float* credit, int* _timestep_, int* _episode_,
                 const int* _reset_seed_) {
  WD_EACH_AGENT(local, env, agent) {
    if (!block.ended[local]) continue;
    const int row = wd_pool_row(_episode_[env], env, _reset_seed_[0], _reset_seed_[1], N_STARTS);
    const float first = capital_reset_pool[row][agent];
    capital[env][agent] = first;
    output[env][agent] = consumption[env][agent] = emissions[env][agent] = mitigation[env][agent] = 0.f;
    balance[env][agent] = reserve[env][agent] = 0.f;
    forget(bargain, env, agent);
    publish(block, local, agent, first, 0.f, 0.f, 0.f, 0.f, credit[agent]);
  }
  WD_SYNC();
  WD_EACH_ENV(local, env) {
    if (!block.ended[local]) continue;
    carbon[env][0] = START_ATMOSPHERE;
    carbon[env][1] = START_UPPER;
    carbon[env][2] = START_LOWER;
    temperature[env][0] = START_AIR;
    temperature[env][1] = START_OCEAN;
    _timestep_[env] = 0;
    _episode_[env] += 1;
    look(block, local, 0, carbon[env], temperature[env]);
  }
  WD_SYNC();
}

// ---------------------------------------------------------------------------------------------- kernels

WD_KERNEL(step)(float (*capital)[N_AGENTS], float (*output)[N_AGENTS], float (*consumption)[N_AGENTS],
                float (*emissions)[N_AGENTS], float (*mitigation)[N_AGENTS], float (*balance)[N_AGENTS],
                float (*reserve)[N_AGENTS], float (*carbon)[3], float (*temperature)[2],
                int (*promise)[N_AGENTS][N_PARTNERS], int (*ask)[N_AGENTS][N_PARTNERS], int (*pledge)[N_AGENTS],
                int (*action_mask)[N_AGENTS][N_CHOICES], const float (*production)[N_AGENTS],
                const float (*labour)[N_AGENTS], const float (*intensity)[N_AGENTS],
                const float (*abatement)[N_AGENTS], const float (*profile)[N_AGENTS][N_PROFILE],
                const float (*world)[2], const float* credit,
                const float (*capital_reset_pool)[N_AGENTS], const int (*sampled_actions)[N_AGENTS][N_TYPES],
                float (*rewards)[N_AGENTS], float (*observations)[N_AGENTS][N_FEATURES],
                float (*final_observations)[N_AGENTS][N_FEATURES], int* terminated, int* truncated, int* _done_,
                int* _timestep_, int* _episode_, const int* _reset_seed_, int n_envs) {
  WD_SHARED World block;
  const Bargain bargain{promise, ask, pledge, action_mask};

  if constexpr (NEGOTIATION) {
    WD_EACH_AGENT(local, env, agent) {
      negotiate(bargain, _timestep_[env] % N_STAGES, env, agent, sampled_actions[env]);
    }
    WD_SYNC();
  }

  // produce
  WD_EACH_AGENT(local, env, agent) {
    if (!acts_at(_timestep_[env])) continue;
    const int period = period_at(_timestep_[env]);
    const int* actions = sampled_actions[env][agent];
    const int agreed = NEGOTIATION ? pledge[env][agent] : 0;
    const float mitigated = static_cast<float>(actions[MITIGATION] > agreed ? actions[MITIGATION] : agreed) / WHOLE;
    const float savings = static_cast<float>(actions[SAVINGS]) / static_cast<float>(N_LEVELS);
    const float warming = temperature[env][0], before = capital[env][agent];
    const float gross = production[period][agent] * power(before, CAPITAL_SHARE);  // Y = A L^(1 - gamma) K^gamma
    const float undamaged = largest(1.f - warming * (DAMAGE_LINEAR + DAMAGE_QUADRATIC * warming), 0.f);
    const float cost = abatement[period][agent] * power(mitigated, ABATEMENT_EXPONENT);  // theta_1 mu^theta_2
    const float net = undamaged * largest(1.f - cost, 0.f) * gross;
    const float investment = savings * net;
    output[env][agent] = net;
    mitigation[env][agent] = mitigated;
    emissions[env][agent] = intensity[period][agent] * (1.f - mitigated) * gross;  // sigma (1 - mu) Y
    capital[env][agent] = KEPT_CAPITAL * before + YEARS * investment;
    block.spare[local][agent] = net - investment;
    if constexpr (TRADE) block.unit[local][agent] = unit_of(actions, agent, net, balance[env][agent], credit[agent]);
  }
  WD_SYNC();

  // trade: supply of regions, and the share of demand that it meets
  if constexpr (TRADE) {
    WD_EACH_AGENT(local, env, agent) {
      if (!acts_at(_timestep_[env])) continue;
      float demand = 0.f;
      for (int buyer = 0; buyer < N_AGENTS; ++buyer)
        demand += wanted(sampled_actions[env][buyer], buyer, agent) * block.unit[local][buyer];
      const float exported = static_cast<float>(sampled_actions[env][agent][EXPORTS]) / WHOLE * output[env][agent];
      const float limit = least(exported, block.spare[local][agent]);
      block.share[local][agent] = demand > limit ? limit / demand : 1.f;
      const float sold = least(demand, limit);
      block.spare[local][agent] -= sold;
      consumption[env][agent] = sold;  // until all regions have bought
    }
    WD_SYNC();
  }

  // warm
  WD_EACH_ENV(local, env) {
    if (acts_at(_timestep_[env])) {
      const int period = period_at(_timestep_[env]);
      float emitted = 0.f;
      for (int agent = 0; agent < N_AGENTS; ++agent) emitted += emissions[env][agent];
      emitted = world[period][0] + emitted;
      const float atmosphere = carbon[env][0], upper = carbon[env][1], lower = carbon[env][2];
      const float sinking = ATMOSPHERE_TO_UPPER * atmosphere - UPPER_TO_ATMOSPHERE * upper;
      const float buried = UPPER_TO_LOWER * upper - LOWER_TO_UPPER * lower;
      const float warmer = atmosphere - sinking + EMITTED_CARBON * emitted;
      carbon[env][0] = warmer;
      carbon[env][1] = upper + sinking - buried;
      carbon[env][2] = lower + buried;
      // F' = F_2x log2(M_AT' / M_AT,1750) + F_EX'
      const float forcing = FORCING * wd_log(warmer / CARBON_EQUILIBRIUM) + world[period + 1][1];
      const float air = temperature[env][0], ocean = temperature[env][1], to_ocean = air - ocean;
      temperature[env][0] = air + WARMING_SPEED * (forcing - (FEEDBACK * air + OCEAN_LOSS * to_ocean));
      temperature[env][1] = ocean + OCEAN_SPEED * to_ocean;
    }
    const bool is_over = (_timestep_[env] += 1) >= EPISODE_LENGTH;
    terminated[env] = 0;
    truncated[env] = _done_[env] = block.ended[local] = is_over;
    look(block, local, _timestep_[env], carbon[env], temperature[env]);
  }
  WD_SYNC();

  // consume
  WD_EACH_AGENT(local, env, agent) {
    if (acts_at(_timestep_[env] - 1)) {
      float consumed = block.spare[local][agent];
      if constexpr (TRADE) {
        const int* actions = sampled_actions[env][agent];
        float imports = 0.f, tariffed = 0.f, value = 0.f;
        for (int seller = 0; seller < N_AGENTS; ++seller) {
          const float bought = wanted(actions, agent, seller) * block.unit[local][agent] * block.share[local][seller];
          const float tariff = static_cast<float>(actions[TARIFFS + seller]) / WHOLE * bought;
          imports += bought;
          tariffed += tariff;
          value += power(bought - tariff, SUBSTITUTION);
        }
        // Armington: foreign goods are imperfect substitutes.
        consumed = power(DOMESTIC * power(consumed, SUBSTITUTION) + FOREIGN * value, INVERSE_SUBSTITUTION);
        reserve[env][agent] += YEARS * tariffed;
        balance[env][agent] = INTEREST * balance[env][agent] + YEARS * (consumption[env][agent] - imports);
      }
      consumption[env][agent] = consumed;
      const float people = labour[period_at(_timestep_[env] - 1)][agent];
      const float each = largest(consumed / people, MIN_CONSUMPTION);
      rewards[env][agent] = people * (power(each, UTILITY_EXPONENT) - 1.f) / UTILITY_EXPONENT;
      forget(bargain, env, agent);  // an agreement lasts one period
    } else {
      rewards[env][agent] = 0.f;
    }
    publish(block, local, agent, capital[env][agent], output[env][agent], emissions[env][agent],
            mitigation[env][agent], balance[env][agent], credit[agent]);
  }
  WD_SYNC();

  observe(block, bargain, n_envs, false, profile, observations, final_observations);
  if (AUTO_RESET && any_ended(block, n_envs)) {
    WD_SYNC();  // the episode's end has been observed
    start(block, bargain, n_envs, capital, output, consumption, emissions, mitigation, balance, reserve, carbon,
          temperature, capital_reset_pool, credit, _timestep_, _episode_, _reset_seed_);
    observe(block, bargain, n_envs, true, profile, observations, final_observations);
  }
}

WD_KERNEL(reset)(float (*capital)[N_AGENTS], float (*output)[N_AGENTS], float (*consumption)[N_AGENTS],
                 float (*emissions)[N_AGENTS], float (*mitigation)[N_AGENTS], float (*balance)[N_AGENTS],
                 float (*reserve)[N_AGENTS], float (*carbon)[3], float (*temperature)[2],
                 int (*promise)[N_AGENTS][N_PARTNERS], int (*ask)[N_AGENTS][N_PARTNERS], int (*pledge)[N_AGENTS],
                 int (*action_mask)[N_AGENTS][N_CHOICES], const float (*profile)[N_AGENTS][N_PROFILE],
                 const float* credit,
                 const float (*capital_reset_pool)[N_AGENTS], float (*observations)[N_AGENTS][N_FEATURES], int* _done_,
                 int* _timestep_, int* _episode_, const int* _reset_seed_, int force, int n_envs) {
  WD_SHARED World block;
  const Bargain bargain{promise, ask, pledge, action_mask};
  WD_EACH_ENV(local, env) {
    block.ended[local] = force != 0 || _done_[env] != 0;
    _done_[env] = 0;
  }
  WD_SYNC();
  if (!any_ended(block, n_envs)) return;
  start(block, bargain, n_envs, capital, output, consumption, emissions, mitigation, balance, reserve, carbon,
        temperature, capital_reset_pool, credit, _timestep_, _episode_, _reset_seed_);
  observe(block, bargain, n_envs, true, profile, observations, nullptr);
}

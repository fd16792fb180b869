"""RICE in Numba, with the phases of reference.py and the layout of kernel.cu.

Phases: bargain, produce, trade, warm, consume, observe, start.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint8

from warpdrive_min.kernels.arrays import Clock, Results
from warpdrive_min.kernels.core_numba import agent_at, any_ended, clip, env_at, exp, log, natural, pool_row, take_ended

from .arrays import Globe

ZERO, ONE = np.float32(0), np.float32(1)
SMALLEST = np.finfo(np.float32).tiny
N_WORLD, N_PROFILE = 6, 4
MITIGATION, SAVINGS, EXPORTS, IMPORTS = range(4)


class World(NamedTuple):
    """Shared memory of a block, as in kernel.cu."""

    spare: float32[:, :]
    unit: float32[:, :]
    share: float32[:, :]
    all: float32[:, :, :]
    world: float32[:, :]
    timestep: int32[:]
    ended: uint8[:]


@cuda.jit(device=True)
def power(x, exponent):
    """Return x to a power; 0 unless x is positive and normal."""
    if x >= SMALLEST:
        return exp(float32(exponent * log(x)))
    return ZERO


@cuda.jit(device=True)
def largest(a, b):
    return a if a > b else b


@cuda.jit(device=True)
def least(a, b):
    return a if a < b else b


def build(c: Any) -> dict[str, Any]:
    """Close the kernels over the constants."""
    threads, envs_per_block, auto_reset, episode_length = c.THREADS, c.ENVS_PER_BLOCK, c.AUTO_RESET, c.EPISODE_LENGTH
    n_agents, n_features, n_public, n_starts, has_trade = c.N_AGENTS, c.N_FEATURES, c.N_PUBLIC, c.N_STARTS, c.TRADE
    n_items = envs_per_block * n_agents
    lanes = math.gcd(32, threads)  # threads per row
    whole, levels, length = np.float32(c.N_LEVELS - 1), np.float32(c.N_LEVELS), np.float32(episode_length)
    tariffs = IMPORTS + n_agents
    negotiates, n_stages, n_partners, n_choices = c.NEGOTIATION, c.N_STAGES, c.N_PARTNERS, c.N_CHOICES
    n_levels, promises, asks, answers = c.N_LEVELS, c.N_ACTS, c.N_ACTS + n_agents, c.N_ACTS + 2 * n_agents
    n_of_acts, n_of_proposals = c.N_ACTS * c.N_LEVELS, 2 * n_agents * c.N_LEVELS
    years, capital_share, kept_capital = c.YEARS, c.CAPITAL_SHARE, c.KEPT_CAPITAL
    damage_linear, damage_quadratic, abatement_exponent = c.DAMAGE_LINEAR, c.DAMAGE_QUADRATIC, c.ABATEMENT_EXPONENT
    forcing_gain, feedback, warming_speed = c.FORCING, c.FEEDBACK, c.WARMING_SPEED
    ocean_loss, ocean_speed = c.OCEAN_LOSS, c.OCEAN_SPEED
    carbon_equilibrium, upper_equilibrium = c.CARBON_EQUILIBRIUM, c.UPPER_EQUILIBRIUM
    lower_equilibrium, emitted_carbon = c.LOWER_EQUILIBRIUM, c.EMITTED_CARBON
    atmosphere_to_upper, upper_to_atmosphere = c.ATMOSPHERE_TO_UPPER, c.UPPER_TO_ATMOSPHERE
    upper_to_lower, lower_to_upper = c.UPPER_TO_LOWER, c.LOWER_TO_UPPER
    start_atmosphere, start_upper, start_lower = c.START_ATMOSPHERE, c.START_UPPER, c.START_LOWER
    start_air, start_ocean = c.START_AIR, c.START_OCEAN
    utility_exponent, min_consumption, interest = c.UTILITY_EXPONENT, c.MIN_CONSUMPTION, c.INTEREST
    substitution, inverse_substitution = c.SUBSTITUTION, c.INVERSE_SUBSTITUTION
    domestic, foreign = c.DOMESTIC, c.FOREIGN

    @cuda.jit(device=True)
    def shared_memory():
        return World(
            cuda.shared.array((envs_per_block, n_agents), float32),
            cuda.shared.array((envs_per_block, n_agents), float32),
            cuda.shared.array((envs_per_block, n_agents), float32),
            cuda.shared.array((envs_per_block, n_agents, n_public), float32),
            cuda.shared.array((envs_per_block, N_WORLD), float32),
            cuda.shared.array(envs_per_block, int32),
            cuda.shared.array(envs_per_block, uint8),
        )

    @cuda.jit(device=True)
    def period_at(timestep):
        """Return the period of a step; after the last one, the last."""
        return min(timestep, episode_length - 1) // n_stages

    @cuda.jit(device=True)
    def acts_at(timestep):
        """True if regions act at this stage of a period."""
        return timestep % n_stages == n_stages - 1

    @cuda.jit(device=True)
    def negotiate(env, self, stage, bargain, actions):
        """Write a region's proposals, or its agreed mitigation from all answers.

        Call a block barrier afterwards.
        """
        pledge = 0
        if stage == 0:
            for other in range(n_agents):
                is_other = other != self
                promised = actions[env, self, promises + other] if is_other else 0
                asked = actions[env, self, asks + other] if is_other else 0
                bargain.promise[env, self, other % n_partners] = promised
                bargain.ask[env, self, other % n_partners] = asked
        elif stage == 1:
            for other in range(n_agents):
                if other != self:
                    kept = bargain.promise[env, self, other % n_partners] * actions[env, other, answers + self]
                    granted = bargain.ask[env, other, self % n_partners] * actions[env, self, answers + other]
                    pledge = max(pledge, max(kept, granted))
            bargain.pledge[env, self] = pledge

    @cuda.jit(device=True)
    def forget(env, self, bargain):
        """Clear a region's proposals and agreement."""
        if negotiates:
            for other in range(n_partners):
                bargain.promise[env, self, other] = 0
                bargain.ask[env, self, other] = 0
            bargain.pledge[env, self] = 0

    @cuda.jit(device=True)
    def allowed(stage, self, pledge, choice):
        """True if a choice is allowed; an unused action allows only the first."""
        if choice < n_of_acts:
            level = choice % n_levels
            return (stage == n_stages - 1 or level == 0) and (choice >= n_levels or level >= pledge)
        choice -= n_of_acts
        if choice < n_of_proposals:
            return choice % n_levels == 0 or (stage == 0 and choice // n_levels % n_agents != self)
        choice -= n_of_proposals
        return choice % 2 == 0 or (stage == 1 and choice // 2 != self)

    @cuda.jit(device=True)
    def wanted(env, buyer, seller, actions):
        """Return a region's desired imports from another one, levels."""
        return ZERO if buyer == seller else float32(actions[env, buyer, IMPORTS + seller])

    @cuda.jit(device=True)
    def produce(block, local, env, agent, period, regions, climate, bargain, paths, actions):
        """Compute a region's output and its uses. Call a block barrier afterwards."""
        agreed = bargain.pledge[env, agent] if negotiates else 0
        mitigated = float32(max(actions[env, agent, MITIGATION], agreed)) / whole
        savings = float32(actions[env, agent, SAVINGS]) / levels
        warming, before = climate.temperature[env, 0], regions.capital[env, agent]
        gross = paths.production[period, agent] * power(before, capital_share)  # Y = A L^(1 - gamma) K^gamma
        undamaged = largest(ONE - warming * (damage_linear + damage_quadratic * warming), ZERO)
        cost = paths.abatement[period, agent] * power(mitigated, abatement_exponent)  # theta_1 mu^theta_2
        net = undamaged * largest(ONE - cost, ZERO) * gross
        investment = savings * net
        regions.output[env, agent] = net
        regions.mitigation[env, agent] = mitigated
        regions.emissions[env, agent] = paths.intensity[period, agent] * (ONE - mitigated) * gross  # sigma (1 - mu) Y
        regions.capital[env, agent] = kept_capital * before + years * investment
        block.spare[local, agent] = net - investment
        if has_trade:
            wishes = ZERO  # small integers
            for seller in range(n_agents):
                wishes = float32(wishes + wanted(env, agent, seller, actions))
            trust = clip(ONE + regions.balance[env, agent] / paths.credit[agent], ZERO, ONE)
            block.unit[local, agent] = net / largest(wishes, whole) * trust

    @cuda.jit(device=True)
    def sell(block, local, env, agent, regions, actions):
        """Compute a region's sold share of demand. Call a block barrier afterwards."""
        demand = ZERO
        for buyer in range(n_agents):
            demand = float32(demand + wanted(env, buyer, agent, actions) * block.unit[local, buyer])
        exported = float32(actions[env, agent, EXPORTS]) / whole * regions.output[env, agent]
        limit = least(exported, block.spare[local, agent])
        block.share[local, agent] = limit / demand if demand > limit else ONE
        sold = least(demand, limit)
        block.spare[local, agent] -= sold
        regions.consumption[env, agent] = sold  # until all regions have bought

    @cuda.jit(device=True)
    def warm(env, period, regions, climate, paths):
        """Advance carbon and temperatures. Call a block barrier afterwards."""
        emitted = ZERO
        for agent in range(n_agents):
            emitted = float32(emitted + regions.emissions[env, agent])
        emitted = float32(paths.world[period, 0] + emitted)
        carbon, temperature = climate
        atmosphere, upper, lower = carbon[env, 0], carbon[env, 1], carbon[env, 2]
        sinking = atmosphere_to_upper * atmosphere - upper_to_atmosphere * upper
        buried = upper_to_lower * upper - lower_to_upper * lower
        warmer = float32(atmosphere - sinking + emitted_carbon * emitted)
        carbon[env, 0] = warmer
        carbon[env, 1] = upper + sinking - buried
        carbon[env, 2] = lower + buried
        # F' = F_2x log2(M_AT' / M_AT,1750) + F_EX'
        forcing = forcing_gain * log(warmer / carbon_equilibrium) + paths.world[period + 1, 1]
        air, ocean = temperature[env, 0], temperature[env, 1]
        to_ocean = air - ocean
        temperature[env, 0] = air + warming_speed * (forcing - (feedback * air + ocean_loss * to_ocean))
        temperature[env, 1] = ocean + ocean_speed * to_ocean

    @cuda.jit(device=True)
    def consume(block, local, env, agent, period, regions, paths, actions, rewards):
        """Buy, consume and write the reward. Call a block barrier afterwards."""
        consumed = block.spare[local, agent]
        if has_trade:
            imports, tariffed, value = ZERO, ZERO, ZERO
            for seller in range(n_agents):
                wish = wanted(env, agent, seller, actions)
                bought = float32(wish * block.unit[local, agent] * block.share[local, seller])
                tariff = float32(float32(actions[env, agent, tariffs + seller]) / whole * bought)
                imports = float32(imports + bought)
                tariffed = float32(tariffed + tariff)
                value = float32(value + power(float32(bought - tariff), substitution))
            # Armington: foreign goods are imperfect substitutes.
            consumed = power(domestic * power(consumed, substitution) + foreign * value, inverse_substitution)
            regions.reserve[env, agent] += years * tariffed
            surplus = years * (regions.consumption[env, agent] - imports)
            regions.balance[env, agent] = interest * regions.balance[env, agent] + surplus
        regions.consumption[env, agent] = consumed
        people = paths.labour[period, agent]
        each = largest(consumed / people, min_consumption)
        rewards[env, agent] = people * (power(each, utility_exponent) - ONE) / utility_exponent

    @cuda.jit(device=True)
    def publish(block, local, env, agent, regions, paths):
        """Write a region's public features. Call a block barrier afterwards."""
        block.all[local, agent, 0] = log(largest(regions.capital[env, agent], SMALLEST)) * np.float32(0.25)
        block.all[local, agent, 1] = log(ONE + regions.output[env, agent]) * np.float32(0.25)
        block.all[local, agent, 2] = regions.emissions[env, agent] * np.float32(0.1)
        block.all[local, agent, 3] = regions.mitigation[env, agent]
        if has_trade:
            block.all[local, agent, n_public - 1] = clip(regions.balance[env, agent] / paths.credit[agent], -ONE, ONE)

    @cuda.jit(device=True)
    def look(block, local, env, timestep, climate):
        """Write the world's features. Call a block barrier afterwards."""
        block.world[local, 0] = float32(timestep) / length
        block.world[local, 1] = climate.temperature[env, 0] / np.float32(5)
        block.world[local, 2] = climate.temperature[env, 1] / np.float32(5)
        block.world[local, 3] = climate.carbon[env, 0] / carbon_equilibrium
        block.world[local, 4] = climate.carbon[env, 1] / upper_equilibrium
        block.world[local, 5] = climate.carbon[env, 2] / lower_equilibrium
        block.timestep[local] = timestep

    @cuda.jit(device=True)
    def seen(block, local, env, self, column, bargain, paths):
        """Return one entry of the observation of ``self``."""
        if column < N_WORLD:
            return block.world[local, column]
        column -= N_WORLD
        if column < N_PROFILE:
            return paths.profile[min(block.timestep[local], episode_length) // n_stages, self, column]
        column -= N_PROFILE
        if column < n_public:
            return block.all[local, self, column]
        column -= n_public
        if column < n_agents:
            return ONE if column == self else ZERO
        column -= n_agents
        if column < n_agents * n_public:
            return block.all[local, column // n_public, column % n_public]
        column -= n_agents * n_public
        if column < 3:
            return ONE if block.timestep[local] % n_stages == column else ZERO
        if column == 3:
            return float32(bargain.pledge[env, self]) / whole
        other, entry = (column - 4) // 4, (column - 4) % 4
        row, partner = (self, other) if entry < 2 else (other, self)
        if entry % 2 == 0:
            return float32(bargain.promise[env, row, partner % n_partners]) / whole
        return float32(bargain.ask[env, row, partner % n_partners]) / whole

    @cuda.jit(device=True)
    def observe(block, bargain, paths, results, restarted, n_envs):
        """Write the rows of every environment, or only of restarted ones."""
        for row in range(cuda.threadIdx.x // lanes, n_items, threads // lanes):
            local, env, self = agent_at(row, envs_per_block, n_agents)
            if env < n_envs and not (restarted and block.ended[local] == 0):
                is_final = auto_reset and not restarted and block.ended[local] != 0
                for index in range(cuda.threadIdx.x % lanes, n_features, lanes):
                    column = natural(index)
                    value = seen(block, local, env, self, column, bargain, paths)
                    if is_final:
                        results.final_observations[env, self, column] = value
                    else:
                        results.observations[env, self, column] = value
                if negotiates and not is_final:
                    stage, pledge = block.timestep[local] % n_stages, bargain.pledge[env, self]
                    for index in range(cuda.threadIdx.x % lanes, n_choices, lanes):
                        choice = natural(index)
                        bargain.action_mask[env, self, choice] = allowed(stage, self, pledge, choice)

    @cuda.jit(device=True)
    def start(block, regions, climate, bargain, paths, clock, n_envs):
        """Start the next episode of the block's ended environments.

        Call after a block barrier.
        """
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and block.ended[local] != 0:
                row = pool_row(clock.episode[env], env, clock.reset_seed[0], clock.reset_seed[1], n_starts)
                regions.capital[env, agent] = paths.capital_reset_pool[row, agent]
                regions.output[env, agent] = ZERO
                regions.consumption[env, agent] = ZERO
                regions.emissions[env, agent] = ZERO
                regions.mitigation[env, agent] = ZERO
                regions.balance[env, agent] = ZERO
                regions.reserve[env, agent] = ZERO
                forget(env, agent, bargain)
                publish(block, local, env, agent, regions, paths)
        cuda.syncthreads()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs and block.ended[local] != 0:
                climate.carbon[env, 0] = start_atmosphere
                climate.carbon[env, 1] = start_upper
                climate.carbon[env, 2] = start_lower
                climate.temperature[env, 0] = start_air
                climate.temperature[env, 1] = start_ocean
                clock.timestep[env] = 0
                clock.episode[env] += 1
                look(block, local, env, 0, climate)
        cuda.syncthreads()

    @cuda.jit
    def step(globe: Globe, sampled_actions: int32[:, :, :], clock: Clock, results: Results, n_envs: int32):
        regions, climate, bargain, paths = globe
        block = shared_memory()
        if negotiates:
            for item in range(cuda.threadIdx.x, n_items, threads):
                local, env, agent = agent_at(item, envs_per_block, n_agents)
                if env < n_envs:
                    negotiate(env, agent, clock.timestep[env] % n_stages, bargain, sampled_actions)
            cuda.syncthreads()
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs and acts_at(clock.timestep[env]):
                period = period_at(clock.timestep[env])
                produce(block, local, env, agent, period, regions, climate, bargain, paths, sampled_actions)
        cuda.syncthreads()
        if has_trade:
            for item in range(cuda.threadIdx.x, n_items, threads):
                local, env, agent = agent_at(item, envs_per_block, n_agents)
                if env < n_envs and acts_at(clock.timestep[env]):
                    sell(block, local, env, agent, regions, sampled_actions)
            cuda.syncthreads()
        for each in range(cuda.threadIdx.x, envs_per_block, threads):
            local, env = env_at(each, envs_per_block)
            if env < n_envs:
                if acts_at(clock.timestep[env]):
                    warm(env, period_at(clock.timestep[env]), regions, climate, paths)
                clock.timestep[env] += 1
                is_over = clock.timestep[env] >= episode_length
                results.terminated[env] = 0
                results.truncated[env] = is_over
                clock.done[env] = is_over
                block.ended[local] = is_over
                look(block, local, env, clock.timestep[env], climate)
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, n_items, threads):
            local, env, agent = agent_at(item, envs_per_block, n_agents)
            if env < n_envs:
                before = clock.timestep[env] - 1
                if acts_at(before):
                    period = period_at(before)
                    consume(block, local, env, agent, period, regions, paths, sampled_actions, results.rewards)
                    forget(env, agent, bargain)  # an agreement lasts one period
                else:
                    results.rewards[env, agent] = ZERO
                publish(block, local, env, agent, regions, paths)
        cuda.syncthreads()

        observe(block, bargain, paths, results, False, n_envs)
        if auto_reset and any_ended(block.ended, n_envs):
            cuda.syncthreads()  # the episode's end has been observed
            start(block, regions, climate, bargain, paths, clock, n_envs)
            observe(block, bargain, paths, results, True, n_envs)

    @cuda.jit
    def reset(globe: Globe, clock: Clock, results: Results, force: int32, n_envs: int32):
        regions, climate, bargain, paths = globe
        block = shared_memory()
        take_ended(block.ended, clock, force, envs_per_block, threads, n_envs)
        if any_ended(block.ended, n_envs):
            start(block, regions, climate, bargain, paths, clock, n_envs)
            observe(block, bargain, paths, results, True, n_envs)

    return {"step": step, "reset": reset}

"""RICE in NumPy, batched: the reference, and backend `cpu`.

Phases: `bargain`, `produce`, `trade`, `warm`, `consume`, `observe`, `start`. Arrays are ``(n_envs, n_agents)`` unless
stated. Sums over regions run in the regions' order, so every language gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.kernels.arrays import Clock, Results, rows
from warpdrive_min.kernels.maths_numpy import exp, log
from warpdrive_min.rng import pool_row

from .arrays import Bargain, Climate, Globe, Paths, Regions

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

ONE: Final = np.float32(1)
SMALLEST: Final = np.finfo(np.float32).tiny
MITIGATION, SAVINGS, EXPORTS, IMPORTS = range(4)
"""Columns of the actions; imports have one per region, and tariffs follow."""


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Close the kernels over the constants ``c``."""

    def step(globe: Globe, sampled_actions: Ints, clock: Clock, results: Results) -> None:
        stage = clock.timestep % c.N_STAGES
        # Steps after the last period repeat it.
        period = np.minimum(clock.timestep, c.EPISODE_LENGTH - 1) // c.N_STAGES
        if c.NEGOTIATION:
            negotiate(c, globe.bargain, sampled_actions, stage)
        act(c, stage == c.N_STAGES - 1, period, globe, sampled_actions, results.rewards)
        clock.timestep[:] += 1
        results.terminated[:] = 0
        results.truncated[:] = clock.done[:] = clock.timestep >= c.EPISODE_LENGTH
        observe(c, globe, clock.timestep, results.observations)
        if c.AUTO_RESET and clock.done.any():
            ended = np.flatnonzero(clock.done)
            results.final_observations[ended] = results.observations[ended]
            start(c, ended, globe, clock, results.observations)

    def reset(globe: Globe, clock: Clock, results: Results, force: int) -> None:
        ended = np.flatnonzero((clock.done != 0) | (force != 0))
        clock.done[ended] = 0
        start(c, ended, globe, clock, results.observations)

    return {"step": step, "reset": reset}


def negotiate(c: Any, bargain: Bargain, actions: Ints, stage: Ints) -> None:
    """Write proposals, and from the answers each region's agreed mitigation, levels."""
    n = c.N_AGENTS
    promised, asked, answered = (actions[..., c.N_ACTS + k * n : c.N_ACTS + (k + 1) * n] for k in range(3))
    others = 1 - np.eye(n, dtype=np.int32)
    proposes, answers = stage == 0, stage == 1
    bargain.promise[proposes] = (promised * others)[proposes]
    bargain.ask[proposes] = (asked * others)[proposes]
    # If j accepts i's proposal, i must keep its promise and j must meet i's demand.
    kept = bargain.promise * answered.transpose(0, 2, 1)
    granted = bargain.ask.transpose(0, 2, 1) * answered
    bargain.pledge[answers] = np.maximum(kept, granted).max(2)[answers]


def act(c: Any, acts: NDArray[np.bool_], period: Ints, globe: Globe, actions: Ints, rewards: Floats) -> None:
    """Advance a period where the stage is right, and write rewards; 0 elsewhere."""
    rewards[:] = 0
    if not acts.any():
        return
    now, sky, paths = rows(globe.regions, acts), rows(globe.climate, acts), globe.paths
    chosen, period = actions[acts], period[acts]
    levels = np.maximum(chosen[..., MITIGATION], globe.bargain.pledge[acts])
    spare = produce(c, now, sky, paths, levels, chosen, period)
    bought = trade(c, now, paths, chosen, spare) if c.TRADE else None
    warm(c, now, sky, paths, period)
    rewards[acts] = consume(c, now, paths, spare, bought, period)
    for arrays, changed in ((globe.regions, now), (globe.climate, sky)):
        for array, values in zip(arrays, changed, strict=True):
            array[acts] = values
    if c.NEGOTIATION:  # an agreement lasts one period
        for array in (globe.bargain.promise, globe.bargain.ask, globe.bargain.pledge):
            array[acts] = 0


def produce(
    c: Any, regions: Regions, climate: Climate, paths: Paths, levels: Ints, actions: Ints, period: Ints
) -> Floats:
    """Write output, emissions, mitigation and next capital; return the surplus.

    The surplus is available for consumption and export. ``levels`` are levels of mitigation.
    """
    mitigation = levels.astype(np.float32) / np.float32(c.N_LEVELS - 1)
    savings = actions[..., SAVINGS].astype(np.float32) / np.float32(c.N_LEVELS)
    warming = climate.temperature[:, :1]
    gross = paths.production[period] * power(regions.capital, c.CAPITAL_SHARE)  # Y = A L^(1 - gamma) K^gamma
    undamaged = np.maximum(ONE - warming * (c.DAMAGE_LINEAR + c.DAMAGE_QUADRATIC * warming), 0)
    cost = paths.abatement[period] * power(mitigation, c.ABATEMENT_EXPONENT)  # theta_1 mu^theta_2
    output = undamaged * np.maximum(ONE - cost, 0) * gross
    investment = savings * output
    regions.output[:] = output
    regions.mitigation[:] = mitigation
    regions.emissions[:] = paths.intensity[period] * (ONE - mitigation) * gross  # sigma (1 - mu) Y
    regions.capital[:] = c.KEPT_CAPITAL * regions.capital + c.YEARS * investment
    spare: Floats = output - investment
    return spare


def trade(c: Any, regions: Regions, paths: Paths, actions: Ints, spare: Floats) -> Floats:
    """Distribute exports over buyers; return foreign goods' value in consumption.

    Subtracts exports from ``spare``, and writes balances and reserves.
    """
    n, whole = c.N_AGENTS, np.float32(c.N_LEVELS - 1)
    wanted, tariffs = (actions[..., first : first + n].astype(np.float32) for first in (IMPORTS, IMPORTS + n))
    wanted[:, np.arange(n), np.arange(n)] = 0
    trust = np.clip(ONE + regions.balance / paths.credit, 0, 1)
    # Levels are small integers; their sum is exact in any order.
    unit = regions.output / np.maximum(wanted.sum(2), whole) * trust
    demand = total(wanted[:, buyer] * unit[:, buyer, None] for buyer in range(n))
    limit = np.minimum(actions[..., EXPORTS].astype(np.float32) / whole * regions.output, spare)
    sold = np.minimum(demand, limit)
    share = np.where(demand > limit, limit / np.where(demand > limit, demand, ONE), ONE)
    imports, tariffed, value = (np.zeros_like(spare) for _ in range(3))
    for seller in range(n):
        bought = wanted[:, :, seller] * unit * share[:, seller, None]
        tariff = tariffs[:, :, seller] / whole * bought
        imports += bought
        tariffed += tariff
        value += power(bought - tariff, c.SUBSTITUTION)
    spare -= sold
    regions.reserve[:] += c.YEARS * tariffed
    regions.balance[:] = c.INTEREST * regions.balance + c.YEARS * (sold - imports)
    return value


def warm(c: Any, regions: Regions, climate: Climate, paths: Paths, period: Ints) -> None:
    """Advance carbon and temperatures by a period; flows between boxes balance."""
    emissions = paths.world[period, 0] + total(regions.emissions.T)
    atmosphere, upper, lower = climate.carbon.T.copy()
    sinking = c.ATMOSPHERE_TO_UPPER * atmosphere - c.UPPER_TO_ATMOSPHERE * upper
    buried = c.UPPER_TO_LOWER * upper - c.LOWER_TO_UPPER * lower
    climate.carbon[:, 0] = atmosphere - sinking + c.EMITTED_CARBON * emissions
    climate.carbon[:, 1] = upper + sinking - buried
    climate.carbon[:, 2] = lower + buried
    air, ocean = climate.temperature.T.copy()
    # F' = F_2x log2(M_AT' / M_AT,1750) + F_EX'
    forcing = c.FORCING * log(climate.carbon[:, 0] / c.CARBON_EQUILIBRIUM) + paths.world[period + 1, 1]
    to_ocean = air - ocean
    climate.temperature[:, 0] = air + c.WARMING_SPEED * (forcing - (c.FEEDBACK * air + c.OCEAN_LOSS * to_ocean))
    climate.temperature[:, 1] = ocean + c.OCEAN_SPEED * to_ocean


def consume(c: Any, regions: Regions, paths: Paths, spare: Floats, bought: Floats | None, period: Ints) -> Floats:
    """Write consumption and return its utility."""
    if bought is None:
        regions.consumption[:] = spare
    else:  # Armington: foreign goods are imperfect substitutes
        mixed = c.DOMESTIC * power(spare, c.SUBSTITUTION) + c.FOREIGN * bought
        regions.consumption[:] = power(mixed, c.INVERSE_SUBSTITUTION)
    people = paths.labour[period]
    each = np.maximum(regions.consumption / people, c.MIN_CONSUMPTION)
    utility: Floats = people * (power(each, c.UTILITY_EXPONENT) - ONE) / c.UTILITY_EXPONENT
    return utility


def observe(c: Any, globe: Globe, timestep: Ints, seen: Floats) -> None:
    """Write observations ``(n_envs, n_agents, n_features)`` and the next masks."""
    regions, climate, bargain, paths = globe
    n, whole = c.N_AGENTS, np.float32(c.N_LEVELS - 1)
    period = np.minimum(timestep, c.EPISODE_LENGTH) // c.N_STAGES
    public = publish(c, regions, paths)
    equilibrium = np.array([c.CARBON_EQUILIBRIUM, c.UPPER_EQUILIBRIUM, c.LOWER_EQUILIBRIUM])
    seen[..., 0] = (timestep.astype(np.float32) / np.float32(c.EPISODE_LENGTH))[:, None]
    seen[..., 1:3] = climate.temperature[:, None] / np.float32(5)
    seen[..., 3:6] = (climate.carbon / equilibrium)[:, None]
    seen[..., 6:10] = paths.profile[period]
    own = 10 + c.N_PUBLIC
    last = own + n * (1 + c.N_PUBLIC)
    seen[..., 10:own] = public
    seen[..., own : own + n] = np.eye(n, dtype=np.float32)
    seen[..., own + n : last] = public.reshape(len(public), 1, -1)
    if c.NEGOTIATION:
        stage = timestep % c.N_STAGES
        seen[..., last : last + 3] = (stage[:, None] == np.arange(3))[:, None]
        seen[..., last + 3] = bargain.pledge.astype(np.float32) / whole
        turned = bargain.promise.transpose(0, 2, 1), bargain.ask.transpose(0, 2, 1)
        proposals = np.stack([bargain.promise, bargain.ask, *turned], -1).astype(np.float32) / whole
        seen[..., last + 4 :] = proposals.reshape(len(seen), n, -1)
        allow(c, bargain, stage)


def allow(c: Any, bargain: Bargain, stage: Ints) -> None:
    """Write the masks of a stage; an unused action allows only the first choice."""
    n, levels, mask = c.N_AGENTS, c.N_LEVELS, bargain.action_mask
    first = np.arange(levels) == 0
    others = ~np.eye(n, dtype=bool)[..., None]
    acts = (stage == c.N_STAGES - 1)[:, None, None]
    free = np.broadcast_to(acts | first, (len(mask), n, levels))
    ends = np.cumsum([0, c.N_ACTS * levels, 2 * n * levels, 2 * n])
    mask[..., : ends[1]] = np.tile(free, c.N_ACTS)
    mask[..., :levels] &= np.arange(levels) >= bargain.pledge[..., None]
    for part, at, wide, twice in ((slice(ends[1], ends[2]), 0, levels, 2), (slice(ends[2], ends[3]), 1, 2, 1)):
        is_free = (others & (stage == at)[:, None, None, None]) | (np.arange(wide) == 0)
        mask[..., part] = np.tile(is_free.reshape(len(mask), n, -1), twice)


def publish(c: Any, regions: Regions, paths: Paths) -> Floats:
    """Return public features of each region, ``(n_envs, n_agents, n_public)``."""
    quarter = np.float32(0.25)
    columns = [
        log(np.maximum(regions.capital, SMALLEST)) * quarter,
        log(ONE + regions.output) * quarter,
        regions.emissions * np.float32(0.1),
        regions.mitigation,
    ]
    if c.TRADE:
        columns.append(np.clip(regions.balance / paths.credit, -1, 1))
    return np.stack(columns, -1)


def start(c: Any, envs: NDArray[np.intp], globe: Globe, clock: Clock, seen: Floats) -> None:
    """Start the next episode of given environments, and observe it."""
    regions, climate, bargain, paths = globe
    low, high = clock.reset_seed
    for array in (*regions, bargain.promise, bargain.ask, bargain.pledge):
        array[envs] = 0
    regions.capital[envs] = paths.capital_reset_pool[pool_row(clock.episode[envs], envs, low, high, c.N_STARTS)]
    climate.carbon[envs] = c.START_ATMOSPHERE, c.START_UPPER, c.START_LOWER
    climate.temperature[envs] = c.START_AIR, c.START_OCEAN
    clock.timestep[envs] = 0
    clock.episode[envs] += 1
    first = np.empty((len(envs), *seen.shape[1:]), np.float32)
    started = Globe(rows(regions, envs), rows(climate, envs), rows(bargain, envs), paths)
    observe(c, started, clock.timestep[envs], first)
    seen[envs] = first
    bargain.action_mask[envs] = started.bargain.action_mask


def power(x: Floats, exponent: np.float32) -> Floats:
    """Return x to a power; 0 unless x is positive and normal."""
    is_positive = x >= SMALLEST
    raised = exp(exponent * log(np.where(is_positive, x, ONE)))
    return np.where(is_positive, raised, np.float32(0))


def total(parts: Iterable[Floats]) -> Floats:
    """Return the sum, from first to last."""
    parts = iter(parts)
    result: Floats = next(parts).copy()
    for part in parts:
        result += part
    return result

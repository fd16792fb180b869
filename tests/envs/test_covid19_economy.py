"""COVID-19 economy: one day by hand, laws, recorded data, random states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from envs import Covid19Economy
from envs.covid19_economy import data
from envs.covid19_economy.env import GOVERNMENT, N_LEVELS, N_STATES
from envs.covid19_economy.reference import utility
from tests.agreement import random_actions, start
from tests.envs.builders import put, read, started
from tests.support import is_simulated, on_backends
from warpdrive_min import EnvWrapper
from warpdrive_min.agreement import step_by_step
from warpdrive_min.environment import environment_constants
from warpdrive_min.training.trainer import Trainer

PEOPLE = ("susceptible", "infected", "recovered", "vaccinated")


def step(wrapper: EnvWrapper, governors: Any = 0, government: Any = 0) -> None:
    """Step with these actions, by state or one for all."""
    actions = np.broadcast_to(np.asarray(governors), N_STATES)[:, None].copy()
    put(wrapper, sampled_actions_governor=actions, sampled_actions_government=[[government]])
    wrapper.step()


def people_of(*shares: float) -> dict[str, Any]:
    """Return the people of every state by their groups."""
    return {name: np.full(N_STATES, share) for name, share in zip(PEOPLE, shares, strict=True)}


# ------------------------------------------------------------------ worked by hand


def test_day_is_the_one_worked_by_hand():
    """A day's numbers equal those worked out by hand.

    California goes to stringency 9, and the government pays.
    """
    wrapper = started("covid19_economy", vaccination_start=0)
    known, state = data.load(), data.load().states.index("CA")
    put(wrapper, **people_of(0.8, 0.05, 0.1, 0.05), stringency=np.full(N_STATES, 5))
    put(wrapper, past_stringency=np.full((29, N_STATES), 4), filters=np.ones((N_STATES, 5)))
    step(wrapper, [9 * (each == state) for each in range(N_STATES)], 11)

    beta = -0.009739435 * 4 + 0.1457723  # four levels, 29 days ago
    infections = beta * 0.8 * 0.05
    want = {
        "susceptible": 0.8 - infections - 0.003,
        "infected": 0.05 + infections - 0.05 / 14,
        "recovered": 0.1 + 0.05 / 14,
        "vaccinated": 0.053,
        "new_deaths": 0.02 * 0.05 / 14,
    }
    lasting = [math.exp(-1 / days) + 4 for days in known.filter_decay]
    signal = sum(weight * filtered for weight, filtered in zip(known.filter_weight[state], lasting, strict=True))
    want["unemployment"] = math.log1p(math.exp(signal)) + 4.371125
    able = 1 - 0.02 * want["recovered"] - 0.1 * want["infected"]
    want["productivity"] = able * (1 - want["unemployment"] / 100)
    got = {name: float(read(wrapper, name)[0, state]) for name in want}
    assert got == pytest.approx(want, rel=2e-6)

    income = want["productivity"] + 10 * 1_000 / 65_300  # USD a year
    health = (known.deaths_open[state] - want["new_deaths"]) / (known.deaths_open[state] - known.deaths_closed[state])
    wealth = (2 - 1 / income - known.utility_closed[state]) / (known.utility_open[state] - known.utility_closed[state])
    weight = known.health_weight[state]
    reward = weight * health + (1 - weight) * wealth
    assert read(wrapper, "rewards_governor")[0, state] == pytest.approx(reward, rel=1e-4)
    assert (read(wrapper, "subsidy")[0], read(wrapper, "stringency")[0, state]) == (10, 9)


def test_government_pays_interest_and_counts_people_not_states():
    """National averages are weighted by population, and subsidies cost interest."""
    known = data.load()
    paying, idle = (started("covid19_economy", interest_rate=0.5) for _ in range(2))
    for wrapper, action in ((paying, 21), (idle, 0)):
        step(wrapper, 0, action)
        for column, name in enumerate((*PEOPLE, "unemployment", "productivity", "new_deaths", "stringency")):
            want = (known.population_share * read(wrapper, name)[0]).sum()
            assert read(wrapper, "national")[0, column] == pytest.approx(want, rel=1e-5, abs=1e-12)
    assert read(paying, "national").tolist() == read(idle, "national").tolist()
    produced = float(read(idle, "national")[0, 5])
    loss = 1 / (produced - 0.5 * 20_000 / 65_300) - 1 / produced
    weight = (1 - 0.757) / (known.utility_open[-1] - known.utility_closed[-1])
    difference = read(idle, "rewards_government") - read(paying, "rewards_government")
    assert difference[0, 0] == pytest.approx(weight * loss, rel=1e-4)
    assert (read(paying, "rewards_governor") > read(idle, "rewards_governor")).all()


@pytest.mark.parametrize(("aversion", "want"), [(1.0, 1 + math.log(0.5)), (2.0, 0.0), (3.0, -0.5)])
def test_utility_has_the_risk_aversion_asked_for(aversion, want):
    """Utility has the configured risk aversion.

    The usual income has utility 1; the other one is that of half of it.
    """
    constants = environment_constants(Covid19Economy(risk_aversion=aversion))
    names = ("IS_LOGARITHMIC", "ONE_MINUS_AVERSION", "INV_ONE_MINUS_AVERSION")
    c = type("Constants", (), {name: constants[name] for name in names})
    np.testing.assert_allclose(utility(c, np.float32([0.5, 1])), [want, 1], atol=1e-6)


# ------------------------------------------------------------------ choices


def test_choice_holds_for_its_days_and_the_mask_says_so():
    """A choice holds for its days, and the mask shows it.

    Governors choose every three days, the government every five.
    """
    wrapper = started("covid19_economy", stringency_days=3, subsidy_days=5)
    seen = []
    for day in range(6):
        masks = [read(wrapper, f"observations_{role}_action_mask")[0] for role in ("governor", "government")]
        seen.append((bool(masks[0][7, 1:].all()), bool(masks[1][0, 1:].all())))
        assert all(mask[:, 0].all() and mask[:, 1:].any() == mask[:, 1:].all() for mask in masks)
        step(wrapper, 1 + day, 2 + day)
    assert seen == [(True, True), (False, False), (False, False), (True, False), (False, False), (False, True)]
    assert read(wrapper, "stringency")[0].tolist() == [4] * N_STATES
    assert read(wrapper, "subsidy").tolist() == [6]


@pytest.mark.parametrize("action", [-1, N_LEVELS + 1])
def test_what_is_no_action_changes_nothing(action):
    """An invalid action changes neither level nor right to choose."""
    wrapper = started("covid19_economy")
    before = read(wrapper, "stringency").copy()
    step(wrapper, action, 22)
    assert (read(wrapper, "stringency") == before).all()
    assert not read(wrapper, "cooldown").any()
    assert not read(wrapper, "subsidy").any()


def test_each_role_sees_arrays_of_its_own():
    """Each role observes its own features and choices.

    In Python: 22 features of a governor, 215 of the government; a choice per level.
    """
    env = Covid19Economy(num_subsidy_levels=4)
    seen = env.reset()
    assert {seen[agent]["seen"].shape for agent in range(N_STATES)} == {(22,)}
    assert [seen[GOVERNMENT][key].shape for key in ("seen", "action_mask")] == [(215,), (6,)]
    after, rewards, done, _ = env.step({**dict.fromkeys(range(N_STATES), 10), GOVERNMENT: 5})
    assert not done["__all__"]
    assert set(rewards) == set(after) == set(range(N_STATES + 1))
    assert after[5]["seen"][0] == pytest.approx(1.0)
    assert after[GOVERNMENT]["seen"][212] == 1.0
    assert not after[5]["action_mask"][1:].any()


# ------------------------------------------------------------------ laws


def test_nobody_is_lost_in_a_year_and_a_half():
    """Populations stay constant, and no group of people is negative.

    Vaccinations leave nobody susceptible.
    """
    wrapper = started("covid19_economy", 2, vaccination_start=100, daily_vaccinations_per_million=30_000.0)
    draw = random_actions(wrapper, 1)
    for _ in range(500):
        draw()
        wrapper.step()
        groups = np.stack([read(wrapper, name) for name in PEOPLE])
        assert np.abs(groups.sum(0, dtype=np.float64) - 1).max() < 2e-5  # 500 roundings of 6e-8, at most
        assert groups.min() >= 0
    assert read(wrapper, "susceptible").max() == 0


def test_more_infected_at_the_start_are_drawn_for_each_state_and_episode():
    """The number of infected at the start is random.

    It is within the spread, and differs by state and episode; the population is unchanged.
    """
    wrapper = started("covid19_economy", 3, start_spread=0.5)
    ratio = read(wrapper, "infected") / data.load().infected
    assert ratio.min() >= 0.5 - 1e-6
    assert ratio.max() <= 1.5 + 1e-6
    assert np.std(ratio) > 0.2
    np.testing.assert_allclose(sum(read(wrapper, name) for name in PEOPLE), 1, atol=1e-6)


# ------------------------------------------------------------------ the data


def test_indices_go_from_one_extreme_policy_to_the_other():
    """Published indices go from 0 to 1 between extreme policies.

    540 days at level 1 and at 10 give their means; level 7 is best.
    """
    known, wrapper = data.load(), started("covid19_economy", 4, auto_reset=False)
    sums, returns = np.zeros((2, 4, N_STATES + 1)), np.zeros((4, 2))
    level = np.array([1, N_LEVELS, 7, 0])[:, None, None]
    for _ in range(540):
        put(wrapper, sampled_actions_governor=level)
        wrapper.step()
        national = read(wrapper, "national")
        income = np.concatenate([read(wrapper, "productivity"), national[:, 5:6]], 1)
        sums[0] += np.concatenate([read(wrapper, "new_deaths"), national[:, 6:7]], 1)
        sums[1] += 2 - 1 / income
        returns += [[read(wrapper, f"rewards_{role}")[env].mean() for role in wrapper.env.roles] for env in range(4)]
    np.testing.assert_allclose(returns, [[127, 131], [413, 409], [453, 448], [383, 400]], atol=0.5)
    (deaths_open, deaths_closed), (utility_open, utility_closed) = sums[:, :2] / 540
    np.testing.assert_allclose(deaths_open, known.deaths_open, rtol=1e-4)
    np.testing.assert_allclose(deaths_closed, known.deaths_closed, rtol=1e-4)
    np.testing.assert_allclose(utility_open, known.utility_open, atol=1e-5)
    np.testing.assert_allclose(utility_closed, known.utility_closed, atol=1e-5)


def test_recorded_measures_give_the_deaths_and_the_work_that_the_page_says():
    """Recorded measures give the deaths and unemployment that the page states."""
    known = data.load()
    wrapper = started("covid19_economy", stringency_days=1, episode_length=len(known.stringency))
    deaths, unemployment = [], []
    for levels in known.stringency[:435]:
        step(wrapper, levels)
        deaths.append(known.mortality * (read(wrapper, "recovered")[0] * known.population).sum())
        unemployment.append((read(wrapper, "unemployment")[0] * known.population_share).sum())
    off = np.array(deaths) / known.deaths[1:436] - 1
    assert off[[99, 284, 403]] == pytest.approx([0.0645, -0.0707, 0.0274], abs=1e-3)
    months = np.array([known.month(day + 1) for day in range(405)])
    got = np.array([np.mean(np.array(unemployment[:405])[months == month]) for month in range(3, 16)])
    want = known.unemployment[3:16] @ known.population_share
    assert (got - want)[[0, 3, -1]] == pytest.approx([-2.63, -0.20, -0.57], abs=0.02)
    assert np.sqrt(np.mean((got - want) ** 2)) == pytest.approx(0.79, abs=0.02)


# ------------------------------------------------------------------ learning


def test_both_roles_learn_and_keep_to_their_masks(tmp_path):
    """Both roles learn, and draw no forbidden action."""
    config = {
        "trainer": {"num_envs": 2, "num_episodes": 100, "train_batch_size": 16, "env_backend": "cpu", "seed": 1},
        "policy": {
            role: {"to_train": True, "algorithm": "PPO", "model": {"fc_dims": [8]}} for role in Covid19Economy.roles
        },
        "saving": {"basedir": str(tmp_path), "name": "covid19_economy", "tag": "test"},
    }
    env = Covid19Economy(episode_length=5, stringency_days=2, subsidy_days=3)
    wrapper = EnvWrapper(env, num_envs=2, env_backend="cpu", auto_reset=True)
    trainer = Trainer(wrapper, config, verbose=False)
    before = {name: weight.clone() for group in trainer.groups.values() for name, weight in group.weights().items()}
    trainer.iterate()
    for role, n_features, n_choices in (("governor", 22, 11), ("government", 215, 22)):
        group = trainer.groups[role]
        buffer = group.buffer
        assert buffer is not None
        assert buffer.observations.shape[2:] == (group.arrays.n_agents, n_features)
        assert buffer.masks.shape[-1] == n_choices
        assert buffer.masks[:-1].gather(-1, buffer.actions.long()).all()
        is_bound = buffer.masks[:-1].sum(-1) == 1
        assert 0 < is_bound.float().mean() < 1
        assert (buffer.log_probs[is_bound] == 0).all()
        assert (buffer.log_probs[~is_bound] < 0).all()
        assert any((weight != before[name]).any() for name, weight in group.weights().items())


# ------------------------------------------------------------------ random configs and states


def random_config(seed: int) -> dict[str, Any]:
    """Draw a config with short episodes, waits and vaccinations."""
    generator = np.random.default_rng(seed)
    return {
        "episode_length": int(generator.integers(3, 40)),
        "stringency_days": int(generator.integers(1, 9)),
        "subsidy_days": int(generator.integers(1, 9)),
        "num_subsidy_levels": int(generator.integers(1, 30)),
        "max_annual_subsidy": float(generator.uniform(0, 60_000)),
        "interest_rate": float(generator.uniform(0, 3)),
        "vaccination_start": int(generator.integers(0, 9)),
        "daily_vaccinations_per_million": float(generator.uniform(0, 50_000)),
        "too_sick_to_work": float(generator.uniform(0, 1)),
        "risk_aversion": float(generator.choice([0.5, 1.0, 2.0, 3.7])),
        "start_spread": float(generator.uniform(0, 0.9)),
    }


def scatter(wrapper: EnvWrapper, seed: int) -> None:
    """Put environments into random states: any shares, levels and unemployment."""
    generator = np.random.default_rng(seed)
    rows = (wrapper.n_envs, N_STATES)
    groups = generator.dirichlet([0.5] * 4, rows)
    put(
        wrapper,
        **{name: groups[..., index] for index, name in enumerate(PEOPLE)},
        stringency=generator.integers(1, N_LEVELS + 1, rows),
        past_stringency=generator.integers(1, N_LEVELS + 1, (wrapper.n_envs, 29, N_STATES)),
        filters=generator.normal(0, 8, (*rows, 5)),
        cooldown=generator.integers(0, 3, (wrapper.n_envs, N_STATES + 1)),
        _timestep_=generator.integers(0, wrapper.episode_length, wrapper.n_envs),
    )


FIRSTS = range(0, 200, 4) if torch.cuda.is_available() else (0, 101)
"""Seed of the first config of each lot."""


@on_backends("first", FIRSTS, numba=(0,), pycuda=FIRSTS[:3])
def test_random_configs_agree_from_random_states(first, backend):
    """Random configs agree with the reference from random states.

    Bit by bit, or in values if inexact.
    """
    few = is_simulated(backend)
    n_configs, n_envs, n_steps = (4, 8, 6) if torch.cuda.is_available() else (1, 1, 1) if few else (1, 4, 6)
    for seed in range(first, first + n_configs):
        options = {"exact": seed % 2 == 0, "auto_reset": seed % 4 < 2, "seed": seed}
        config = random_config(seed)
        pair = [start("covid19_economy", config, each, n_envs, **options) for each in (backend, "cpu")]
        draw = random_actions(pair[0], seed)
        scatter(pair[0], seed)
        result = step_by_step(*pair, draw, n_steps)
        assert result.n_compared
        most = 0 if options["exact"] else Covid19Economy.tolerance
        for name, found in result.largest.items():  # rewards are powers of money, and in the hundreds in some configs
            assert found.error <= most * max(1, abs(found.want) / 25), f"{seed}, {config}: {name} {found}"

"""RICE climate economy: results by hand, conservation laws, published numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from envs import Rice
from envs.rice import data, reference
from envs.rice.arrays import Climate, Paths, Regions
from tests.agreement import assert_same_bits, free_run, random_actions, start, step_from_same_state
from tests.envs.rice_baseline import DICE_2016R, YEARS, paint, without_policy
from tests.support import is_simulated, on_backends, on_every_other_backend
from tests.training.builders import A2C, PPO, make_trainer

N = data.N_REGIONS
PAGE = Path(__file__).parents[2] / "docs" / "environments" / "rice.md"
CLIMATE_OF_DICE = {"forcing_steps": 17.0, "land_decline": 0.115}
"""Climate parameters of DICE-2016R that differ from RICE-N's."""


def started(n_envs: int = 1, **config):
    """Return a NumPy wrapper and a function that reads arrays."""
    wrapper = start("rice", config, "cpu", n_envs)
    return wrapper, lambda name: wrapper.cuda_data_manager.tensor(name).numpy()


def play(array, wrapper, *levels: int, n_steps: int = 1) -> None:
    """Step all regions with equal actions: mitigation, savings, trade.

    The order is mitigation, savings, exports, imports, tariffs.
    """
    actions, n = array("sampled_actions"), wrapper.n_agents
    for _ in range(n_steps):
        actions[:] = np.repeat(levels, [1, 1, 1, n, n][: len(levels)])
        wrapper.step()


def test_first_step_of_a_region_is_as_worked_by_hand():
    """A region's first step equals the one worked by hand.

    Region 1 in 2015, with each equation once; mitigation of a third, savings of 30 %.
    """
    wrapper, array = started()
    capital, labour, technology, sigma = 0.239419592, 476.878017, 1.8724419952820714, 0.4559257467059924
    play(array, wrapper, 3, 3)
    gross = technology * capital**0.3 * (labour / 1000) ** 0.7
    theta_1 = 550 / (1000 * 2.6) * sigma
    net = (1 - 0.00236 * 0.85**2) * (1 - theta_1 * (1 / 3) ** 2.6) * gross
    consumption = 0.7 * net
    want = {
        "output": net,
        "consumption": consumption,
        "emissions": sigma * (2 / 3) * gross,
        "capital": 0.9**5 * capital + 5 * 0.3 * net,
        "rewards": labour / 1000 * ((consumption / (labour / 1000)) ** -0.45 - 1) / -0.45,
    }
    for name, value in want.items():
        assert array(name)[0, 0] == pytest.approx(value, rel=3e-6), name
    assert gross == pytest.approx(0.726, abs=5e-4)


def test_climate_has_the_published_temperatures():
    """DICE-2016R's emissions give its published temperatures.

    Without a climate policy the world is 4.64 K warmer in 2115.
    """
    _, array = started(parameters=CLIMATE_OF_DICE)
    env = Rice(parameters=CLIMATE_OF_DICE)
    c = SimpleNamespace(**{name: np.float32(value) for name, value in env.get_constants().items()})
    regions, climate, paths = (each(*(array(name) for name in each._fields)) for each in (Regions, Climate, Paths))
    for period, (emissions, want) in enumerate(
        zip(DICE_2016R["emissions"][:-1], DICE_2016R["temperature"][1:], strict=True)
    ):
        regions.emissions[:] = emissions / N
        reference.warm(c, regions, climate, paths, np.array([period]))
        assert climate.temperature[0, 0] == pytest.approx(want, abs=2e-5), f"period {period}"


def test_page_states_the_difference_to_the_published_baseline(tmp_path):
    """The page states the difference to DICE-2016R's published baseline.

    Its table has both years' numbers; the figure uses the same.
    """
    page, own, years = PAGE.read_text(), without_policy(), (2015, 2050, 2100, 2115)
    for name, digits in (("temperature", 2), ("consumption", 1), ("emissions", 1)):
        for series in (DICE_2016R[name], own[name]):
            row = " | ".join(f"{series[year == YEARS][0]:.{digits}f}" for year in years)
            assert f"| {row} |" in page, (name, row)
    assert "difference | +0.00 | +0.41 | +1.47 | +1.72 |" in page
    pytest.importorskip("matplotlib")
    paint(str(tmp_path / "baseline.png"))
    assert (tmp_path / "baseline.png").stat().st_size > 10_000


@pytest.mark.parametrize(("mitigation", "stated"), [(2, "mitigate a fifth"), (9, "mitigate all")])
def test_page_states_what_constant_rates_give(mitigation, stated):
    """The page states the utility that constant rates give.

    It is summed over 100 years at savings of 30 %, without trade or with unused trade.
    """
    sums = []
    for config, levels in (({}, (mitigation, 3)), ({"trade": True}, (mitigation, 3, 0, 0, 0))):
        wrapper, array = started(**config)
        utility = 0.0
        for _ in range(20):
            play(array, wrapper, *levels)
            utility += array("rewards").sum(dtype=np.float64)
        sums.append(utility)
    (row,) = (line for line in PAGE.read_text().splitlines() if stated in line)
    assert row.endswith(f"| {sums[0]:.0f} | {sums[1]:.0f} |")


def test_saving_everything_warms_as_the_paper_says():
    """Saving everything warms the climate by 7 degrees until 2100.

    Zhang et al., appendix D: full savings, no mitigation.
    """
    wrapper, array = started(num_levels=100)
    play(array, wrapper, 0, 99, n_steps=17)
    assert array("temperature")[0, 0] == pytest.approx(7, abs=0.25)


def test_first_year_is_that_of_the_world():
    """The first year's totals are within 20 % of DICE-2016R's.

    Output, emissions and people of 2015.
    """
    wrapper, array = started()
    play(array, wrapper, 0, 2)
    assert array("output").sum() == pytest.approx(105.5, rel=0.2)
    assert array("emissions").sum() == pytest.approx(35.85, rel=0.2)
    assert 1000 * array("labour")[0].sum() == pytest.approx(7403, rel=0.2)


def test_carbon_is_conserved():
    """Carbon is conserved: the boxes gain all emissions.

    The run has 20 random steps of 5 years; carbon is that in the emitted CO2.
    """
    wrapper, array = started(4)
    draw, carbon = random_actions(wrapper, 0), array("carbon").sum(1, dtype=np.float64)
    for period in range(20):
        draw()
        wrapper.step()
        emitted = array("emissions").sum(1, dtype=np.float64) + 2.6 * 0.999**period
        carbon += 5 / 3.666 * emitted
        np.testing.assert_allclose(array("carbon").sum(1, dtype=np.float64), carbon, rtol=2e-6)


def test_boxes_are_in_balance_without_emissions():
    """Without emissions, DICE-2016R's equilibrium does not change.

    Neither carbon nor the unforced temperature does.
    """
    still = {
        "carbon_atmosphere": 588.0, "carbon_upper_ocean": 360.0, "carbon_lower_ocean": 1720.0, "land_emissions": 0.0,
        "temperature_atmosphere": 0.0, "temperature_ocean": 0.0, "forcing_first": 0.0, "forcing_last": 0.0,
    }  # fmt: skip
    wrapper, array = started(parameters=still)
    play(array, wrapper, 9, 2, n_steps=20)
    np.testing.assert_allclose(array("carbon")[0], [588, 360, 1720], rtol=1e-6)
    np.testing.assert_allclose(array("temperature")[0], 0, atol=1e-5)


def test_goods_that_are_bought_were_sold():
    """Imports equal exports: trade balances sum to zero.

    Without interest; tariffs add to reserves.
    """
    wrapper, array = started(5, num_regions=4, trade=True, parameters={"balance_interest": 0.0})
    draw, reserve = random_actions(wrapper, 1), 0.0
    for _ in range(6):
        draw()
        wrapper.step()
        np.testing.assert_allclose(array("balance").sum(1, dtype=np.float64), 0, atol=2e-4)
        assert (np.abs(array("balance")) > 0.01).any(), "somebody must trade"
        assert (array("reserve") >= reserve).all()
        reserve = array("reserve").copy()
    assert (array("consumption") >= 0).all()


def test_trade_of_two_regions_is_as_worked_by_hand():
    """Trade of two regions equals the one worked by hand.

    Each wants all goods of the other, which sells a third; a tariff takes a ninth.
    """
    wrapper, array = started(num_regions=2, trade=True, num_levels=10)
    play(array, wrapper, 0, 0, 3, 9, 1)
    output = array("output")[0].astype(float)
    sold = output / 3  # less than the other one wants
    assert (sold <= output[::-1]).all()
    foreign = sold[::-1] * 8 / 9
    mixed = (0.5 * (output - sold) ** 0.5 + 0.5 * foreign**0.5) ** 2
    np.testing.assert_allclose(array("consumption")[0], mixed, rtol=1e-5)
    np.testing.assert_allclose(array("reserve")[0], 5 * sold[::-1] / 9, rtol=1e-5)
    np.testing.assert_allclose(array("balance")[0], 5 * (sold - sold[::-1]), rtol=1e-4, atol=1e-5)


def test_debt_stops_imports():
    """A region with too much debt receives no imports.

    The limit is a tenth of its first capital.
    """
    wrapper, array = started(num_regions=2, trade=True)
    array("balance")[0, 0] = -0.2 * data.regions(2)["capital"][0]
    play(array, wrapper, 0, 0, 9, 9, 0)
    assert array("balance")[0, 0] == pytest.approx(-0.22 * data.regions(2)["capital"][0] + 5 * array("output")[0, 0])


def bargained():
    """Return three negotiating regions: wrapper, array reader and stepper.

    The stepper writes actions. Keys are types of action of a region.
    """
    wrapper, array = started(num_regions=3, negotiation=True, episode_length=7)

    def step(**chosen: dict[int, int]) -> None:
        actions = array("sampled_actions")
        actions[:] = 0
        for region, levels in chosen.items():
            for column, level in levels.items():
                actions[0, int(region[-1]), column] = level
        wrapper.step()

    return wrapper, array, step


def test_accepted_proposal_binds_both_regions_for_a_period():
    """An accepted proposal binds both regions for one period.

    Region 0 promises 4 for 7 to region 1, which accepts; region 2 refuses.
    """
    _, array, step = bargained()
    proposal = {2 + 1: 4, 2 + 2: 9, 5 + 1: 7, 5 + 2: 9}  # two acts, then promises to each region, then demands
    step(region_0=proposal)
    assert array("rewards").tolist() == [[0, 0, 0]]
    assert (array("promise")[0, 0].tolist(), array("ask")[0, 0].tolist()) == ([0, 4, 9], [0, 7, 9])
    capital = array("capital").copy()
    step(region_1={8 + 0: 1})
    assert array("pledge")[0].tolist() == [4, 7, 0]
    np.testing.assert_array_equal(array("capital"), capital)
    mask = array("action_mask")[0]
    allowed = [row[:10].nonzero()[0].min() for row in mask]
    assert allowed == [4, 7, 0]
    step(region_0={0: 2}, region_1={0: 8}, region_2={0: 1})
    np.testing.assert_allclose(array("mitigation")[0], np.array([4, 8, 1]) / 9, rtol=1e-6)
    assert (array("rewards") != 0).all()
    assert not array("pledge").any()
    assert not array("promise").any()
    step()
    step()
    step(region_0={0: 2})
    assert array("mitigation")[0, 0] == pytest.approx(2 / 9), "the agreement was of one period"


def test_mask_allows_what_counts_at_a_stage():
    """The mask allows only the actions of the current stage.

    Acts, proposals to others and answers to them have a stage each; each type has a choice.
    """
    wrapper, array, step = bargained()
    sizes = wrapper.env.config.action_levels
    for stage in (0, 1, 2, 0):
        rows = np.split(array("action_mask")[0], np.cumsum(sizes)[:-1], axis=-1)
        free = [[bool(row.sum() > 1) for row in part] for part in rows]
        others = [[agent != other for agent in range(3)] for other in range(3)]
        want = [[stage == 2] * 3] * 2
        for at, n_times in ((0, 2), (1, 1)):
            want = want + [[each and stage == at for each in row] for row in others] * n_times
        assert free == want, f"stage {stage}"
        assert all(row[:, 0].all() or stage == 2 for row in rows)
        step()


def test_period_of_negotiation_is_that_without():
    """Without proposals, negotiation changes no result.

    The same years pass as without negotiation, in three steps each.
    """
    (plain, of_plain), (talks, of_talks) = (
        started(num_regions=3),
        started(num_regions=3, negotiation=True, episode_length=60),
    )
    for _ in range(20):
        for wrapper, array, n_steps in ((plain, of_plain, 1), (talks, of_talks, 3)):
            for _ in range(n_steps):
                array("sampled_actions")[..., :2] = 3
                wrapper.step()
        for name in ("capital", "consumption", "temperature", "rewards"):
            np.testing.assert_array_equal(of_talks(name), of_plain(name), err_msg=name)
    assert of_talks("truncated").all()


def test_training_acts_and_learns_within_the_mask(tmp_path):
    """Two algorithms learn, and draw only allowed choices.

    Single choices have probability 1.
    """
    config = {"num_regions": 3, "negotiation": True, "episode_length": 6}
    for policy in (A2C, PPO):
        trainer = make_trainer(Rice(**config), {"shared": policy}, basedir=tmp_path / policy["algorithm"])
        group = trainer.groups["shared"]
        before = [weights.clone() for weights in group.acting.parameters()]
        trainer.iterate()
        buffer = group.buffer
        sizes = trainer.wrapper.env.config.action_levels
        chosen = buffer.actions.long() + torch.tensor(np.cumsum([0, *sizes[:-1]]))
        assert buffer.masks[:-1].gather(-1, chosen).all()
        assert 0 < buffer.masks.float().mean() < 0.7
        trainer.graceful_close()
        assert any((now != was).any() for now, was in zip(group.acting.parameters(), before, strict=True))


def test_paths_go_where_their_equations_say():
    """Exogenous paths follow their equations.

    Two periods of population by hand; carbon declines, other forcing ends at 1.
    """
    paths, own = data.paths(data.world(), N, 60), data.regions(N)
    people = own["labour"][0]
    for period in range(3):
        assert 1000 * paths["labour"][period, 0] == pytest.approx(people, rel=1e-6)
        people *= ((1 + own["labour_limit"][0]) / (1 + people)) ** own["labour_speed"][0]
    for name in ("intensity", "abatement"):
        assert (np.diff(paths[name], axis=0) <= 0).all(), name
    assert (np.diff(paths["world"][:, 0]) < 0).all()
    assert paths["world"][[0, 20, 60], 1].tolist() == [0.5, 1.0, 1.0]
    assert all(np.isfinite(path).all() for path in paths.values())


def test_observation_says_what_its_page_says():
    """Observations have the entries that the page lists.

    Time, climate, own profile and public entries, own index, all public entries.
    """
    wrapper, array = started(num_regions=3, episode_length=4)
    play(array, wrapper, 9, 2)
    seen, own = array("observations")[0, 1], [array(name)[0, 1] for name in ("capital", "output", "emissions")]
    np.testing.assert_allclose(seen[:3], [0.25, *(array("temperature")[0] / 5)], rtol=1e-6)
    np.testing.assert_allclose(seen[3:6], array("carbon")[0] / [588, 360, 1720], rtol=1e-6)
    np.testing.assert_array_equal(seen[6:10], array("profile")[1, 1])
    public = [np.log(own[0]) / 4, np.log1p(own[1]) / 4, own[2] / 10, 1]
    np.testing.assert_allclose(seen[10:14], public, rtol=1e-5)
    assert seen[14:17].tolist() == [0, 1, 0]
    np.testing.assert_array_equal(seen[21:25], seen[10:14])
    assert len(seen) == 17 + 3 * 4


def random_rice_config(seed: int) -> dict:
    """Draw a config."""
    generator = np.random.default_rng(seed)
    return {
        "num_regions": int(generator.integers(2, 6)),
        "num_levels": int(generator.integers(2, 12)),
        "episode_length": int(generator.integers(3, 30)),
        "trade": bool(generator.integers(2)),
        "negotiation": bool(generator.integers(2)),
        "reset_pool_size": int(generator.choice([0, 2, 5])),
        "capital_spread": float(generator.uniform(0, 0.9)),
        "min_consumption": float(generator.uniform(0.001, 1)),
        "parameters": {
            "damage_quadratic": float(generator.uniform(0, 0.02)),
            "temperature_of_doubling": float(generator.uniform(1, 6)),
            "utility_elasticity": float(generator.uniform(0.2, 0.9)),
            "substitution": float(generator.uniform(0.3, 0.9)),
            "depreciation": float(generator.uniform(0, 0.3)),
        },
    }


N_SEEDS = 5 if torch.cuda.is_available() else 1
FIRSTS = range(0, 200, N_SEEDS) if torch.cuda.is_available() else (0,)


@on_backends("first", FIRSTS, numba=(0,), host=(0,), pycuda=FIRSTS[:3])
def test_random_configs_agree(first, backend):
    """Random configs are bit-identical to the reference in exact builds."""
    for seed in range(first, first + N_SEEDS):
        config = random_rice_config(seed)
        size = {"n_envs": 1, "n_steps": 2} if is_simulated(backend) else {"n_envs": 9, "n_steps": 40}
        result, _ = step_from_same_state("rice", config, backend, seed=seed, exact=True, **size)
        assert result.max_error == 0, f"seed {seed}, {config}: {result}"


@on_every_other_backend
def test_all_regions_have_the_same_bits(backend):
    """All 27 regions with trade are bit-identical to the reference."""
    if is_simulated(backend):
        pytest.skip("27 regions take a minute in the simulator")
    run = {"n_envs": 3, "n_steps": 21, "exact": True}
    want, _ = free_run("rice", {"trade": True}, "cpu", **run)
    got, _ = free_run("rice", {"trade": True}, backend, **run)
    assert_same_bits(got, want)


def test_data_file_names_units_and_sources():
    """The data file has a unit, source and meaning per parameter.

    The data's licence is included.
    """
    file = data.document()
    for name, entry in file["world"].items():
        assert {*entry} == {"value", "unit", "source", "meaning"}, name
        assert entry["source"], name
    assert {*file["regions"]["columns"]} >= {"technology", "capital", "labour", "intensity"}
    assert np.array(file["regions"]["rows"]).shape == (27, 8)
    assert "Redistribution" in " ".join(file["licence"])

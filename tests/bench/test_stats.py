"""Ratios, tests and corrections, against tables and by hand."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import scipy.stats

from bench.core.stats import (
    Ratio,
    holm,
    interquartile_band,
    interquartile_mean,
    log_ratios,
    ratio_of_processes,
    smallest_detectable,
    spread_over_processes,
    student_cdf,
    student_quantile,
    unpaired_ratio,
    weakest,
)


def paired_ratio(a, b) -> Ratio:
    """Return the ratio of two paired sides."""
    return Ratio.of_logs(log_ratios(a, b), between_processes=False)


def closed_form_cdf(t: float, dof: int) -> float:
    """Return Student's distribution by Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(dof))
    odd, square = dof % 2, math.cos(angle) ** 2
    term = total = math.cos(angle) if odd else 1.0
    for k in range(2 + odd, dof, 2):
        term *= (k - 1) / k * square
        total += term
    two_sided = math.sin(angle) * total
    if odd:
        two_sided = 2 / math.pi * (angle + (two_sided if dof > 1 else 0.0))
    return (1 + two_sided) / 2


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 9, 10, 30, 47, 100])
def test_student_is_its_closed_form(dof):
    """Probabilities and quantiles match the closed form."""
    for t in np.linspace(-12, 12, 49):
        assert abs(student_cdf(t, dof) - closed_form_cdf(t, dof)) <= 2e-14
    for probability in (0.6, 0.9, 0.975, 0.995):
        assert abs(closed_form_cdf(student_quantile(probability, dof), dof) - probability) <= 2e-14


def test_paired_ratio_by_hand():
    """A paired ratio is the geometric mean of the ratios.

    Ratios 2 and 8 have the mean 4 and an interval factor of 2^12.7.
    """
    got = paired_ratio([1.0, 10.0], [2.0, 80.0])
    assert got.value == pytest.approx(4)
    assert got.error == pytest.approx(math.log(2))
    assert math.log2(got.high / got.value) == pytest.approx(12.706, abs=1e-3)
    assert got.low * got.high == pytest.approx(16)


def test_paired_ratio_refuses_sides_that_do_not_pair():
    """A paired ratio needs two pairs and equal lengths."""
    with pytest.raises(ValueError, match=r"two or more ratios \(got 1\)"):
        paired_ratio([1.0], [2.0])
    with pytest.raises(ValueError, match=r"got 3 and 2"):
        paired_ratio([1.0, 1.0, 1.0], [2.0, 2.0])


def test_p_of_pairs_without_scatter_is_decided():
    """Without scatter p is 0, 1, or 0.5 at the ratio itself."""
    a, b = [1.0, 2.0, 4.0], [2.0, 4.0, 8.0]
    assert [paired_ratio(a, b).p_over(over) for over in (1.9, 2.0, 2.1)] == [0.0, 0.5, 1.0]


def test_unpaired_ratio_by_hand():
    """Relative errors of unpaired medians add in quadrature.

    Medians are 1 and 2, intervals 0.8 to 1.25 and 1.6 to 2.5.
    """
    a, b = [0.8, 0.8, 1.0, 1.0, 1.25, 1.25], [1.6, 1.6, 2.0, 2.0, 2.5, 2.5]
    got = unpaired_ratio(a, b)
    half = math.sqrt(2) * math.log(1.25)
    assert got.value == 2
    assert math.log(got.high / 2) == pytest.approx(half)
    assert math.log(2 / got.low) == pytest.approx(half)


def test_ratio_of_processes_is_welchs():
    """Each side counts its processes, not their samples; SciPy's test agrees."""
    a, b = [[1.0, 1.1], [1.2, 1.3], [1.1]], [[1.5], [1.4, 1.4, 9.0], [1.45], [1.6]]
    logs_a, logs_b = ([math.log(statistics.median(times)) for times in side] for side in (a, b))
    expected = scipy.stats.ttest_ind(logs_b, logs_a, equal_var=False)
    got = ratio_of_processes(a, b)
    assert math.log(got.value) == pytest.approx(statistics.mean(logs_b) - statistics.mean(logs_a))
    assert math.log(got.value) / got.error == pytest.approx(expected.statistic)
    assert got.dof == int(expected.df)
    assert ratio_of_processes([[2.0], [2.0]], [[3.0], [3.0]]).low == pytest.approx(1.5)


def test_ratio_says_whether_it_holds_what_differs_between_processes():
    """A ratio is marked if it covers differences between processes."""
    rounds = Ratio.of_logs([0.1, 0.2, 0.3], between_processes=True)
    assert rounds.dof == 2
    assert rounds.widened(0.01, 5).between_processes
    assert not paired_ratio([1.0, 1.0], [1.0, 2.0]).between_processes
    assert rounds.p_over(math.exp(0.2)) == pytest.approx(0.5)
    assert rounds.p_over(1.1) + rounds.p_below(1.1) == pytest.approx(1)


def test_spread_is_of_one_of_three_kinds():
    """One process has samples, four a range, five an interval: 2.776 errors."""
    assert spread_over_processes([[1.0, 3.0, 2.0]]) == (2.0, 1.0, 3.0, "samples")
    assert spread_over_processes([[1.0], [2.0, 2.0, 9.0], [4.0], [8.0]]) == (pytest.approx(8**0.5), 1.0, 8.0, "range")
    got = spread_over_processes([[math.exp(each)] for each in (-2.0, -1.0, 0.0, 1.0, 2.0)])
    assert got.kind == "processes"
    assert (got.value, math.log(got.high)) == pytest.approx((1.0, 2.776 * math.sqrt(2.5 / 5)), abs=1e-3)
    assert got.low * got.high == pytest.approx(1)


def test_ratio_has_the_weaker_kind_of_both():
    """Samples are weaker than a range, and a range than an interval."""
    assert weakest("processes", "samples") == "samples"
    assert weakest("range", "processes", None) == "range"
    assert weakest(None, None) is None


def test_holm_by_hand():
    """Holm's correction multiplies the smallest p most.

    0.01, 0.04, 0.03, 0.005 give 4 * 0.005, 3 * 0.01, 2 * 0.03, ascending.
    """
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("dof", [None, 9])
def test_smallest_detectable_effect_is_found_four_times_in_five(dof):
    """The smallest detectable slow-down is found in 80 % of cases."""
    size = smallest_detectable(0.02, 4, dof)
    random = np.random.default_rng(1)
    means = random.normal(math.log1p(size), 0.01, 2_000)
    errors = 0.01 if dof is None else 0.01 * np.sqrt(random.chisquare(dof, 2_000) / dof)
    found = means / errors > (1.96 if dof is None else student_quantile(0.975, dof))
    assert found.mean() == pytest.approx(0.8, abs=0.04)


def test_widened_ratio_adds_noise_in_quadrature():
    """Widening adds noise in quadrature and keeps the ratio."""
    t = student_quantile(0.975, 9)
    narrow = paired_ratio([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]).widened(0.03 / t, 9)
    wide = narrow.widened(0.04 / t, 9)
    assert wide.value == 1
    assert math.log(wide.high) == pytest.approx(0.05)
    assert math.log(wide.low) == pytest.approx(-0.05)
    assert wide.error == pytest.approx(0.05 / t)


# ------------------------------------------------------------------ over seeds


def test_interquartile_mean_leaves_out_a_quarter_at_each_end():
    """The interquartile mean omits a quarter at each end.

    The middle three of five values count, two of four, three of three.
    """
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0])) == 2
    assert interquartile_mean(np.array([9.0, 1.0, 3.0, -7.0])) == 2
    assert interquartile_mean(np.array([0.0, 1.0, 5.0])) == 2


def test_band_of_equal_runs_has_no_width_and_others_hold_the_mean():
    """Equal seeds give a zero interval; others surround the mean."""
    values = np.stack([np.full(9, 3.0), np.linspace(1.0, 5.0, 9)], axis=1)
    low, high = interquartile_band(values)
    assert (low[0], high[0]) == (3, 3)
    assert 1 < low[1] < interquartile_mean(values)[1] == 3 < high[1] < 5
    low, high = interquartile_band(values[:7])
    assert (low[1], high[1]) == (1, 4), "few seeds have their range"

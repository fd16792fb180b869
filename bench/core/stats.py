"""Statistics of samples: medians, intervals, and ratios of two sides.

NumPy and SciPy are imported by the functions that need them: the import takes longer than most commands.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
POWER = 0.8
"""Probability of finding an effect that counts as detectable."""
RESAMPLES = 2_000
AT_ONCE = 10**7
"""Numbers that are drawn at once, to limit memory."""
TRIMMED = 4
"""An interquartile mean drops one in this many values at each end."""

FEWEST_PROCESSES = 5
"""Smallest number of processes whose estimates have a 95 % interval."""
FEWEST_SEEDS = 8
"""Smallest number of seeds whose returns have a 95 % interval, or can be told apart with p < 0.1 %."""

Floats: TypeAlias = "NDArray[np.float64]"
SpreadKind = Literal["samples", "range", "processes"]
"""Meaning of a spread's ends, weakest evidence first.

samples: shortest and longest sample of one process. range: lowest and highest of two to four processes. processes: 95 %
interval over five or more."""


def weakest(*kinds: SpreadKind | None) -> SpreadKind | None:
    """Return the weakest kind; None, no spread over samples, is the strongest."""
    return min(filter(None, kinds), key=get_args(SpreadKind).index, default=None)


def median(samples: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(samples))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the order-statistic interval of the median at 95 %.

    The ranks contain the median with at least that probability for any distribution. With fewer than six samples no two
    ranks do, and the interval is the range.
    """
    ordered = sorted(samples)
    n = len(ordered)
    below, rank = 0.0, 0
    while rank < n:
        below += math.comb(n, rank) / 2**n
        if below > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    low = max(0, rank - 1)
    return float(ordered[low]), float(ordered[n - 1 - low])


def spread(values: Sequence[float]) -> float:
    """Return the range of values relative to the smallest."""
    return (max(values) - min(values)) / min(values)


def interquartile_mean(values: Floats) -> Floats:
    """Return the interquartile mean over the first axis.

    A quarter of the values, rounded down, is dropped at each end.
    """
    import numpy as np  # noqa: PLC0415

    n_trimmed = len(values) // TRIMMED
    return np.asarray(np.sort(values, axis=0)[n_trimmed : len(values) - n_trimmed].mean(0))


def interquartile_band(values: Floats) -> tuple[Floats, Floats]:
    """Return the 95 % bootstrap interval of `interquartile_mean` over runs.

    Whole runs are drawn with replacement, so that the points of a curve stay together. Of fewer than `FEWEST_SEEDS` it
    would be too narrow; they have their range.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.
    """
    import numpy as np  # noqa: PLC0415

    n_runs = len(values)
    if n_runs < FEWEST_SEEDS:
        return np.asarray(values.min(0)), np.asarray(values.max(0))
    drawn = np.random.default_rng(0).integers(n_runs, size=(RESAMPLES, n_runs))
    parts = np.array_split(drawn, 1 + drawn.size * values[0].size // AT_ONCE)
    means = np.concatenate([interquartile_mean(np.moveaxis(values[rows], 1, 0)) for rows in parts])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


class Spread(NamedTuple):
    """Estimate over the processes that measured a point, with its ends."""

    value: float
    low: float
    high: float
    kind: SpreadKind


def spread_over_processes(times: Sequence[Sequence[float]]) -> Spread:
    """Return the geometric mean of the processes' medians, with its spread.

    Samples within a process are correlated, and processes differ by more than their samples.

    Source: Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", ISMM, 63-74.
    """
    medians = list(map(median, times))
    if len(times) == 1:
        return Spread(medians[0], min(times[0]), max(times[0]), "samples")
    if len(times) >= FEWEST_PROCESSES:
        mean = Ratio.of_logs(list(map(math.log, medians)), between_processes=True)
        return Spread(mean.value, mean.low, mean.high, "processes")
    low, high = min(medians), max(medians)
    return Spread(min(max(statistics.geometric_mean(medians), low), high), low, high, "range")


# ------------------------------------------------------------------ ratios of two sides


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of the second side's time to the first's; above 1: slower."""

    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    error: float
    """Standard error of the ratio's logarithm."""
    dof: int | None = None
    """Degrees of freedom of the error; None: the normal distribution's."""
    between_processes: bool = False
    """True if the interval includes differences between processes."""

    @classmethod
    def of_logs(cls, values: Sequence[float], *, between_processes: bool) -> Ratio:
        """Return the geometric mean of ratios, with Student's interval on logs.

        Times scatter by factors. Their logarithms add, and are close to normal.

        Source: Student 1908, "The probable error of a mean"; on logarithms, Fleming and Wallace 1986, "How not to lie
        with statistics", why ratios take the geometric mean.

        Raises:
            ValueError: There are fewer than two.
        """
        if len(values) < 2:
            raise ValueError(f"ratio: needs the logarithms of two or more ratios (got {len(values)}); measure more")
        import numpy as np  # noqa: PLC0415

        logs = np.asarray(values, np.float64)
        mean, error, dof = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1
        half = student_quantile((1 + CONFIDENCE) / 2, dof) * error
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half), error, dof, between_processes)

    def widened(self, noise: float, dof: int) -> Ratio:
        """Return the ratio, widened by noise that its samples cannot show.

        Args:
            noise: Standard deviation of the ratio's logarithm that comes on top.
            dof: Degrees of freedom with which the noise was estimated.
        """
        more = student_quantile((1 + CONFIDENCE) / 2, dof) * noise
        below, above = math.log(self.value / self.low), math.log(self.high / self.value)
        return replace(
            self,
            low=self.value / math.exp(math.hypot(below, more)),
            high=self.value * math.exp(math.hypot(above, more)),
            error=math.hypot(self.error, noise),
            dof=dof,
        )

    def p_over(self, other: float = 1.0) -> float:
        """Return the one-sided p-value for exceeding another ratio; its error may be 0."""
        distance = math.log(self.value / other)
        if self.error == 0:
            return 0.5 if distance == 0 else float(distance < 0)
        return 1 - student_cdf(distance / self.error, math.inf if self.dof is None else self.dof)

    def p_below(self, other: float = 1.0) -> float:
        """Return the one-sided p-value for being below another ratio."""
        return 1 - self.p_over(other)


def log_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the logarithms of ``b / a`` of pairs.

    Raises:
        ValueError: The sides differ in length.
    """
    if len(a) != len(b):
        raise ValueError(f"pairs: both sides need the same number of times (got {len(a)} and {len(b)})")
    return [math.log(after / before) for before, after in zip(a, b, strict=True)]


def unpaired_ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of medians, ``b`` over ``a``, and its interval.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general approach", equation
    4, on logarithms, with `median_interval` for the limits of each side.
    """
    (low_a, high_a), (low_b, high_b) = median_interval(a), median_interval(b)
    middle_a, middle_b = median(a), median(b)
    below = math.hypot(math.log(middle_b / low_b), math.log(high_a / middle_a))
    above = math.hypot(math.log(high_b / middle_b), math.log(middle_a / low_a))
    value = middle_b / middle_a
    error = (below + above) / 2 / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return Ratio(value, value / math.exp(below), value * math.exp(above), error)


def ratio_of_processes(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio of the processes' medians, ``b`` over ``a``.

    Its interval is Welch's, on logarithms.

    Source: Welch 1947, "The generalization of 'Student's' problem when several different population variances are
    involved".

    Args:
        a: Times of two or more processes.
        b: Those of the other side.
    """
    sides = [[math.log(median(times)) for times in side] for side in (a, b)]
    of_a, of_b = (statistics.variance(logs) / len(logs) for logs in sides)
    error, before_dof = math.hypot(math.sqrt(of_a), math.sqrt(of_b)), [len(logs) - 1 for logs in sides]
    shares = of_a**2 / before_dof[0] + of_b**2 / before_dof[1]
    dof = int((of_a + of_b) ** 2 / shares) if shares else sum(before_dof)
    mean = statistics.mean(sides[1]) - statistics.mean(sides[0])
    half = student_quantile((1 + CONFIDENCE) / 2, dof) * error
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), error, dof, between_processes=True)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple comparisons (Holm).

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def smallest_detectable(noise: float, n: int, dof: int | None = None) -> float:
    """Return the smallest slow-down that a 5 % test detects with power 0.8.

    Args:
        noise: Standard deviation of the logarithm of one ratio.
        n: Ratios that are averaged.
        dof: Degrees of freedom with which the noise was estimated; None: it is known.

    Source: Cohen 1988, "Statistical power analysis for the behavioral sciences", section 2.4, on logarithms.
    """
    side, normal = (1 + CONFIDENCE) / 2, NormalDist()
    quantile = normal.inv_cdf(side) if dof is None else student_quantile(side, dof)
    return math.expm1((quantile + normal.inv_cdf(POWER)) * noise / math.sqrt(n))


def student_cdf(t: float, dof: float) -> float:
    """Return the probability that Student's t is at most ``t``."""
    from scipy.special import stdtr  # noqa: PLC0415

    return float(stdtr(dof, t))


def student_quantile(probability: float, dof: int) -> float:
    """Return Student's t quantile, the inverse of `student_cdf`."""
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(dof, probability))

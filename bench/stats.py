"""The statistics of samples: the median and its interval, without assuming a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2_000
TRIMMED = 4
"""One in so many values is left out at each end of an interquartile mean."""

Floats = NDArray[np.float64]


def median(samples: Sequence[float]) -> float:
    """Return the median."""
    return float(np.median(samples))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the order-statistic interval of the median at 95 %.

    The ranks hold the median with at least that probability, whatever the distribution; with fewer than six samples no
    two ranks do, and the interval is the range.
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
    """Return the range of values as a share of the smallest."""
    return (max(values) - min(values)) / min(values)


def interquartile_mean(values: Floats) -> Floats:
    """Return the mean over the first axis without the lowest and the highest quarter, rounded down to whole values."""
    n_trimmed = len(values) // TRIMMED
    return np.asarray(np.sort(values, axis=0)[n_trimmed : len(values) - n_trimmed].mean(0))


def interquartile_band(values: Floats) -> tuple[Floats, Floats]:
    """Return the 95 % percentile-bootstrap interval of `interquartile_mean` over runs, (n_runs, ...).

    Whole runs are drawn with replacement, so that the points of a curve stay together.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.
    """
    n_runs = len(values)
    drawn = np.random.default_rng(0).integers(n_runs, size=(RESAMPLES, n_runs))
    means = np.stack([interquartile_mean(values[rows]) for rows in drawn])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high

"""The statistics of samples: the median and its interval, without assuming a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95


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

"""Sequential test of a slow-down, for any symmetric noise.

The sides alternate in starting first, so rounds of equal code have log ratios symmetric around 0. A bet on "slower than
the threshold" multiplies its capital by 2 / (1 + exp(-2 s x)) in each round, where s is the stake and x the log ratio
minus the threshold's, clipped so that no outlier decides. If the code is not slower, no capital grows on average. So it
reaches 1 / a at any time with probability a or less (Ville's inequality), whatever the reason to stop.

Source: Ramdas, Ruf, Larsson and Koolen 2020, "Admissible anytime-valid sequential inference must rely on nonnegative
martingales", on symmetric distributions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from ..core.stats import POWER

if TYPE_CHECKING:
    from ..core.stats import Floats

FALSE_ALARMS: Final = 0.001
"""Probability of a false alarm in a gate, over all its points."""
MISSES: Final = 0.025
"""Probability that a point whose slow-down is the threshold passes."""
MOST_ROUNDS: Final = 40
"""Default limit of a point's rounds."""
FEWEST_ROUNDS: Final = 6
"""Number of rounds that decide a quiet point."""
STAKES: Final = (1.0, 4.0)
"""Stakes, in units of one over the threshold.

The larger decides quiet points in `FEWEST_ROUNDS`; the smaller forgives rounds on the wrong side."""
SHARES: Final = (1 / 3, 2 / 3)
"""Share of each stake in the capital."""


def _growth(log_ratios: Floats, threshold: float, is_slower: bool) -> Floats:
    """Return the growth of each stake's log capital in each round, (stakes, ...)."""
    import numpy as np  # noqa: PLC0415

    limit = math.log1p(threshold)
    x = (1 if is_slower else -1) * np.clip(np.asarray(log_ratios) / limit - 1, -1, 1)
    return np.asarray(math.log(2) - np.logaddexp(0, -2 * np.multiply.outer(STAKES, x)))


def _total(capitals: Floats) -> Floats:
    """Return the log of the total capital of all stakes (first axis)."""
    import numpy as np  # noqa: PLC0415

    return np.asarray(np.logaddexp.reduce([math.log(s) + each for s, each in zip(SHARES, capitals, strict=True)]))


def evidence(log_ratios: Floats | Sequence[float], threshold: float, *, is_slower: bool) -> Floats:
    """Return the log capital after each round of a bet on "slower", or "not slower".

    Args:
        log_ratios: Logarithms of rounds, (..., rounds).
        threshold: Slow-down, as a share.
        is_slower: Bet on slower than the threshold.
    """
    import numpy as np  # noqa: PLC0415

    return _total(_growth(np.asarray(log_ratios), threshold, is_slower).cumsum(-1))


def p_slower(log_ratios: Sequence[float], threshold: float) -> float:
    """Return the p-value of being slower than the threshold, valid at any stop."""
    return math.exp(-max(0.0, float(evidence(log_ratios, threshold, is_slower=True).max())))


def is_below(log_ratios: Sequence[float], threshold: float) -> bool:
    """True if the slow-down is below the threshold."""
    return float(evidence(log_ratios, threshold, is_slower=False).max()) >= -math.log(MISSES)


def is_decided(log_ratios: Sequence[float], threshold: float, n_points: int) -> bool:
    """True if a gate of that many points needs no further round."""
    return is_below(log_ratios, threshold) or p_slower(log_ratios, threshold) * n_points < FALSE_ALARMS


def smallest_found(
    log_ratios: Sequence[float], threshold: float, n_points: int, n_rounds: int, noise: float = 0.0
) -> float:
    """Return the smallest slow-down that the rounds find in 80 % of gates.

    Infinity: a factor of two may be missed.

    Args:
        log_ratios: Logarithms of rounds, whose scatter is the noise.
        threshold: Slow-down that passes, as a share.
        n_points: Points of the gate.
        n_rounds: Limit of rounds.
        noise: Standard deviation of a round's log ratio at calibration; it counts if it is larger.
    """
    import numpy as np  # noqa: PLC0415

    scatter = np.asarray(log_ratios) - np.mean(log_ratios)
    scatter *= math.sqrt(len(scatter) / (len(scatter) - 1))
    if noise > math.sqrt(float((scatter**2).mean())):
        scatter = noise * np.array([-1.0, 1.0])
    less = NormalDist().inv_cdf(POWER) * math.sqrt(n_rounds)

    def is_found(slower: float) -> bool:
        growth = _growth(scatter + math.log1p(slower), threshold, is_slower=True)
        return float(_total(n_rounds * growth.mean(-1) - less * growth.std(-1))) > math.log(n_points / FALSE_ALARMS)

    low, high = threshold, 1.0
    if not is_found(high):
        return math.inf
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high

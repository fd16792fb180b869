"""Sequential test of a slow-down, for any symmetric noise.

The sides alternate in starting first, so rounds of equal code have log ratios symmetric around 0. A bet on "slower than
the threshold" multiplies its capital by 2 / (1 + exp(-2 s x)) in each round, where x is the log ratio minus the
threshold's and s the stake. If the code is not slower, no capital grows on average. So it reaches 1 / a at any time
with probability a or less (Ville's inequality), whatever the reason to stop.

Source: Ramdas, Ruf, Larsson and Koolen 2020, "Admissible anytime-valid sequential inference must rely on nonnegative
martingales", section on symmetric distributions; Ville 1939, "Etude critique de la notion de collectif".
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
STAKES: Final = {0.5: 1 / 8, 1.5: 1 / 4, 4.0: 5 / 8}
"""Share of the capital by stake, in units of one over the threshold.

The largest decides quiet points soonest, in 6 rounds; the smallest forgives an outlier."""


def _growth(log_ratios: Floats, threshold: float) -> Floats:
    """Return the growth of each stake's log capital in each round.

    A negative threshold bets on "not slower".
    """
    import numpy as np  # noqa: PLC0415

    stakes = np.array(list(STAKES)).reshape(-1, *[1] * np.ndim(log_ratios)) / abs(threshold)
    return np.asarray(math.log(2) - np.logaddexp(0, -2 * np.sign(threshold) * stakes * (log_ratios - abs(threshold))))


def _total(capitals: Floats) -> Floats:
    """Return the logarithm of the total capital of all stakes (first axis)."""
    import numpy as np  # noqa: PLC0415

    shares = np.log(list(STAKES.values())).reshape(-1, *[1] * (capitals.ndim - 1))
    return np.asarray(np.logaddexp.reduce(capitals + shares, axis=0))


def evidence(log_ratios: Floats, threshold: float) -> tuple[Floats, Floats]:
    """Return the logarithms of both bets' capital after each round.

    Args:
        log_ratios: Logarithms of rounds, (..., rounds).
        threshold: Slow-down, as a share.

    Returns:
        Of the bet on slower and the bet on not slower than the threshold, each of the shape of ``log_ratios``.
    """
    limit = math.log1p(threshold)
    slower, faster = (_total(_growth(log_ratios, side * limit).cumsum(-1)) for side in (1, -1))
    return slower, faster


def p_slower(log_ratios: Sequence[float], threshold: float) -> float:
    """Return the p-value of being slower than the threshold, valid at any stop."""
    return math.exp(-max(0.0, float(evidence(_array(log_ratios), threshold)[0].max())))


def is_below(log_ratios: Sequence[float], threshold: float) -> bool:
    """True if the slow-down is below the threshold."""
    return float(evidence(_array(log_ratios), threshold)[1].max()) >= -math.log(MISSES)


def is_decided(log_ratios: Sequence[float], threshold: float, n_points: int) -> bool:
    """True if no further round is needed in a gate of so many points."""
    return is_below(log_ratios, threshold) or p_slower(log_ratios, threshold) * n_points < FALSE_ALARMS


def smallest_found(
    log_ratios: Sequence[float], threshold: float, n_points: int, n_rounds: int, noise: float = 0.0
) -> float:
    """Return the smallest slow-down that so many rounds find four times in five.

    Args:
        log_ratios: Logarithms of rounds, whose scatter is the noise.
        threshold: Slow-down that passes, as a share.
        n_points: Points of the gate.
        n_rounds: Limit of rounds.
        noise: Standard deviation of a round's log ratio at calibration; it counts if it is larger.

    Returns:
        The slow-down as a share; infinity: even a factor of two may be missed.
    """
    import numpy as np  # noqa: PLC0415

    logs = _array(log_ratios)
    scatter = (logs - logs.mean()) * math.sqrt(len(logs) / (len(logs) - 1))
    if noise > math.sqrt(float((scatter**2).mean())):
        scatter = noise * np.array([-1.0, 1.0])
    limit, less = math.log1p(threshold), NormalDist().inv_cdf(POWER) * math.sqrt(n_rounds)

    def is_found(slower: float) -> bool:
        growth = _growth(scatter + math.log1p(slower), limit)
        return float(_total(n_rounds * growth.mean(-1) - less * growth.std(-1))) > math.log(n_points / FALSE_ALARMS)

    low, high = threshold, 1.0
    if not is_found(high):
        return math.inf
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _array(log_ratios: Sequence[float]) -> Floats:
    import numpy as np  # noqa: PLC0415

    return np.asarray(log_ratios, np.float64)

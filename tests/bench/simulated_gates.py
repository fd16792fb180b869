"""`python -m tests.bench.simulated_gates`: simulate gates; write their table.

Each gate has 20 points. Their rounds are drawn from recorded ones of equal code, or from noise with two modes or heavy
tails. One gate of each pair is of equal code; in the other one point is 3 % slower. The table goes to docs/gating.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from bench.core.archive import ARCHIVE, glob_paths
from bench.core.machine import ROOT
from bench.core.record import RESULTS
from bench.judge.gate import THRESHOLD
from bench.judge.sequential import FALSE_ALARMS, MISSES, MOST_ROUNDS, evidence
from bench.process.interleaved import ROUNDS, PairFiles
from warpdrive_min.files import write_atomically

GATES, POINTS, SLOW_DOWN = 10_000, 20, 2 * THRESHOLD
AT_ONCE = 500
"""Gates in memory at the same time."""
PAGE = ROOT / "docs" / "gating.md"
BEGIN, END = "<!-- simulated gates -->\n", "<!-- end of simulated gates -->"

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int, int]], Array]
"""Draws log ratios, (gates, points, rounds), of equal code."""
Verdicts = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]
"""ok, regression, and rounds taken; each (gates, points)."""


# ------------------------------------------------------------------ noise


@functools.cache
def recorded() -> list[Array]:
    """Return the recorded rounds of equal code, of each point."""
    folder = RESULTS / ARCHIVE / "comparisons"
    found = []
    for file in glob_paths(str(folder / "*-gates-*-comparisons.jsonl")):
        pairs = PairFiles.of(folder, file.name.removesuffix("-comparisons.jsonl")).pairs()
        same = [pair.comparison.rounds for pair in pairs if not pair.b.notes.get("planted", 0.0)]
        found.append(np.concatenate(same))
    return found


def from_rounds(scale: float) -> Draw:
    """Draw from recorded rounds; points take turns among the recorded ones."""
    pools = recorded()

    def draw(random: np.random.Generator, shape: tuple[int, int, int]) -> Array:
        gates, points, rounds = shape
        drawn = [random.choice(pools[index % len(pools)], (gates, rounds)) for index in range(points)]
        return scale * np.stack(drawn, 1)

    return draw


def modes(apart: float, share: float) -> Draw:
    """Draw rounds of processes of which a share is slower."""

    def draw(random: np.random.Generator, shape: tuple[int, int, int]) -> Array:
        a, b = (apart * (random.random(shape) < share) for _ in range(2))
        return np.asarray(b - a + random.normal(0, 0.002, shape))

    return draw


def heavy_tails(scale: float) -> Draw:
    """Draw Student's t with two degrees of freedom, without a variance."""
    return lambda random, shape: scale * random.standard_t(2, shape)


def noises() -> dict[str, Draw]:
    """Return the kinds of noise by description."""
    return {
        "recorded rounds": from_rounds(1),
        "recorded rounds, twice the scatter": from_rounds(2),
        "every second process 2 % slower": modes(0.02, 0.5),
        "every second process 3 % slower": modes(0.03, 0.5),
        "every tenth process 10 % slower": modes(0.1, 0.1),
        "heavy tails (t, 2 degrees of freedom, 0.5 %)": heavy_tails(0.005),
    }


# ------------------------------------------------------------------ rules


def fixed_rounds(logs: Array) -> Verdicts:
    """Judge as before: Student's t over the preset's rounds, with Holm."""
    n = ROUNDS["default"]
    logs = logs[..., :n]
    mean, error = logs.mean(-1), logs.std(-1, ddof=1) / math.sqrt(n)
    limit, t = math.log1p(THRESHOLD), stdtrit(n - 1, 0.975)
    p = 1 - stdtr(n - 1, (mean - limit) / error)
    order = np.argsort(p, -1)
    steps = np.take_along_axis(p, order, -1) * (POINTS - np.arange(POINTS))
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, -1), -1)
    is_ok = mean + t * error < limit
    detectable = (t + 0.8416) * error
    return is_ok, ~is_ok & (adjusted < 0.025) & (mean > np.maximum(limit, detectable)), np.full(mean.shape, n)


def until_decided(logs: Array) -> Verdicts:
    """Judge as the gate does, see `bench.judge.sequential`."""
    slower, below = (evidence(logs, THRESHOLD, is_slower=each) for each in (True, False))
    crossed = slower > math.log(POINTS / FALSE_ALARMS), below >= -math.log(MISSES)
    first_slower, first_below = (np.where(each.any(-1), each.argmax(-1), MOST_ROUNDS) for each in crossed)
    taken = np.minimum(np.minimum(first_slower, first_below) + 1, MOST_ROUNDS)
    return first_below < first_slower, first_slower < first_below, taken


RULES = {"4 rounds, t": fixed_rounds, "until decided": until_decided}


@dataclass(frozen=True, slots=True)
class Tally:
    """Shares of simulated gates, and rounds of a point."""

    false_alarms: float
    """Gates of equal code that report a regression."""
    passed: float
    """Gates of equal code that pass."""
    found: float
    """Slow-downs that are reported."""
    missed: float
    """Slow-downs that pass."""
    rounds: float
    """Mean rounds of a point of equal code."""
    rounds_of_slow: float
    """Mean rounds of a slow point."""


def simulate(draw: Draw, n_gates: int, slow_down: float = SLOW_DOWN, seed: int = 0) -> dict[str, Tally]:
    """Simulate gates of equal code and gates with one slow point, by rule."""
    random, sums = np.random.default_rng(seed), {name: np.zeros(6) for name in RULES}
    for done in range(0, n_gates, AT_ONCE):
        n = min(AT_ONCE, n_gates - done)
        same = draw(random, (n, POINTS, MOST_ROUNDS))
        slower = draw(random, (n, POINTS, MOST_ROUNDS))
        slow = np.arange(n), np.arange(done, done + n) % POINTS
        slower[slow] += math.log1p(slow_down)
        for name, judge in RULES.items():
            ok, alarm, rounds = judge(same)
            passes, found, taken = (each[slow] for each in judge(slower))
            shares = alarm.any(-1), ok.all(-1), found, passes, rounds.mean(-1), taken
            sums[name] += [each.sum() for each in shares]
    return {name: Tally(*(each / n_gates).tolist()) for name, each in sums.items()}


def table(n_gates: int = GATES) -> str:
    """Return the table of all kinds of noise and rules, as Markdown."""
    heads = (
        *("noise", "rule", "false alarms, of gates", "equal code passes, of gates"),
        *("3 % found", "3 % passes", "rounds of a point", "of a slow point"),
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for noise, draw in noises().items():
        for rule, each in simulate(draw, n_gates).items():
            shares = each.false_alarms, each.passed, each.found, each.missed
            rounds = each.rounds, each.rounds_of_slow
            cells = [noise, rule, *(f"{share:.2%}" for share in shares), *(f"{n:.1f}" for n in rounds)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page, and print it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table()
    write_atomically(PAGE, f"{before}{BEGIN}\n{made}\n{END}{after}")
    print(made)


if __name__ == "__main__":
    main()

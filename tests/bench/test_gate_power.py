"""Power of the gate, simulated at calibrated noise."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from scipy.signal import lfilter

from bench.core.record import Record
from bench.core.stats import Ratio
from bench.judge.calibration import NoiseFloor, read, store
from bench.judge.gate import THRESHOLD, judge
from bench.process.interleaved import ROUNDS, Pair, pair_of_rounds
from bench.process.rounds import TURNS
from tests.bench.builders import point, record

SLOW_DOWN, GATES = 2 * THRESHOLD, 20
WITHIN, CORRELATION = 0.002, 0.9
"""Standard deviation and lag-1 correlation of the blocks of one process."""
BETWEEN = 0.0015
"""Standard deviation of four rounds: three times an H200's calibrated point."""


def autoregressive(n: int, random: np.random.Generator) -> np.ndarray:
    """Draw n log block times from a stationary AR(1) process."""
    noise = random.normal(0, WITHIN * math.sqrt(1 - CORRELATION**2), n)
    noise[0] = random.normal(0, WITHIN)
    return lfilter([1], [1, -CORRELATION], noise)


def points(n: int) -> list[Record]:
    """Return records of n points."""
    return [record(samples_ns=[1e6] * 40, point=point("pycuda", size)) for size in range(1, n + 1)]


def floor(each: Record, pair: float = BETWEEN) -> NoiseFloor:
    """Return the calibrated noise of a point."""
    known = each.model_dump(include={"case", "case_version", "point", "preset"})
    return NoiseFloor(**known, rounds=12, run=2 * pair, pair=pair, smallest=6 * pair, smallest_in_turns=3 * pair)


def simulated_pair(each: Record, pair: float, slow_down: float, random: np.random.Generator, n_rounds: int = 4) -> Pair:
    """Simulate a pair of a point with itself.

    Blocks of a process share its noise, so that four rounds have standard deviation ``pair``.
    """
    lags = np.abs(np.subtract.outer(np.arange(2 * TURNS), np.arange(2 * TURNS)))
    of_blocks = WITHIN**2 * float((CORRELATION**lags).mean())
    of_process = math.sqrt(max(0.0, pair**2 * ROUNDS[each.preset] / 2 - of_blocks))

    def side(run_id: str, slower: float) -> Record:
        rounds = [
            math.log1p(slower) + random.normal(0, of_process) + autoregressive(2 * TURNS, random)
            for _ in range(n_rounds)
        ]
        samples_ns = (1e6 * np.exp(np.concatenate(rounds))).tolist()
        process = [number for number in range(n_rounds) for _ in range(2 * TURNS)]
        return each.model_copy(update={"samples_ns": samples_ns, "process": process, "run_id": run_id})

    return pair_of_rounds(side("simulated-a", 0.0), side("simulated-b", slow_down))


def test_gate_finds_three_percent_and_passes_the_same_code(tmp_path):
    """19 of 20 gates find a 3 % slow-down; equal code passes.

    All 20 gates of equal code pass, at 12 points.
    """
    some = points(12)
    store([floor(each) for each in some], some[0], "", tmp_path)
    calibration = read(some[0].machine, tmp_path)
    random = np.random.default_rng(0)
    verdicts = {0.0: Counter(), SLOW_DOWN: Counter()}
    for slow_down in (0.0, SLOW_DOWN) * GATES:
        pairs = [simulated_pair(each, BETWEEN, slow_down, random, 16) for each in some]
        verdicts[slow_down].update((row.subject, row.verdict) for row in judge(pairs, THRESHOLD, calibration))
    subjects = {subject for subject, _ in verdicts[0.0]}
    assert verdicts[0.0] == {(subject, "ok"): GATES for subject in subjects}
    assert len(subjects) == 12
    assert all(verdicts[SLOW_DOWN][subject, "regression"] >= 0.95 * GATES for subject in subjects)


def test_interval_over_rounds_covers_what_turns_do_not():
    """Intervals over rounds cover the true ratio; over turns rarely."""
    (each,), random = points(1), np.random.default_rng(2)
    covered = {"rounds": 0, "turns": 0}
    for _ in range(300):
        pair = simulated_pair(each, 0.01, 0.0, random)
        logs = [log for turns in pair.comparison.log_ratios for log in turns]
        for name, ratio in (("rounds", pair.ratio), ("turns", Ratio.of_logs(logs, between_processes=False))):
            covered[name] += ratio.low <= 1 <= ratio.high
    assert covered["rounds"] >= 0.92 * 300
    assert covered["turns"] <= 0.75 * 300

"""Published gates pass equal code and find slower code."""

from __future__ import annotations

from collections import defaultdict

import pytest

from bench.core.archive import ARCHIVE, glob_paths
from bench.core.record import RESULTS, Comparison, read_all
from bench.judge.gate import THRESHOLD, calibration_of, judge
from bench.judge.sequential import is_below, is_decided
from bench.process.interleaved import Pair, PairFiles


def rows(name):
    """Return the verdict of each published gate's point."""
    runs = defaultdict(dict)
    for record in read_all(glob_paths(str(RESULTS / ARCHIVE / "comparisons" / f"*-{name}.jsonl"))):
        runs[record.run_id[:-2]][record.run_id[-1]] = record
    for a, b in (runs[each].values() for each in sorted(runs)):
        calibration, notes = calibration_of([b], RESULTS / "calibration")
        assert calibration is not None, notes
        pair = Pair(name="a point", a=a, b=b, comparison=Comparison.of_one_round(a, b))
        (row,) = judge([pair], THRESHOLD, calibration)
        yield row


def test_published_gates_pass_the_same_code():
    """Each of 24 gates of equal code passes, within 0.2 %."""
    found = list(rows("gates-same"))
    assert [row.verdict for row in found] == ["ok"] * 24
    assert max(abs(row.estimate.value - 1) for row in found) < 0.002


def test_published_gates_catch_a_twentieth():
    """A planted slow-down of 5 % is found in both measurements."""
    found = list(rows("gates-planted"))
    assert [row.verdict for row in found] == ["regression"] * 4
    assert [row.estimate.value - 1 for row in found] == [pytest.approx(0.052, abs=0.002)] * 4


GATES = {
    "tag-continuous": 20,
    "tag-continuous-training": 20,
    "tag-continuous-training-h200": 15,
    "a2c": 20,
    "ppo": 20,
    "ddpg": 20,
}
"""Number of gates of each kind, by the end of their files' names."""


@pytest.mark.parametrize(("name", "n"), GATES.items(), ids=list(GATES))
def test_published_gates_catch_3_percent_and_pass_the_same(name, n):
    """Gates over the recorded rounds, one after the other, are all right.

    Each takes rounds until it is decided, as one of 20 points.
    """
    folder = RESULTS / ARCHIVE / "comparisons"
    (file,) = glob_paths(str(folder / f"*-gates-{name}-comparisons.jsonl"))
    rounds = defaultdict(list)
    pairs = PairFiles.of(folder, file.name.removesuffix("-comparisons.jsonl")).pairs()
    for pair in pairs:
        rounds[pair.b.notes.get("planted", 0.0)] += pair.comparison.rounds
    assert len(pairs) == 2 * n
    for planted, verdict in ((0.0, "ok"), (0.03, "regression")):
        verdicts, taken = [], []
        for log in rounds[planted]:
            taken.append(log)
            if is_decided(taken, THRESHOLD, 20):
                verdicts.append("ok" if is_below(taken, THRESHOLD) else "regression")
                taken = []
        assert set(verdicts) == {verdict}
        assert len(verdicts) >= len(rounds[planted]) // 17


@pytest.mark.parametrize(("kind", "verdict", "n_rounds"), [("same", "ok", 8), ("planted", "regression", 16)])
def test_live_gates_were_right(kind, verdict, n_rounds):
    """Each of six gates of a kind, run one after the other on GPUs, is right."""
    folder = RESULTS / ARCHIVE / "comparisons"
    pairs = PairFiles.of(folder, f"20261128-until-decided-{kind}").pairs()
    rows = judge(pairs, THRESHOLD, None)
    assert [len(pair.comparison.rounds) for pair in pairs] == [n_rounds] * 6
    assert [row.verdict for row in rows] == [verdict] * 6

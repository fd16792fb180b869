"""Gates of memory, learning and energy."""

from __future__ import annotations

import numpy as np
import pytest

from bench.core.errors import Code
from bench.core.point import Metric
from bench.core.record import Context, append
from bench.judge.gate import judge as judge_times
from bench.judge.outcomes import Report
from bench.judge.untimed import judge_into
from bench.workloads.cases import jobs
from bench.workloads.shared import MEMBERS
from tests.bench.builders import UNTIMED, bench, pair_of, record

LEARN = {"env": "cartpole", "backend": "pycuda", "n_envs": 64, "algorithm": "PPO", "learner": "shared"}


def judge(before, now):
    """Return a report on two sides."""
    report = Report(baseline="before", threshold=0.0)
    judge_into(report, before, now)
    return report


def memory(n_bytes: float, **changes):
    """Return a record of an environment's bytes."""
    metrics = {
        "bytes_per_env": Metric.exact(n_bytes, "bytes", "lower"),
        "largest_n_envs": Metric.exact(1e9 / n_bytes, "environments", "higher"),
    }
    return record(case="memory", scope="memory", metrics=metrics, **{**UNTIMED, **changes})


def learned(seed: int, steps: float | None = None, score: float | None = None, members=None):
    """Return a record of a run to the threshold, to the end, or of a population."""
    metrics = {"return_before": Metric.exact(25.0, "return", "higher")}
    if steps:
        metrics["env_steps_to_threshold"] = Metric.exact(steps, "env_steps", "lower")
    if score is not None:
        metrics["return_after"] = Metric.exact(score, "return", "higher")
    end = {} if score is None else {"until": "end"}
    notes = {} if members is None else {MEMBERS: {"env_steps_to_threshold": members}}
    point = LEARN | {"threshold": 475.0, "seed": seed} | end | ({} if members is None else {"population": len(members)})
    return record(case="learn", scope="learn", point=point, metrics=metrics, notes=notes, **UNTIMED)


@pytest.mark.parametrize(
    ("n_bytes", "verdict", "code"), [(76, "ok", 0), (75, "ok", 0), (77, "regression", Code.REGRESSION)]
)
def test_each_byte_more_is_a_regression(n_bytes, verdict, code, tmp_path):
    """Bytes are exact; the gate of two files compares them."""
    before, now = [memory(76.0)], [memory(float(n_bytes), run_id="now")]
    (row,) = judge(before, now).rows
    assert row.verdict == verdict
    assert row.estimate.sides == ("76 bytes", f"{n_bytes} bytes")
    for name, records in (("before", before), ("now", now)):
        append(tmp_path / f"{name}.jsonl", records[0])
    words = ["--baseline", tmp_path / "before.jsonl", "--records", tmp_path / "now.jsonl"]
    assert f"| {verdict} |" in bench("gate", *words, "--calibrations", tmp_path / "none", exits=code)


def test_point_of_one_side_and_other_machines_are_told():
    """A missing point changes the set; other versions are not comparable."""
    found = judge([memory(76.0)], [])
    assert [(kind, text.partition(" ")[2]) for kind, text in found.problems] == [("changed", "is only in the baseline")]
    found = judge([memory(76.0)], [memory(76.0, case_version=2)])
    assert not found.rows
    ((kind, text),) = found.problems
    assert kind == "not comparable"
    assert "case_version" in text


@pytest.mark.parametrize(
    ("worse", "n", "verdict"),
    [(1.0, 20, "ok"), (1.6, 20, "regression"), (1.6, 5, "inconclusive"), (1.25, 20, "inconclusive")],
)
def test_learning_is_judged_over_seeds(worse, n, verdict):
    """60 % more env steps are a regression, with enough seeds."""
    random = np.random.default_rng(1)
    before, now = ([learned(seed, 1e5 * np.exp(random.normal(0, 0.15))) for seed in range(n)] for _ in range(2))
    now = [learned(each.point["seed"], worse * each.metrics["env_steps_to_threshold"].value) for each in now]
    (row,) = judge(before, now).rows
    assert row.verdict == verdict
    assert row.subject.endswith("threshold=475.0]")
    assert ("measure 8 or more" in row.why) == (n < 8)


def test_equal_runs_pass_however_few():
    """Bit-identical training needs no test."""
    (row,) = judge([learned(0, 1e5)], [learned(0, 1e5)]).rows
    assert (row.verdict, row.why) == ("ok", "equal in every seed")


@pytest.mark.parametrize(("n_missed", "verdict"), [(0, "ok"), (30, "regression")])
def test_members_that_miss_the_threshold_rank_last(n_missed, verdict):
    """A population is its members; those without the threshold are worst."""
    steps = list(np.random.default_rng(2).uniform(1e5, 1.2e5, 32))
    missing = [None] * n_missed + steps[::-1][n_missed:]
    (row,) = judge([learned(0, members=steps)], [learned(0, members=missing)]).rows
    assert row.verdict == verdict
    assert row.estimate.note == "32 members a side, by rank"


@pytest.mark.parametrize(("lost", "verdict"), [(0.0, "ok"), (120.0, "regression")])
def test_returns_of_whole_runs_are_compared(lost, verdict):
    """Runs to the end lose at most a tenth of their way to the threshold."""
    random = np.random.default_rng(3)
    before, now = ([learned(seed, score=random.normal(480, 5)) for seed in range(20)] for _ in range(2))
    now = [learned(each.point["seed"], score=each.metrics["return_after"].value - lost) for each in now]
    (row,) = judge(before, now).rows
    assert row.verdict == verdict
    assert "worse by more than a return lower by 45" in row.why


@pytest.mark.parametrize(("more", "verdict"), [(1.0, "ok"), (1.02, "ok"), (1.2, "regression")])
def test_energy_is_gated_over_rounds(more, verdict):
    """Energy has its own row, by the test of times, and a threshold of 3 %."""
    noise = np.exp(np.random.default_rng(4).normal(0, 0.004, (2, 12)))
    pair = pair_of([1.0, 1.0] * 12, [1.0, 1.0] * 12, is_interleaved=True)
    for side, factor, scatter in ((pair.a, 1.0, noise[0]), (pair.b, more, noise[1])):
        side.notes["joules_per_unit"] = list(2e-6 * factor * scatter)
    assert pair.energy is not None
    (row,) = judge_times([pair.energy], 0.015, None)
    assert (row.verdict, row.subject) == (verdict, f"{pair.name}: energy")
    assert row.estimate.sides[0].endswith(" uJ")


def test_baseline_file_of_memory_is_measured_again(tmp_path):
    """The gate measures memory of a baseline's file again, in bytes."""
    (job,) = jobs("smoke", ["case=memory", "backend=host", "env=cartpole"])
    before = job.run(Context.here("smoke", "before"))
    metrics = {
        **before.metrics,
        "bytes_per_env": Metric.exact(before.metrics["bytes_per_env"].value - 1, "bytes", "lower"),
    }
    append(tmp_path / "before.jsonl", before.model_copy(update={"metrics": metrics}))
    words = ["--baseline", tmp_path / "before.jsonl", "--out", tmp_path / "out", "--calibrations", tmp_path / "none"]
    said = bench("gate", *words, exits=Code.REGRESSION)
    assert "| regression |" in said
    assert "1 point against" in said

"""Learning over tasks: statistics of rliable, and exports."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.core.errors import ShowError
from bench.core.point import Curve, Metric
from bench.core.record import append
from bench.show.scores import interquartile_mean_of, performance_profile, probability_of_improvement, scores_of
from tests.bench.builders import UNTIMED, bench, record

X = [np.array([0.1, 0.5, 0.9, 1.3]), np.array([0.2, 0.4, 0.8, 1.6])]
Y = [np.array([0.0, 0.5, 0.7, 1.1]), np.array([0.3, 0.4, 0.9, 1.0])]


def run(env: str, algorithm: str, seed: int, score: float, **changes):
    """Return a run to the end with a return and a curve."""
    point = {"env": env, "backend": "pycuda", "n_envs": 64, "algorithm": algorithm, "learner": "shared"}
    metrics = {
        name: Metric.exact(value, "return", "higher")
        for name, value in (("return_before", 20.0), ("return_after", score))
    }
    curve = Curve(env_steps=[10, 20, 30], seconds=[1.0, 2.0, 3.0], mean_return={"shared": [None, 100.0, score]})
    point |= {"threshold": 220.0, "seed": seed, "until": "end"} | changes
    return record(case="learn", scope="learn", point=point, metrics=metrics, curve=curve, **UNTIMED)


RUNS = [
    run(env, algorithm, seed, 100.0 * (1 + index) + 10 * seed)
    for env in ("cartpole", "acrobot")
    for index, algorithm in enumerate(("A2C", "PPO"))
    for seed in range(3)
]


def test_statistics_are_those_of_rliable():
    """Values of rliable 1.2.0 on the same scores, (seeds, tasks).

    They are ``aggregate_iqm``, ``probability_of_improvement`` and ``create_performance_profile``.
    """
    assert interquartile_mean_of(X)[0] == pytest.approx(0.65)
    assert probability_of_improvement(X, Y)[0] == pytest.approx(0.53125)
    assert probability_of_improvement(Y, X)[0] == pytest.approx(1 - 0.53125)
    np.testing.assert_allclose(performance_profile(X, np.array([0.0, 0.45, 1.0]))[0], [1, 0.625, 0.25])


def test_bootstrap_draws_the_runs_of_each_task():
    """Runs that agree within each task have no interval, however far tasks are apart."""
    value, low, high = interquartile_mean_of([np.full(4, 0.0), np.full(4, 1.0)])
    assert value == low == high
    value, low, high = interquartile_mean_of(X)
    assert 0.2 < low < value < high < 1.2


def test_scores_are_normalised_over_shared_tasks():
    """A score is 0 at the untrained return and 1 at the threshold."""
    scores = scores_of([*RUNS, *(run("pendulum", "DDPG", seed, 100.0) for seed in range(2))])
    assert scores.tasks == ["CartPole", "Acrobot"]
    assert scores.left_out == ["DDPG", "Pendulum"]
    np.testing.assert_allclose(scores.matrix("A2C"), [[0.4, 0.4], [0.45, 0.45], [0.5, 0.5]])


def test_runs_that_cannot_be_mixed_are_refused():
    """Runs of one algorithm share all other axes."""
    with pytest.raises(
        ShowError, match=r"runs of A2C on cartpole must share backend \(got numba, pycuda\); add --where"
    ):
        scores_of([*RUNS, run("cartpole", "A2C", 7, 100.0, backend="numba")])
    with pytest.raises(ShowError, match=r"DDPG on pendulum: needs two seeds or more \(got one\)"):
        scores_of([*RUNS, run("pendulum", "DDPG", 0, 100.0)])
    with pytest.raises(ShowError, match="needs runs to the end"):
        scores_of([])
    with pytest.raises(ShowError, match=r"PPO on cartpole must share population \(got 8, absent\)"):
        scores_of([*RUNS, run("cartpole", "PPO", 0, 100.0, population=8)])


def test_scores_need_a_threshold_above_the_untrained_return():
    """Otherwise a score divides by zero, or a better return scores lower."""
    with pytest.raises(ShowError, match=r"threshold of cartpole must be above its untrained return, 20 \(got 20\)"):
        scores_of([run("cartpole", "PPO", seed, 30.0, threshold=20.0) for seed in range(2)])


def test_exports_take_any_record(tmp_path):
    """An algorithm may have any name; a run without its curve is named."""
    file, out = tmp_path / "r.jsonl", tmp_path / "out"
    for seed in range(2):
        append(file, run("cartpole", "file", seed, 100.0).model_copy(update={"curve": None}))
    bench("export", "rliable", file, "--out", out)
    assert dict(np.load(out))["file"].shape == (2, 1)
    assert "needs a learning curve of each run (got none of learn[" in bench(
        "export", "marl-eval", file, "--out", out, exits=1
    )


def test_command_and_exports(tmp_path):
    """The command prints both tables and draws; exports have the runs."""
    file = tmp_path / "runs.jsonl"
    for each in RUNS:
        append(file, each)
    said = bench("learning", file, "--out", tmp_path)
    assert "all tasks   3 (few)" in said
    assert "0.000 (0.000 to 0.000)" in said, "PPO is better in every pair"
    assert (tmp_path / "performance-profiles.png").stat().st_size > 1_000
    bench("export", "rliable", file, "--out", tmp_path / "scores.npz")
    with np.load(tmp_path / "scores.npz") as scores:
        assert {name: scores[name].shape for name in scores} == {"A2C": (3, 2), "PPO": (3, 2)}
    bench("export", "marl-eval", file, "--out", tmp_path / "runs.json")
    tasks = json.loads((tmp_path / "runs.json").read_text())["warpdrive_min"]
    one = tasks["CartPole"]["PPO"]["seed_2"]
    assert one["absolute_metrics"] == {"return": [220.0]}
    assert (one["step_1"], one["step_20"]) == (
        {"step_count": 20, "return": [100.0]},
        {"step_count": 30, "return": [220.0]},
    )
    assert len(one) == 21

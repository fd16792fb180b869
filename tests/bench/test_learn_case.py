"""The case `learn`: curves to a threshold, of which every seed counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import sweep
from bench.case import Check, Facts
from bench.cases import learn_case as learn
from bench.cases.learn_case import TASKS, Task
from bench.cases.learn_case import _point as point
from bench.cases.training import shipped
from bench.measure import Once
from bench.record import Context, Curve, Measurement, Metric, read
from bench.stats import interquartile_band, interquartile_mean
from tests.bench.fakes import case, in_this_process
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.evaluation import Score

EASY = Task(env="cartpole", algorithm="A2C", threshold=60.0)


@pytest.fixture(scope="module")
def trial():
    made = learn.learn(point(EASY, "host", seed=3))
    return made, made.check(), made.run(), made.check()


def test_training_ends_with_the_row_that_reaches_the_threshold(trial):
    """The last row of the curve is the first one with the threshold, and it is what the figures say."""
    _, _, course, _ = trial
    returns = course.curve.mean_return["shared"]
    assert returns[-1] >= 60
    assert all(value is None or value < 60 for value in returns[:-1])
    assert course.metrics["env_steps_to_threshold"].value == course.curve.env_steps[-1]
    assert course.metrics["seconds_to_threshold"].value == course.curve.seconds[-1]
    assert course.metrics["final_return"].value == returns[-1]
    assert course.unread == {}


def test_curve_has_a_row_for_each_line_of_metrics(trial):
    """Steps and seconds grow from row to row, from the first iteration on."""
    _, _, course, _ = trial
    curve = course.curve
    assert len(curve.env_steps) == len(curve.seconds) == len(curve.mean_return["shared"]) > 1
    assert curve.env_steps[0] == shipped("cartpole", "_a2c").trainer.train_batch_size
    assert np.all(np.diff(curve.env_steps) > 0)
    assert np.all(np.diff(curve.seconds) > 0)
    assert curve.seconds[0] > 0


def test_evaluation_shows_what_was_learned(trial):
    """Greedy episodes are longer after training than before, on both backends alike."""
    _, before, course, after = trial
    assert course.metrics["return_after"].low > course.metrics["return_before"].high
    for seen in (before, after):
        assert seen.passed, seen
        assert "on cpu" in seen.oracle


def test_policy_that_plays_otherwise_elsewhere_is_refused(trial, monkeypatch):
    """Returns further apart than chance explains fail the point."""
    scores = iter([Score(100.0, 1.0, 100.0, 100.0, 20), Score(106.0, 1.0, 106.0, 106.0, 20)])
    monkeypatch.setattr(learn.evaluation, "evaluate", lambda *_, **__: {"shared": next(scores)})
    seen = trial[0].check()
    assert not seen.passed
    assert seen.max_error == 6


def test_seed_that_does_not_get_there_is_recorded(monkeypatch):
    """With its episodes used up a run ends with a curve and a last return, and says why there is no time."""
    config = shipped("cartpole", "_a2c")
    short = replace(config, trainer=replace(config.trainer, num_episodes=100))
    monkeypatch.setattr(learn, "shipped", lambda *_: short)
    course = learn.learn(point(replace(EASY, threshold=499.0), "host", 0, n_envs=64)).run()
    assert "seconds_to_threshold" not in course.metrics
    assert "env_steps_to_threshold" not in course.metrics
    assert course.metrics["final_return"].value < 499
    assert course.unread == {"seconds_to_threshold": "not reached in all its episodes"}
    assert course.curve.env_steps[-1] == 100 * 500 // 2048 * 2048


def test_first_episodes_to_end_do_not_count_alone():
    """In Tag GridWorld only caught runners end the first episodes: their mean is far above what follows."""
    task = next(task for task in TASKS if (task.env, task.learner) == ("tag_gridworld", "tagger"))
    trainer = learn.Student(task.env, learn.settings(point(task, "host", 0)), task.learner, task.threshold)
    first = trainer.train(1)
    assert first["tagger/mean_episodic_return"] > task.threshold
    assert trainer.returns == [{"tagger": None, "runner": None}]
    assert not trainer.has_reached_return
    trainer.train(9)
    assert trainer.returns[-1]["tagger"] < task.threshold


@pytest.mark.parametrize("task", [TASKS[1], TASKS[4]], ids=["PPO", "DDPG"])
def test_warm_up_leaves_no_trace(task):
    """Three iterations after a warm-up give the weights to the bit that they give without."""

    def learned(is_warm: bool) -> tuple[int, torch.Tensor]:
        trainer = learn.Student(task.env, learn.settings(point(task, "host", 0)), task.learner, task.threshold)
        started = trainer.weights()
        if is_warm:
            assert trainer.warm_up() > 0
            assert torch.equal(trainer.weights(), started)
        trainer.train(3)
        assert not torch.equal(trainer.weights(), started) or task.algorithm == "DDPG", "must have learned"
        return trainer.env_steps, trainer.weights()

    (n_cold, cold), (n_warm, warm) = learned(False), learned(True)
    assert n_cold == n_warm
    assert torch.equal(cold, warm)


def test_figures_follow_from_the_curve():
    """By hand: the third row is the first at 10; rows in which no episode ended count for nothing."""
    curve = Curve(
        env_steps=[100, 200, 300, 400], seconds=[0.5, 1.0, 1.5, 2.0], mean_return={"p": [None, 9.0, 10.0, None]}
    )
    found = learn.figures(curve, "p", 10.0)
    assert {name: metric.value for name, metric in found.items()} == {
        "env_steps_to_threshold": 300,
        "seconds_to_threshold": 1.5,
        "final_return": 10.0,
        "env_steps_per_s": 200.0,
    }
    assert set(learn.figures(curve, "p", 10.1)) == {"final_return", "env_steps_per_s"}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.env}-{task.algorithm}-{task.learner}")
def test_settings_are_the_shipped_ones_with_one_learner(task):
    """Only the learner learns; twice the environments play twice the episodes, batch by batch."""
    own = RunConfig.from_dict(learn.settings(point(task, "host", 4)))
    config = shipped(task.env, f"_{task.algorithm.lower()}")
    assert [name for name, policy in own.policy.items() if policy.to_train] == [task.learner]
    assert own.policy[task.learner] == config.policy[task.learner]
    assert (own.trainer.seed, own.trainer.env_backend) == (4, "host")
    double = RunConfig.from_dict(learn.settings(point(task, "host", 4, 2 * task.n_envs))).trainer
    assert double.train_batch_size == 2 * config.trainer.train_batch_size
    assert double.num_episodes == 2 * config.trainer.num_episodes


def test_every_task_is_learned_from_five_seeds_on_every_compiled_backend():
    """Presets paper and full have them all, and CartPole on NumPy; default is content with one run a backend."""
    points = learn.learn_points("paper")
    for task in TASKS:
        for backend in ("host", "numba", "pycuda"):
            assert all(point(task, backend, seed) in points for seed in range(5))
    assert {each["env"] for each in points if each["backend"] == "cpu"} == {"cartpole"}
    assert [each["backend"] for each in learn.learn_points("default")] == ["cpu", "host", "numba", "pycuda"]


def test_crowded_points_are_those_of_claims():
    """Preset paper has 2,048 environments of CartPole and Acrobot; full also what PureJaxRL was measured on."""

    def crowds(preset, env, algorithm):
        points = [each for each in learn.learn_points(preset) if (each["env"], each["algorithm"]) == (env, algorithm)]
        return {(each["n_envs"], each.get("precision")) for each in points if each["n_envs"] >= 2_048}

    tf32 = {(2_048, None), (2_048, "tf32")}
    assert crowds("paper", "acrobot", "PPO") == crowds("full", "acrobot", "PPO") == {(2_048, None)}
    assert crowds("paper", "cartpole", "PPO") == crowds("paper", "cartpole", "A2C") == tf32
    more = {(n_envs, precision) for n_envs in (16_384, 65_536) for precision in (None, "tf32")}
    assert crowds("full", "cartpole", "PPO") == tf32 | more


# ------------------------------------------------------------------ records of what is run once


def fake_once(seen: Measurement) -> Once:
    """Return a point that is right and is run once."""
    facts = Facts(mode="eager", device=torch.device("cpu"), threads=1)
    return Once(run=lambda: seen, check=lambda: Check(True, 0.0, "by hand"), facts=facts)


def test_record_of_what_is_run_once_has_its_curve(tmp_path, monkeypatch):
    """Its curve, figures and notes stand in the record, which is read as it was written."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    curve = Curve(env_steps=[10, 20], seconds=[0.1, 0.2], mean_return={"p": [None, 1.5]})
    metric = Metric(value=1.5, unit="return", direction="higher", low=1.5, high=1.5)
    figures, notes = {"final_return": metric}, {"how": "by hand"}
    course = Measurement(curve=curve, metrics=figures, notes=notes, unread={"seconds": "no"})
    fake = case(lambda _: fake_once(course), 1)
    context = Context.here("smoke", run_id="test")
    (record,) = sweep.run(sweep.jobs("smoke", {}, {fake.name: fake}), context, tmp_path / "r.jsonl", in_this_process)
    assert record.is_evidence
    assert record.curve == curve
    assert record.metrics == {"final_return": metric}
    assert record.samples_ns is record.work_per_run is record.telemetry is record.roofline is None
    assert record.notes["how"] == "by hand"
    assert set(record.unread) == {"seconds", "roofline", "telemetry"}
    assert read(tmp_path / "r.jsonl") == [record]


def test_what_is_run_once_is_not_timed_under_the_simulator(tmp_path, monkeypatch):
    """Its seconds would mean nothing."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    fake = case(lambda _: fake_once(None), 1)
    context = Context.here("smoke", run_id="test")
    (record,) = sweep.run(sweep.jobs("smoke", {}, {fake.name: fake}), context, tmp_path / "r.jsonl", in_this_process)
    assert record.status == "failed"
    assert "NUMBA_ENABLE_CUDASIM" in record.reason


# ------------------------------------------------------------------ statistics over seeds


def test_interquartile_mean_leaves_out_a_quarter_at_each_end():
    """Of five values the middle three count, of four the middle two, of three all."""
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0])) == 2
    assert interquartile_mean(np.array([9.0, 1.0, 3.0, -7.0])) == 2
    assert interquartile_mean(np.array([0.0, 1.0, 5.0])) == 2


def test_band_of_equal_runs_has_no_width_and_others_hold_the_mean():
    """Where all seeds agree so do all resamples; where they differ the interval is around the mean."""
    values = np.stack([np.full(5, 3.0), np.array([1.0, 2.0, 3.0, 4.0, 5.0])], axis=1)
    low, high = interquartile_band(values)
    assert (low[0], high[0]) == (3, 3)
    assert 1 <= low[1] < interquartile_mean(values)[1] == 3 < high[1] <= 5

"""Training to a threshold: curves of which every seed counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.record import Curve
from bench.workloads import learn
from bench.workloads.learn import TASKS, LearningRun, Task, settings, task_point
from bench.workloads.train import shipped
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.evaluation import Score

EASY = Task(env="cartpole", algorithm="A2C", threshold=60.0)


def learning_run(task: Task) -> LearningRun:
    return LearningRun(task.env, settings(task_point(task, "host", 0)), task.learner, task.threshold)


@pytest.fixture(scope="module")
def once():
    made = learn.learn(task_point(EASY, "host", seed=3))
    return made, made.check(), made.run(), made.check()


def test_training_ends_with_the_row_that_reaches_the_threshold(once):
    """The last row of the curve is the first one with the threshold, and it is what the figures say."""
    _, _, got, _ = once
    returns = got.curve.mean_return["shared"]
    assert returns[-1] >= 60
    assert all(value is None or value < 60 for value in returns[:-1])
    assert got.metrics["env_steps_to_threshold"].value == got.curve.env_steps[-1]
    assert got.metrics["seconds_to_threshold"].value == got.curve.seconds[-1]
    assert got.metrics["final_return"].value == returns[-1]
    assert got.unread == {}


def test_curve_has_a_row_for_each_line_of_metrics(once):
    """Steps and seconds grow from row to row, from the first iteration on."""
    curve = once[2].curve
    assert len(curve.env_steps) == len(curve.seconds) == len(curve.mean_return["shared"]) > 1
    assert curve.env_steps[0] == shipped("cartpole", "_a2c").trainer.train_batch_size
    assert np.all(np.diff(curve.env_steps) > 0)
    assert np.all(np.diff([0, *curve.seconds]) > 0)


def test_evaluation_shows_what_was_learned(once):
    """Greedy episodes are longer after training than before, on both backends alike."""
    _, before, got, after = once
    assert got.metrics["return_after"].low > got.metrics["return_before"].high
    for check in (before, after):
        assert check.passed, check
        assert "on cpu" in check.oracle


def test_policy_that_plays_otherwise_elsewhere_is_refused(once, monkeypatch):
    """Returns further apart than chance explains fail the point."""
    scores = iter([Score(100.0, 1.0, 100.0, 100.0, 20), Score(106.0, 1.0, 106.0, 106.0, 20)])
    monkeypatch.setattr(learn.evaluation, "evaluate", lambda *_, **__: {"shared": next(scores)})
    check = once[0].check()
    assert not check.passed
    assert check.max_error == 6


def test_seed_that_does_not_get_there_is_recorded(monkeypatch):
    """With its episodes used up a run ends with a curve and a last return, and says why there is no time."""
    config = shipped("cartpole", "_a2c")
    short = config.replace(trainer=config.trainer.replace(num_episodes=100))
    monkeypatch.setattr(learn, "shipped", lambda *_: short)
    got = learn.learn(task_point(replace(EASY, threshold=499.0), "host", 0, n_envs=64)).run()
    assert not {"seconds_to_threshold", "env_steps_to_threshold"} & got.metrics.keys()
    assert got.metrics["final_return"].value < 499
    assert got.unread.keys() == {"seconds_to_threshold"}
    assert got.curve.env_steps[-1] == 100 * 500 // 2048 * 2048


def test_first_episodes_to_end_do_not_count_alone():
    """In Tag GridWorld only caught runners end the first episodes: their mean is far above what follows."""
    task = next(task for task in TASKS if (task.env, task.learner) == ("tag_gridworld", "tagger"))
    trainer = learning_run(task)
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
        trainer = learning_run(task)
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
    assert {name: metric.value for name, metric in learn.figures(curve, "p", 10.0).items()} == {
        "env_steps_to_threshold": 300,
        "seconds_to_threshold": 1.5,
        "final_return": 10.0,
        "env_steps_per_s": 200.0,
    }
    assert set(learn.figures(curve, "p", 10.1)) == {"final_return", "env_steps_per_s"}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.env}-{task.algorithm}-{task.learner}")
def test_settings_are_the_shipped_ones_with_one_learner(task):
    """Only the learner learns; twice the environments play twice the episodes, batch by batch."""
    own = RunConfig.from_dict(settings(task_point(task, "host", 4)))
    config = shipped(task.env, f"_{task.algorithm.lower()}")
    assert [name for name, policy in own.policy.items() if policy.to_train] == [task.learner]
    assert own.policy[task.learner] == config.policy[task.learner]
    assert (own.trainer.seed, own.trainer.env_backend) == (4, "host")
    double = RunConfig.from_dict(settings(task_point(task, "host", 4, 2 * task.n_envs))).trainer
    assert double.train_batch_size == 2 * config.trainer.train_batch_size
    assert double.num_episodes == 2 * config.trainer.num_episodes


def test_every_task_is_learned_from_five_seeds_on_every_compiled_backend():
    """Presets paper and full have them all, and CartPole on NumPy; many environments are in claims."""
    points = learn.learn_points("paper")
    for task in TASKS:
        for backend in ("host", "numba", "pycuda"):
            assert all(task_point(task, backend, seed) in points for seed in range(5))
    assert {each["env"] for each in points if each["backend"] == "cpu"} == {"cartpole"}
    many = {(each["env"], each["n_envs"]) for each in points if each["n_envs"] >= 2_048}
    assert many == {("cartpole", 2_048), ("acrobot", 2_048)}
    assert max(each["n_envs"] for each in learn.learn_points("full")) == 65_536

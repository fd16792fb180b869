"""Training to a threshold: every seed counts in the curves."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.core.point import Curve
from bench.show import plots, render
from bench.show.columns import NOTHING
from bench.show.views.cases import learning_table, without_curve
from bench.show.views.run_charts import learning_chart
from bench.workloads import learn
from bench.workloads.learn import TASKS, WHOLE_TASKS, Task, task_point
from bench.workloads.points import SEEDS, points_of
from bench.workloads.setups import learning
from bench.workloads.setups.learning import LearningRun, settings
from bench.workloads.setups.trainers import shipped
from bench.workloads.shared import UNTIL_END, continues_after_threshold
from tests.bench.builders import record, seed_record
from warpdrive_min.envs import ENVS
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.evaluation import Score

EASY = Task(env="cartpole", algorithm="A2C", threshold=60.0)


def learning_run(task: Task) -> LearningRun:
    return LearningRun(task.env, settings(task_point(task, "host", 0)), task.learner, task.threshold)


@pytest.fixture(scope="module")
def once():
    made = learn.learn(task_point(EASY, "host", seed=3))
    return made, made.check(), made.run(), made.check()


def test_training_ends_with_the_row_that_reaches_the_threshold(once):
    """Training stops at the first row above the threshold."""
    _, _, got, _ = once
    returns = got.curve.mean_return["shared"]
    assert returns[-1] >= 60
    assert all(value is None or value < 60 for value in returns[:-1])
    assert got.metrics["env_steps_to_threshold"].value == got.curve.env_steps[-1]
    assert got.metrics["seconds_to_threshold"].value == got.curve.seconds[-1]
    assert got.metrics["final_return"].value == returns[-1]
    assert got.unread == {}


def test_curve_has_a_row_for_each_line_of_metrics(once):
    """Steps and seconds grow from row to row of a curve."""
    curve = once[2].curve
    assert len(curve.env_steps) == len(curve.seconds) == len(curve.mean_return["shared"]) > 1
    assert curve.env_steps[0] == shipped("cartpole", "_a2c").trainer.train_batch_size
    assert np.all(np.diff(curve.env_steps) > 0)
    assert np.all(np.diff([0, *curve.seconds]) > 0)


def test_evaluation_shows_what_was_learned(once):
    """Training raises the return of greedy episodes."""
    _, before, got, after = once
    assert got.metrics["return_after"].low > got.metrics["return_before"].high
    for check in (before, after):
        assert check.passed, check
        assert "on cpu" in check.oracle


def test_policy_that_plays_otherwise_elsewhere_is_refused(once, monkeypatch):
    """A policy with other returns on the reference backend fails."""
    scores = iter([Score(100.0, 1.0, 100.0, 100.0, 20), Score(106.0, 1.0, 106.0, 106.0, 20)])
    monkeypatch.setattr(learning.evaluation, "evaluate", lambda *_, **__: {"shared": next(scores)})
    check = once[0].check()
    assert not check.passed
    assert check.max_error == 6


def test_seed_that_does_not_get_there_is_recorded(monkeypatch):
    """A seed that misses the threshold has no time."""
    config = shipped("cartpole", "_a2c")
    short = config.replace(trainer=config.trainer.replace(num_episodes=100))
    monkeypatch.setattr(learning, "shipped", lambda *_: short)
    got = learn.learn(task_point(replace(EASY, threshold=499.0), "host", 0, n_envs=64)).run()
    assert not {"seconds_to_threshold", "env_steps_to_threshold"} & got.metrics.keys()
    assert got.metrics["final_return"].value < 499
    assert got.unread.keys() == {"seconds_to_threshold"}
    assert got.curve.env_steps[-1] == 100 * 500 // 2048 * 2048


def test_whole_run_goes_on_and_is_judged_by_its_best_weights_too(monkeypatch):
    """A complete run trains past the threshold.

    Last weights and best checkpoint both get scores.
    """
    config = shipped("cartpole", "_a2c")
    trainer, saving = config.trainer.replace(num_episodes=400), config.saving.replace(model_params_save_freq=10)
    short = config.replace(env={"episode_length": 100}, trainer=trainer, saving=saving)
    monkeypatch.setattr(learning, "shipped", lambda *_: short)
    made = learn.learn(task_point(replace(EASY, threshold=15.0), "host", 0, n_envs=64) | UNTIL_END)
    got = made.run()
    assert got.curve.env_steps[-1] == short.n_iterations(100) * 2048
    assert got.metrics["env_steps_to_threshold"].value < got.curve.env_steps[-1]
    assert not {"seconds_to_threshold", "env_steps_per_s"} & got.metrics.keys(), "evaluations are in its seconds"
    assert got.metrics["return_best"].value > got.metrics["return_before"].value
    assert got.unread == {}
    assert made.check().passed


def test_whole_run_of_several_policies_teaches_all_of_them():
    """Complete runs train all policies of an environment.

    Runs to a threshold train only the judged one.
    """
    task = next(task for task in WHOLE_TASKS if (task.env, task.algorithm) == ("tag_gridworld", "PPO"))
    for more, learners in ((UNTIL_END, ["tagger", "runner"]), ({}, ["tagger"])):
        own = RunConfig.from_dict(settings(task_point(task, "host", 0) | more))
        assert [name for name, policy in own.policy.items() if policy.to_train] == learners


@pytest.fixture(scope="module")
def population():
    config = shipped("cartpole", "_a2c")
    short = config.replace(env={"episode_length": 40}, saving=config.saving.replace(metrics_log_freq=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "shipped", lambda *_: short)
        made = learn.learn(task_point(replace(EASY, threshold=22.0), "host", 0, n_envs=8) | {"population": 3})
        return made, made.run()


def test_population_trains_until_each_member_is_there(population):
    """A population trains until every member reaches the threshold.

    Its metrics are medians over members, and the last member's; tables list members as seeds.
    """
    made, got = population
    members = got.notes["members"]
    steps = sorted(members["env_steps_to_threshold"])
    assert got.metrics["members_to_threshold"].value == len(steps) == 3
    assert got.metrics["env_steps_to_threshold"].value == steps[1]
    assert got.metrics["env_steps_to_threshold_of_all"].value == steps[2] == got.curve.env_steps[-1]
    assert got.metrics["seconds_to_threshold_of_all"].value == got.curve.seconds[-1]
    rate = got.metrics["env_steps_per_s"].value
    assert rate == pytest.approx(3 * got.curve.env_steps[-1] / got.curve.seconds[-1])
    assert got.metrics["return_after"].value == pytest.approx(np.mean(members["return_after"]))
    assert got.metrics["return_after"].value > got.metrics["return_before"].value
    assert len(got.curve.mean_return["shared"]) == len(got.curve.env_steps)
    assert made.check().passed
    assert got.unread == {}
    point = task_point(EASY, "host", 3) | {"population": 3}
    whole = seed_record(3, None, point=point, metrics=got.metrics, notes=got.notes, curve=got.curve)
    table = render.markdown(learning_table([whole]))
    assert "| 3 of 3 |" in table
    assert "a population of 3" in table


def test_members_that_miss_the_threshold_count():
    """Members that miss the threshold count in the median.

    Too few members give no interval, hence no median. One miss leaves no time of the last member.
    """
    members = {"env_steps_to_threshold": [5, 7, 9, None], "seconds_to_threshold": [1.0, 2.0, 3.0, None]}
    assert learning.figures_of_members(members, 1) == {}
    many = {name: [*values[:3]] * 30 + [None] for name, values in members.items()}
    got = learning.figures_of_members(many, 1)
    assert got.keys() == {"env_steps_to_threshold", "seconds_to_threshold"}
    assert got["env_steps_to_threshold"].value == 7


def test_every_run_config_that_learns_has_a_whole_run_from_twenty_seeds():
    """Preset full trains each shipped run config from 20 seeds.

    WarpDrive's configs are excluded; all run on a GPU.
    """
    whole = [each for each in points_of("learn", "full") if continues_after_threshold(each) and "precision" not in each]
    ran = [(point["env"], point["algorithm"].lower(), point["seed"]) for point in whole]
    files = (file for env in ENVS.values() for file in Path(inspect.getfile(env)).parent.glob("run_config_*.yaml"))
    names = [(file.parent.name, file.stem.removeprefix("run_config_")) for file in files]
    learning = [(env, name) for env, name in names if name in ("a2c", "ppo", "ddpg")]
    assert sorted(ran) == sorted((*config, seed) for config in learning for seed in range(20))
    assert {point["backend"] for point in whole} == {"pycuda"}


def test_table_and_curves_of_whole_runs_tell_the_end():
    """Complete runs show final returns and a panel per policy."""
    task = next(task for task in WHOLE_TASKS if (task.env, task.algorithm) == ("tag_gridworld", "PPO"))
    curve = Curve(env_steps=[100, 200], seconds=[1.0, 2.0], mean_return={"tagger": [1.0, 37], "runner": [0.5, -4]})
    records = [
        seed_record(seed, None, after, point=task_point(task, "host", seed) | UNTIL_END, curve=curve)
        for seed, after in enumerate((37.0, 25.0, 38.0))
    ]
    table = render.markdown(learning_table(records))
    assert "| 2 of 3 |" in table
    assert f"| 0 of 3 | not reached | {NOTHING} |" in table, "a run to the end has steps and is not timed"
    assert [(panel.title, panel.level, panel.xlabel) for panel in learning_chart(records).panels] == [
        ("Tag GridWorld (tagger), PPO, to the end, 100 environments, 3 seeds", 30.0, "environment steps"),
        ("Tag GridWorld (runner), PPO, to the end, 100 environments, 3 seeds", None, "environment steps"),
    ], "a run to the end is not timed"


def test_seeds_without_a_curve_are_not_charted():
    """Records of older versions have none."""
    records = [seed_record(seed, 9.0, 500.0) for seed in range(3)]
    charted = learning_chart([records[0].model_copy(update={"curve": None}), *records[1:]]).panels
    assert charted == learning_chart(records[1:]).panels


def test_precisions_that_training_is_timed_in_have_curves():
    """Each precision timed on a GPU has learning runs."""
    points = [point for point in points_of("learn", "full") if point["backend"] == "pycuda"]
    seeds = Counter((point["env"], point["algorithm"], point.get("precision", "fp32")) for point in points)
    timed = {(each["env"], each["algorithm"], each["precision"]) for each in points_of("train", "full")}
    tags = itertools.product(("tag_gridworld", "tag_continuous"), ("A2C", "PPO"), ("fp32", "tf32", "bf16"))
    lacking = {each for each in timed | set(tags) if seeds[each] < len(SEEDS)}
    assert {each[:2] for each in lacking} <= {("acrobot", "A2C")}


def test_training_speed_without_a_curve_is_named():
    """Timed precisions without a learning curve are listed."""
    axes = {"n_envs": 64, "network": "32-32", "algorithm": "PPO", "precision": "bf16"}
    fast = record(case="train", scope="train", point={"env": "cartpole", "backend": "pycuda", **axes}, threads=None)
    assert without_curve([fast, seed_record(0, 1.0)]) == ["CartPole with PPO in bf16"]
    assert without_curve([fast, seed_record(0, 1.0, point={"precision": "bf16"})]) == []


def test_every_seed_is_shown_beside_the_mean():
    """Table and chart show each seed, and the worst."""
    ends = (500.0, 145.0, 500.0, 500.0, 499.0)
    records = [seed_record(seed, 9.0, after) for seed, after in enumerate(ends)]
    table = learning_table(records)
    (cells,) = (dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.cells)
    worst, each = cells["return of the worst seed"], cells["return of each seed"]
    assert (worst, each) == ("145", "145 499 500 500 500")
    chart = learning_chart(records)
    panel, over_seconds = chart.panels
    assert over_seconds.xlabel == "seconds of training"
    mean, marks = panel.series
    assert chart.name == "learning"
    assert (marks.style["linestyle"], marks.style["color"]) == ("none", mean.style["color"])
    assert [(point.x, point.y, point.note) for point in marks.points] == [
        (2.0, after, f"seed {seed}") for seed, after in enumerate(ends)
    ]
    *_, threshold = plots.paint(chart).axes[0].get_lines()
    assert list(threshold.get_ydata()) == [475, 475]


def test_first_episodes_to_end_do_not_count_alone():
    """The first finished episodes alone do not reach the threshold.

    Tag GridWorld's first episodes end by a catch: their mean return is far too high.
    """
    wanted = ("tag_gridworld", "tagger", "PPO")
    task = next(task for task in TASKS if (task.env, task.learner, task.algorithm) == wanted)
    trainer = learning_run(task)
    first = trainer.train(1)
    assert first["tagger/mean_episodic_return"] > task.threshold
    assert trainer.returns == [{"tagger": None, "runner": None}]
    assert not trainer.has_reached_return
    trainer.train(4)
    assert trainer.returns[-1]["tagger"] < task.threshold


@pytest.mark.parametrize("task", [TASKS[1], TASKS[4]], ids=["PPO", "DDPG"])
def test_warm_up_leaves_no_trace(task):
    """A warm-up does not change the weights."""

    def learned(is_warm: bool) -> tuple[int, torch.Tensor]:
        trainer = learning_run(task)
        started = trainer.weights()
        if is_warm:
            assert trainer.warm_up() > 0
            assert torch.equal(trainer.weights(), started)
        trainer.train(2)
        assert not torch.equal(trainer.weights(), started) or task.algorithm == "DDPG", "must have learned"
        return trainer.env_steps, trainer.weights()

    (n_cold, cold), (n_warm, warm) = learned(False), learned(True)
    assert n_cold == n_warm
    assert torch.equal(cold, warm)


def test_figures_follow_from_the_curve():
    """Metrics follow from the curve's first row at the threshold."""
    curve = Curve(
        env_steps=[100, 200, 300, 400], seconds=[0.5, 1.0, 1.5, 2.0], mean_return={"p": [None, 9.0, 10.0, None]}
    )
    assert {name: metric.value for name, metric in learning.figures(curve, "p", 10.0).items()} == {
        "env_steps_to_threshold": 300,
        "seconds_to_threshold": 1.5,
        "final_return": 10.0,
        "env_steps_per_s": 200.0,
    }
    assert set(learning.figures(curve, "p", 10.1)) == {"final_return", "env_steps_per_s"}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.env}-{task.algorithm}-{task.learner}")
def test_settings_are_the_shipped_ones_with_one_learner(task):
    """Settings train one policy and scale episodes with environments."""
    own = RunConfig.from_dict(settings(task_point(task, "host", 4)))
    config = shipped(task.env, f"_{task.algorithm.lower()}")
    assert [name for name, policy in own.policy.items() if policy.to_train] == [task.learner]
    assert own.policy[task.learner] == config.policy[task.learner]
    assert (own.trainer.seed, own.trainer.env_backend) == (4, "host")
    double = RunConfig.from_dict(settings(task_point(task, "host", 4, 2 * task.n_envs))).trainer
    assert double.train_batch_size == 2 * config.trainer.train_batch_size
    assert double.num_episodes == 2 * config.trainer.num_episodes


def test_schedules_are_stretched_over_more_environments():
    """Schedules stretch with the number of environments."""
    assert learning.stretch([[0, 1e-3], [100, 0.0]], 2) == [[0, 1e-3], [200, 0.0]]
    assert learning.stretch({"actor": 1e-3, "critic": [[5, 0.1]]}, 2) == {"actor": 1e-3, "critic": [[10, 0.1]]}


@pytest.mark.parametrize("task", WHOLE_TASKS, ids=lambda task: f"{task.env}-{task.algorithm}")
def test_shipped_schedules_end_with_their_run(task):
    """No schedule is longer than its run.

    Complete runs save five checkpoints.
    """
    config = shipped(task.env, f"_{task.algorithm.lower()}")
    length = ENVS[task.env](**config.env).episode_length
    n_iterations = config.n_iterations(length)
    for policy in config.policy.values():
        for schedule in (policy.lr, policy.entropy_coeff):
            if isinstance(schedule, list):
                assert schedule[-1][0] <= config.trainer.num_episodes * length
    assert n_iterations // config.saving.model_params_save_freq >= 5


def test_every_task_is_learned_from_five_seeds_on_every_compiled_backend():
    """Preset full trains each task from five seeds.

    This holds on each compiled backend. Only CartPole and Acrobot have many environments.
    """
    points = points_of("learn", "full")
    for task in TASKS:
        for backend in ("host", "numba", "pycuda"):
            assert all(task_point(task, backend, seed) in points for seed in range(5))
    assert {each["env"] for each in points if each["backend"] == "cpu"} == {"cartpole"}
    many = {(each["env"], each["n_envs"]) for each in points if each["n_envs"] >= 2_048}
    assert many == {("cartpole", 2_048), ("acrobot", 2_048), ("cartpole", 16_384), ("cartpole", 65_536)}

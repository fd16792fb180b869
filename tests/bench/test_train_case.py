"""The case `train`: shipped runs in other sizes, held against a twin to the bit."""

from __future__ import annotations

import pytest
import torch

from bench.anchors import ANCHORS, anchor
from bench.cases import train_case as train
from bench.cases.train_case import _point as point
from bench.cases.training import WatchedTrainer, shipped
from warpdrive_min.errors import TrainingError
from warpdrive_min.training.config import RunConfig


@pytest.fixture(scope="module", params=["cpu", "host"])
def workload(request):
    return train.train(point(request.param, n_envs=4, n_steps=8, algorithm="A2C"))


def test_run_is_one_iteration_of_the_trainer(workload):
    """A run does as many steps as it declares, and its parts took time; without a graph no capture did."""
    assert workload.facts.work == {"env_steps": 32, "agent_steps": 32}
    trainer = workload.run.__self__
    before = trainer.env_steps
    workload.run()
    assert trainer.env_steps == before + 32
    assert workload.facts.notes["rollout_s"] > 0
    assert workload.facts.notes["update_s"] > 0
    assert workload.facts.notes["capture_s"] == 0
    assert workload.facts.mode == "eager"


def test_point_is_right_before_and_after(workload):
    """The weights move with every check; after the timing a twin on the other backend of the CPU has the same bits."""
    for said in ("none before the timing", "3 iterations of 8 environments against"):
        seen = workload.check()
        assert seen.passed, seen
        assert seen.max_error == 0
        assert seen.oracle.startswith(said)


def test_twin_that_differs_is_refused(workload, monkeypatch):
    """A twin off by less than rounding fails the point."""
    monkeypatch.setattr(train, "twins", lambda _: (1e-9, "by hand"))
    workload.check()  # before the timing there is none
    assert not workload.check().passed


def test_weights_that_stand_still_are_refused(workload, monkeypatch):
    """An iteration that teaches nothing fails the point, however fast it is."""
    monkeypatch.setattr(train, "twins", lambda _: (0.0, "by hand"))
    trainer = workload.run.__self__
    assert workload.check().passed
    monkeypatch.setattr(trainer, "iterate", lambda: None)
    assert not workload.check().passed


def test_weights_that_are_not_finite_are_refused(monkeypatch):
    """A network that has become NaN ends the check with an error."""
    monkeypatch.setattr(train, "twins", lambda _: (0.0, "by hand"))
    broken = train.train(point("host", n_envs=4, n_steps=8, algorithm="A2C"))
    trainer = broken.run.__self__
    with torch.no_grad():
        next(trainer.groups["shared"].acting.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="finite"):
        broken.check()


@pytest.mark.parametrize(
    ("env", "n_agents", "algorithm"),
    [("cartpole", 1, "PPO"), ("pendulum", 1, "DDPG"), ("tag_gridworld", 5, "A2C"), ("tag_continuous", 22, "PPO")],
)
def test_twins_of_all_kinds_agree_to_the_bit(env, n_agents, algorithm):
    """Minibatches, a replay buffer and two policies too give the same weights on both backends of the CPU."""
    network = "64-64" if algorithm == "DDPG" else "32-32"
    of_both = point("host", env=env, n_envs=8, n_agents=n_agents, n_steps=8, algorithm=algorithm, network=network)
    error, oracle = train.twins(of_both)
    assert error == 0
    assert "against cpu" in oracle
    fresh = WatchedTrainer(env, train.settings({**of_both, "n_envs": train.TWIN_ENVS}), exact=True).weights()
    assert (fresh - train._learned({**of_both, "n_envs": train.TWIN_ENVS})).abs().max() > 0, "must have learned"


def test_settings_are_the_shipped_ones_in_other_sizes():
    """What the axes do not say is as the run config says it."""
    config = RunConfig.from_dict(train.settings(point("host", n_envs=4, n_steps=8, algorithm="A2C", network="256-256")))
    own, want = config.policy["shared"], shipped("cartpole", "").policy["shared"]
    assert (own.lr, own.entropy_coeff, own.gamma) == (want.lr, want.entropy_coeff, want.gamma)
    assert own.model.fc_dims == (256, 256)
    assert (config.trainer.num_envs, config.trainer.train_batch_size) == (4, 32)


@pytest.mark.parametrize("each", ANCHORS, ids=lambda each: f"{each.env}-{each.n_envs}-{each.n_agents}-{each.algorithm}")
def test_point_of_every_reference_is_a_run(each):
    """Where others were measured, our run config is whole, of their sizes, and finds their figure again."""
    ours = point("pycuda", **each.axes)
    config = RunConfig.from_dict(train.settings(ours))
    assert config.trainer.train_batch_size == each.n_envs * each.n_steps
    assert {policy.algorithm for policy in config.policy.values()} == {each.algorithm}
    assert anchor(ours) is each
    if each.n_taggers is not None:
        assert config.env["num_taggers"] == each.n_taggers
        assert config.env["num_runners"] == each.n_agents - each.n_taggers


def test_points_of_all_references_are_measured_on_both_gpu_backends():
    """Preset default has every reference with Numba and with CUDA C, as a graph in fp32."""
    points = train.train_points("default")
    for each in ANCHORS:
        assert {
            each_point["backend"]
            for each_point in points
            if anchor(each_point) is each and (each_point["precision"], each_point["mode"]) == ("fp32", "graph")
        } == {"numba", "pycuda"}
    assert {each_point["precision"] for each_point in points} == {"fp32", "tf32", "bf16"}
    assert all(each_point in train.train_points("full") for each_point in points)


def test_least_operations_are_those_of_the_weights():
    """CartPole's 32-32 network has 4*32 + 32*32 + 32*2 + 32 weights: a row meets each once to act, twice to learn."""
    trainer = WatchedTrainer("cartpole", train.settings(point("host", n_envs=4, n_steps=8, algorithm="A2C")))
    weights = 4 * 32 + 32 * 32 + 32 * 2 + 32
    assert train.least_ops(trainer) == 32 * weights * 3
    assert train.least_bytes(trainer) == 32 * (trainer.wrapper.env.bytes_per_step + 2 * 4 * 4)

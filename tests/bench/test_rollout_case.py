"""The case `rollout`: whole rollouts, held against a twin to the bit."""

from __future__ import annotations

import pytest
import torch

from bench.cases import rollout_case
from bench.cases.rollout_case import _point as point
from warpdrive_min.constants import TIMESTEP


@pytest.fixture(scope="module", params=["cpu", "host"])
def workload(request):
    return rollout_case.rollout(point(request.param, "cartpole", 4, 1, 8))


def test_run_is_one_rollout(workload):
    """It is right before and after, and declares the steps that it plays."""
    for _ in range(2):
        seen = workload.check()
        assert seen.passed, seen
        assert "episodes took all 8 steps: True" in seen.detail
        workload.run()
    assert workload.facts.work == {"env_steps": 32, "agent_steps": 32}
    assert workload.facts.mode == "eager"


def test_twin_that_differs_is_refused(workload, monkeypatch):
    """A twin off by less than rounding fails the point."""
    monkeypatch.setattr(rollout_case, "twins", lambda _: (1e-9, "by hand"))
    workload.check()  # before the timing there is none
    assert not workload.check().passed


@pytest.mark.parametrize("missing", [1, 8])
def test_rollout_that_plays_too_few_steps_is_refused(monkeypatch, missing):
    """However fast it is: seven of eight steps are no rollout, nor is none."""
    monkeypatch.setattr(rollout_case, "twins", lambda _: (0.0, "by hand"))
    small = point("host", "cartpole", 4, 1, 8)
    trainer = rollout_case.player(small)
    data = trainer.wrapper.cuda_data_manager

    def run() -> None:
        data.tensor("rewards").fill_(1.0)
        data.tensor(TIMESTEP).add_(8 - missing)

    assert not rollout_case.checks(small, trainer, run)().passed


def test_rewards_that_are_not_finite_are_refused(monkeypatch):
    """A last step that wrote no rewards fails the point."""
    monkeypatch.setattr(rollout_case, "twins", lambda _: (0.0, "by hand"))
    small = point("host", "cartpole", 4, 1, 8)
    trainer = rollout_case.player(small)
    data = trainer.wrapper.cuda_data_manager
    check = rollout_case.checks(small, trainer, lambda: data.tensor(TIMESTEP).add_(8))
    assert not check().passed
    assert torch.isnan(data.tensor("rewards")).all()


def test_least_operations_are_those_of_who_acts():
    """CartPole's 32-32 network has 4*32 + 32*32 + 32*2 + 32 weights: a row meets each once."""
    trainer = rollout_case.player(point("host", "cartpole", 4, 1, 8))
    assert rollout_case.least_ops(trainer) == 32 * (4 * 32 + 32 * 32 + 32 * 2 + 32)


def test_points_have_all_axes():
    """Beyond smoke there are networks, precisions and modes, each on the same axes."""
    points = rollout_case.rollout_points("default")
    assert {each["precision"] for each in points} == {"fp32", "tf32", "bf16"}
    assert {each["mode"] for each in points} == {"eager", "graph"}
    assert len({each["network"] for each in points}) == 2
    assert {each.keys() == points[0].keys() for each in points} == {True}
    assert len({tuple(each.items()) for each in points}) == len(points)

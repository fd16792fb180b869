"""Shared observation rows train like one row per agent.

A shared row belongs to an environment.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.support import on_backends
from tests.training.builders import (
    A2C,
    ON_GPU,
    PPO,
    RUNS,
    differences,
    everything,
    make_run,
    require_same_weights,
    require_that_it_goes_on,
    weights,
)
from warpdrive_min.errors import ConfigError

BACKENDS = [*map(pytest.param, ("cpu", "host")), *ON_GPU]
TAG = {"num_taggers": 69, "grid_length": 9, "episode_length": 5}
LAYERS = {"fc_dims": [32, 16], "activation": "tanh"}
RULES = {"A2C": {**A2C, "model": LAYERS}, "PPO": {**PPO, "model": {**LAYERS, "shared": False}}}


def trainer_of(rule, backend, *, shares=True, precision="fp32", **given):
    """Return a trainer with shared rows, or one per agent."""
    run, made = ("tag_gridworld", TAG, {"shared": RULES[rule]}), {"n_envs": 6, "n_steps": 13, **given}
    settings = {"shared_observations": shares, "fused_rollout": False, "precision": precision}
    return make_run(run, backend, wrapper={"exact": True}, trainer=settings, **made)


def trainers(rule, backend, **given):
    """Return a trainer of either kind."""
    return [trainer_of(rule, backend, shares=shares, **given) for shares in (True, False)]


@on_backends("rule", RULES, BACKENDS, numba=["PPO"])
def test_rollouts_and_updates_are_those_on_the_row_of_each_agent(backend, rule):
    """Rollouts and updates equal those with a row per agent.

    Expanded rows, actions, rewards, ends are equal; values and weights within rounding.
    """
    one, other = trainers(rule, backend)
    assert one.why_no_shared_observations == ""
    assert other.why_no_shared_observations == "trainer.shared_observations is false"
    before = weights(one)
    for _ in range(2):
        buffers = []
        for trainer in (one, other):
            trainer.collect()
            buffers.append(trainer.groups["shared"].buffer)
        for name in ("actions", "rewards", "terminated", "truncated"):
            assert torch.equal(*(getattr(buffer, name) for buffer in buffers)), name
        own = slice(3 * 70, 4 * 70)
        for shared, each in (
            (buffers[0].observations, buffers[1].observations),
            (buffers[0].truncated_observations, buffers[1].truncated_observations),
        ):
            assert shared.shape == (*each.shape[:2], 1, each.shape[3])
            assert not shared[..., own].any()
        spread = buffers[0].observations.repeat(1, 1, 70, 1)
        spread[..., own] = torch.eye(70)
        assert torch.equal(spread, buffers[1].observations)
        torch.testing.assert_close(*(buffer.log_probs for buffer in buffers), rtol=0, atol=1e-5)
        for trainer in (one, other):
            trainer.update()
    assert buffers[1].truncated.any()
    require_same_weights(one, other, before, 2e-4)
    values = [trainer.groups["shared"].algorithm.values for trainer in (one, other)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-4)
    seen = [trainer.wrapper.cuda_data_manager.tensor("observations") for trainer in (one, other)]
    assert torch.equal(*seen)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_acts_and_learns_nearly_as_float32(backend):
    """Shared observations in bfloat16 train nearly like float32.

    Action probabilities are near float32's.
    """
    low, full = (trainer_of("PPO", backend, precision=precision) for precision in ("bf16", "fp32"))
    before = weights(full)
    buffers = []
    for trainer in (low, full):
        trainer.collect()
        buffers.append(trainer.groups["shared"].buffer)
        trainer.update()
    actions, log_probs, observations = (
        [getattr(buffer, name)[0] for buffer in buffers] for name in ("actions", "log_probs", "observations")
    )
    assert torch.equal(*observations), "both begin with the same rows"
    same = (actions[0] == actions[1]).all(-1)
    assert same.float().mean() > 0.95
    apart = (log_probs[0] - log_probs[1])[same].abs()
    assert 0 < apart.max() < 2e-2
    steps = [{name: weight - before[name] for name, weight in weights(trainer).items()} for trainer in (low, full)]
    for name, step in steps[0].items():
        assert step.any(), name
        assert step.abs().max() < 2 * steps[1][name].abs().max(), name


def test_runs_on_a_cpu_come_to_the_same(tmp_path):
    """CPU backends train the same with shared rows.

    NumPy writes each agent's row, one is stored; kernels write that one only.
    """
    found = []
    for backend in ("cpu", "host"):
        trainer = trainer_of("PPO", backend, basedir=tmp_path / backend)
        trainer.train(2)
        found.append(everything(trainer))
    assert differences(*found) == ["env/final_observations"]


def test_first_layers_that_are_small_see_the_row_of_each_agent():
    """Small first layers do not share rows by default.

    A run shares the observations of 70 agents, not of four.
    """
    few = make_run(("tag_gridworld", {**TAG, "num_taggers": 3}, {"shared": RULES["A2C"]}), "host")
    many = make_run(("tag_gridworld", TAG, {"shared": RULES["A2C"]}), "host")
    assert many.why_no_shared_observations == ""
    assert few.why_no_shared_observations.startswith(
        "trainer.shared_observations is null, and the first layer is small (got"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_goes_on_has_the_same_bits(backend, tmp_path):
    """A resumed run equals an uninterrupted one."""
    require_that_it_goes_on(partial(trainer_of, "A2C", backend), tmp_path)


ONE_LAYER = ("tag_gridworld", TAG, {"shared": {**PPO, "model": {"fc_dims": [32]}}})
PARTIAL = ("tag_gridworld", {**TAG, "use_full_observation": False}, RUNS["shared, grid"][2])


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("shared", "has no own_columns"),
        ("two policies", "several policies"),
        (ONE_LAYER, "no kernel learns with this network"),
        (PARTIAL, "has no own_columns"),
    ],
)
def test_what_cannot_be_shared_says_why(run, why):
    """A run that cannot share rows is refused with the reason."""
    with pytest.raises(ConfigError, match=f"shared_observations.*{why}"):
        make_run(run, "host", trainer={"shared_observations": True})

"""Running normalisation: moments and rewards as Gymnasium's, timing, permission."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.wrappers.utils import RunningMeanStd

from tests.support import BACKENDS_HERE
from tests.training.builders import (
    CLASSIC,
    DDPG,
    NORMALISED,
    PPO,
    TAG,
    differences,
    everything,
    make_buffer,
    make_run,
    refused,
)
from tests.training.models_support import Bare
from warpdrive_min import backends
from warpdrive_min.training.algorithms.returns import RewardScale
from warpdrive_min.training.models.normalisation import Moments, Normaliser
from warpdrive_min.training.record.trained import load_policies

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def test_normaliser_clips_and_leaves_actions_alone():
    """The normaliser clips observations, and leaves actions unchanged."""
    layer = Normaliser(2)
    layer.merge(Moments(torch.tensor([1.0, -1.0]).double(), torch.tensor([4.0, 0.25]).double(), 10**9))
    got = layer(torch.tensor([[2.0, 1000.0, 7.0]]))
    torch.testing.assert_close(got, torch.tensor([[0.5, 10.0, 7.0]]), **CLOSE)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_rewards_are_scaled_as_gymnasium_scales_them(backend):
    """Rewards are scaled like Gymnasium's: returns, moments and results.

    Three rollouts with both kinds of ends.
    """
    n_steps, n_envs, n_agents, gamma = 5, 4, 2, 0.9
    device = backends.get(backend).device
    buffer = make_buffer(n_steps, n_envs, n_agents, device=device)
    scale, theirs = RewardScale(backends.get(backend), buffer, gamma), RunningMeanStd(shape=())
    running = np.zeros((n_envs, n_agents))
    for rollout in range(3):
        generator = torch.Generator().manual_seed(rollout)
        rewards = torch.randn(n_steps, n_envs, n_agents, generator=generator) * 3 + 1
        rewards[2, 1, 0] = 1e4
        ends = torch.randint(0, 4, (2, n_steps, n_envs), generator=generator, dtype=torch.int32) == 0
        buffer.rewards.copy_(rewards)
        buffer.terminated.copy_(ends[0])
        buffer.truncated.copy_(ends[1])
        got = scale.scaled(buffer).cpu().numpy()
        returns = []
        for t in range(n_steps):
            running = running * gamma + rewards[t].double().numpy()
            returns.append(running)
            running = np.where(ends[:, t].any(0)[:, None].numpy(), 0.0, running)
        theirs.update(np.reshape(returns, -1))
        want = np.clip(rewards.numpy() / np.sqrt(theirs.var + 1e-8), -10, 10)
        np.testing.assert_allclose(got, want, **CLOSE)
        np.testing.assert_allclose(scale.rank_state()["returns"].cpu(), running, rtol=1e-4)
        torch.testing.assert_close(buffer.rewards.cpu(), rewards, rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("name", ["PPO", "DDPG"])
def test_moments_are_of_all_that_was_seen(name, backend, tmp_path):
    """Moments cover all observations, and change after the update.

    The optimiser's steps use the old ones; DDPG's targets share them.
    """
    model = {"actor": NORMALISED, "critic": NORMALISED} if name == "DDPG" else NORMALISED
    run = ("pendulum", CLASSIC, {"shared": {**(DDPG if name == "DDPG" else PPO), "model": model}})
    trainer = make_run(run, backend, basedir=tmp_path)
    group, theirs, seen = trainer.groups["shared"], RunningMeanStd(shape=(3,)), []
    layers = [
        module for network in group.models.values() for module in network.modules() if isinstance(module, Normaliser)
    ]
    update = group.algorithm.update
    group.algorithm.update = lambda buffer: (seen.append([layer.mean.clone() for layer in layers]), update(buffer))
    for _ in range(3):
        before = theirs.mean
        trainer.iterate()
        for mean in seen[-1] if len(seen) == trainer.iteration else []:
            np.testing.assert_allclose(mean.cpu(), before, **CLOSE)
        theirs.update(group.buffer.observations[:-1].flatten(0, 2).double().cpu().numpy())
    for layer in layers:
        np.testing.assert_allclose(layer.mean.cpu(), theirs.mean, **CLOSE)
        np.testing.assert_allclose(layer.variance.cpu(), theirs.var, rtol=1e-4)
    if name == "DDPG":
        target = group.algorithm.target_critic.model.fc.normaliser
        assert target.mean.data_ptr() == group.models["critic"].fc.normaliser.mean.data_ptr()


def test_first_ratio_is_one(tmp_path):
    """The first ratio of learner to player is 1.

    There is one optimiser step per rollout; three rollouts are checked.
    """
    once = {**PPO, "n_epochs": 1, "n_minibatches": 1, "model": NORMALISED, "normalize_rewards": True}
    trainer = make_run(("cartpole", CLASSIC, {"shared": once}), basedir=tmp_path)
    for _ in range(3):
        trainer.iterate()
        assert abs(float(trainer.groups["shared"].algorithm.metrics["approximate_kl"])) < 1e-6


def test_evaluation_and_policies_that_do_not_learn_leave_moments(tmp_path):
    """Evaluation and loaded policies leave the moments unchanged."""
    policies = {"runner": {**PPO, "model": NORMALISED}, "tagger": {"model": NORMALISED}}
    trainer = make_run(("tag_continuous", TAG, policies), basedir=tmp_path)
    trainer.train(2)
    before = everything(trainer)
    trainer.evaluate(3)
    assert not differences(before, everything(trainer))
    assert before["policy/tagger/model/fc.normaliser.count"] < 1 < before["policy/runner/model/fc.normaliser.count"]
    trainer.save_checkpoint()
    loaded = load_policies(trainer.folder, trainer.wrapper.env).models["runner"]
    assert torch.equal(loaded.fc.normaliser.mean, before["policy/runner/model/fc.normaliser.mean"])


def test_metrics_stay_in_rewards_as_they_are(tmp_path):
    """Reward scaling does not change episode metrics.

    They are compared before the first update: later, scaled rewards change what is learned.
    """
    rows = []
    for is_scaled in (False, True):
        run = ("cartpole", CLASSIC, {"shared": {**PPO, "normalize_rewards": is_scaled}})
        rows.append(make_run(run, basedir=tmp_path / str(is_scaled), n_steps=10).train(1))
    told = [{key: row[key] for key in ("shared/mean_episodic_return", "shared/mean_discounted_return")} for row in rows]
    assert told[0]["shared/mean_episodic_return"] == told[1]["shared/mean_episodic_return"]
    assert told[0]["shared/mean_discounted_return"] > told[1]["shared/mean_discounted_return"]


def test_model_without_the_layer_is_refused(factory):
    """Normalised observations need a model with the layer."""
    factory.add("plain", Bare)
    with refused("run config policy.shared.model.normalize_observations", True):
        make_run(("cartpole", CLASSIC, {"shared": {**PPO, "model": {**NORMALISED, "type": "plain"}}}))

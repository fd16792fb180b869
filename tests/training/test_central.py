"""Centralised critics: updates against float64, benefit, and permission."""

from __future__ import annotations

import copy

import pytest
import torch

from envs import ENVS
from tests.environments.clock import Clock
from tests.training import builders
from tests.training.builders import (
    A2C,
    CENTRAL,
    PPO,
    SEED,
    SMALL,
    TAG,
    differences,
    learn,
    make_trainer,
    refused,
    weights,
)
from tests.training.test_actor_critic import F, N, make_batch, plain_update
from warpdrive_min import EnvWrapper
from warpdrive_min.dialect.layout import WarpDriveLayout
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms.actor_critic import PPO as Ppo
from warpdrive_min.training.build import make_models
from warpdrive_min.training.config import CentralisedCriticConfig, ModelConfig, PolicyConfig, RunConfig
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.evaluation import evaluate
from warpdrive_min.training.loop.global_states import GlobalStates
from warpdrive_min.training.loop.rollout import RolloutRecorder
from warpdrive_min.training.models.central import CentralisedCritic, create_centralised_critic
from warpdrive_min.training.models.normalisation import normalisers
from warpdrive_min.training.paths import available
from warpdrive_min.training.record.trained import load_policies

SPACE = ActionSpace((4,), 1)
LAYERS = {"fc_dims": (8,), "activation": "tanh", "init_method": "xavier"}


def make_algorithm(batch):
    """Return PPO with a centralised critic, for one update."""
    torch.manual_seed(SEED)
    critic = CentralisedCriticConfig(**LAYERS)
    few = {"n_epochs": 1, "n_minibatches": 1, "gamma": 0.9, "clip_grad_norm": False}
    settings = PolicyConfig(
        to_train=True, algorithm="PPO", model=ModelConfig(**LAYERS), centralised_critic=critic, **few
    )
    n_agents = batch.rewards.shape[2]
    models = make_models("p", settings, batch.observations.shape[-1], SPACE)
    batch.global_states = batch.observations.flatten(2)
    batch.truncated_global_states = batch.truncated_observations.flatten(2)
    models["critic"] = create_centralised_critic(batch.global_states.shape[-1], n_agents, critic)
    return builders.make_algorithm(Ppo, settings, models, SPACE, batch)


# ------------------------------------------------------------------ the same in float64


class Both(torch.nn.Module):
    """Actor, and critic of the observations of all agents in a row."""

    def __init__(self, actor, critic):
        super().__init__()
        self.actor, self.critic = actor, critic

    def act(self, observations):
        return self.actor.act(observations)

    def value(self, observations):
        return self.critic(observations.flatten(-2))

    def forward(self, observations):
        return self.act(observations), self.value(observations)


def test_update_equals_float64():
    """One update of both networks equals the papers' formulas.

    Values, returns and losses in the metrics, the gradient, and all weights.
    """
    batch = make_batch(SPACE, make_models("p", PolicyConfig(model=ModelConfig(**LAYERS)), F, SPACE)["model"], drift=0.2)
    ours = make_algorithm(batch)
    with torch.no_grad():
        ours.critic.vf_head.bias.copy_(torch.randn(N))  # the agents' values differ
    both = copy.deepcopy(Both(ours.model, ours.critic)).double()
    want, gradient, _ = plain_update("PPO", ours.config, both, batch, SPACE)
    learn(ours, batch)
    assert ours.metrics["clip_fraction"].item() > 0
    for name, number in want.items():
        assert ours.metrics[name].item() == pytest.approx(number, rel=2e-4, abs=2e-5), name
    torch.testing.assert_close(ours.optimiser.gradient.double(), gradient, rtol=1e-4, atol=1e-5)
    for name, tensor in both.state_dict().items():
        part, _, key = name.partition(".")
        got = (ours.model if part == "actor" else ours.critic).state_dict()[key]
        torch.testing.assert_close(got.double(), tensor, rtol=0, atol=2e-5)


# ------------------------------------------------------------------ runs


def test_policies_act_without_their_critics(tmp_path):
    """Policies act without their critics, which checkpoints contain.

    A critic has an output per agent; playing builds only actors.
    """
    env = ENVS["tag_continuous"](**TAG)
    trainer = make_trainer(env, {"runner": {**A2C, **CENTRAL}, "tagger": {**PPO, **CENTRAL}}, basedir=tmp_path)
    trainer.train(2)
    tensors, _ = checkpoint.load(trainer.save_checkpoint())
    n_features = 5 * trainer.groups["runner"].arrays.n_features
    for policy, n_agents in (("runner", 3), ("tagger", 2)):
        assert tensors[f"policy/{policy}/critic/fc.0.0.weight"].shape == (8, n_features)
        assert tensors[f"policy/{policy}/critic/vf_head.weight"].shape == (n_agents, 8)
        assert not any("/model/vf_head" in name for name in tensors)
    trained = load_policies(trainer.folder, env)
    assert not any("vf_head" in name for model in trained.models.values() for name in model.state_dict())
    assert evaluate(trained.wrapper("cpu"), trained.models, trained.policies, n_episodes=3) == trainer.evaluate(3)


@pytest.mark.parametrize("policies", [["shared"], ["runner", "tagger"]])
def test_state_is_normalised_by_its_own_moments(policies, tmp_path):
    """A critic normalises the state by the state's own moments.

    They exist for each entry after an iteration, viewed or gathered.
    """
    critic = {"centralised_critic": {**SMALL, "normalize_observations": True}}
    env = ENVS["tag_continuous"](**TAG)
    trainer = make_trainer(env, {name: {**PPO, **critic} for name in policies}, basedir=tmp_path)
    trainer.iterate()
    for group in trainer.groups.values():
        (layer,) = normalisers(group.models["critic"])
        states = group.buffer.global_states[:-1].flatten(0, 1).double()
        torch.testing.assert_close(layer.mean, states.mean(0), rtol=1e-4, atol=1e-5)  # the start weighs 1e-4 of a row
        assert not normalisers(group.models["model"])


def test_weights_of_a_critic_come_from_a_checkpoint(tmp_path):
    """A checkpoint fills actor and critic, each by its ``model_ckpt_filepath``."""
    env = ENVS["tag_continuous"](**TAG)
    first = make_trainer(env, {"shared": {**PPO, **CENTRAL}}, basedir=tmp_path)
    saved = {"model_ckpt_filepath": str(first.save_checkpoint())}
    policy = {**PPO, "model": {**SMALL, **saved}, "centralised_critic": {**SMALL, **saved}}
    second = make_trainer(env, {"shared": policy}, basedir=tmp_path, folder="second", seed=8)
    assert not differences(weights(first), weights(second))


class Total(CentralisedCritic):
    """Critic whose values are learned multiples of the state's sum."""

    def __init__(self, n_features, n_agents, config):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(n_agents))

    def forward(self, states):
        return states.sum(-1, keepdim=True) * self.factor


class OnlyOne(Total):
    """Critic with one value for any number of agents."""

    def forward(self, states):
        return super().forward(states)[..., :1]


def test_critic_of_ones_own_joins_by_name(factory, tmp_path):
    """A user's critic is made by name, with its sizes.

    A wrong return type is refused.
    """
    factory.add("total", Total)
    policy = {**PPO, "centralised_critic": {"type": "total"}}
    trainer = make_trainer(ENVS["tag_continuous"](**TAG), {"shared": policy}, basedir=tmp_path)
    trainer.train(1)
    assert not torch.equal(weights(trainer)["policy/shared/critic/factor"], torch.ones(5))
    with refused("centralised_critic.type", "fully_connected"):
        create_centralised_critic(4, 2, CentralisedCriticConfig(type="fully_connected"))
    factory.add("only one", OnlyOne)
    with refused("model 'only one'", (2, 3, 1)):
        create_centralised_critic(4, 2, CentralisedCriticConfig(type="only one"))


# ------------------------------------------------------------------ permission


def test_critic_that_must_be_one_kernel_needs_a_gpu(tmp_path):
    """A fused critic without a GPU raises, naming the critic's key."""
    policy = {**PPO, "centralised_critic": {"fused": True}}
    with refused("run config policy.shared.centralised_critic.fused", available.triton_status("cpu")):
        make_trainer(ENVS["tag_continuous"](**TAG), {"shared": policy}, basedir=tmp_path)


def test_config_says_who_has_one():
    """Absent or null means no critic, an empty mapping the defaults."""
    for given, want in ((None, None), ({}, CentralisedCriticConfig()), (SMALL, CentralisedCriticConfig(fc_dims=(8,)))):
        config = RunConfig.from_dict({"policy": {"p": {"centralised_critic": given}}})
        assert config.policy["p"].centralised_critic == want
        assert list(config.policy["p"].models) == (["model"] if want is None else ["model", "critic"])
        assert RunConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"policy\.p\.centralised_critic: must be a valid dictionary"):
        RunConfig.from_dict({"policy": {"p": {"centralised_critic": True}}})


def test_last_observations_are_those_of_all_or_of_none():
    """Last observations must exist for all arrays or for none."""
    policies = {"even": [0, 2], "odd": [1]}
    wrapper = EnvWrapper(Clock(num_agents=3, policies=policies), num_envs=2, auto_reset=True)
    wrapper.reset()
    arrays = WarpDriveLayout(separate=True).arrays(wrapper, policies).values()
    recorders = {each.suffix: RolloutRecorder(wrapper, 2, each) for each in arrays}
    assert GlobalStates(arrays, recorders).truncated.shape == (1, 2, 6)
    recorders["_odd"].truncated_observations = None
    with refused("centralised critic", {"final_observations_even": True, "final_observations_odd": False}):
        GlobalStates(arrays, recorders)

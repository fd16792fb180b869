"""WarpDrive's models: constructor, results, weight names, and users' own models."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from example_envs.single_agent.classic_control.cartpole.cartpole import CUDAClassicControlCartPoleEnv
from example_envs.single_agent.classic_control.pendulum.pendulum import CUDAClassicControlPendulumEnv
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.models.factory import ModelFactory
from warp_drive.training.models.fully_connected import FullyConnected
from warp_drive.training.models.fully_connected_actor_critic import FullyConnectedActionValueCritic, FullyConnectedActor
from warp_drive.training.models.model_base import ModelBaseFullyConnected, apply_logit_mask
from warp_drive.training.trainers.trainer_a2c import TrainerA2C
from warp_drive.training.utils.data_loader import create_and_push_data_placeholders
from warp_drive.training.utils.ring_buffer import RingBufferManager
from warp_drive.training.utils.vertical_scaler import perform_auto_vertical_scaling

from tests.compat.builders import policy, settings
from tests.compat.written_models import Gated
from tests.support import TAG_CONFIGS
from warpdrive_min.errors import ConfigError, DataError
from warpdrive_min.training.models import parts
from warpdrive_min.training.scale import autoscale
from warpdrive_min.training.trainer import Trainer

CONFIG = {"fc_dims": [8, 6]}


@pytest.fixture
def tag() -> tuple[EnvWrapper, dict[str, list[int]]]:
    """Tag in two environments, and its policies."""
    from example_envs.tag_continuous.tag_continuous import TagContinuous

    wrapper = EnvWrapper(TagContinuous(**TAG_CONFIGS["partial, exits"]), num_envs=2, env_backend="cpu")
    policies = {"runner": list(wrapper.env.runners), "tagger": list(wrapper.env.taggers)}
    wrapper.reset_all_envs()
    create_and_push_data_placeholders(wrapper, policy_tag_to_agent_id_map=policies, training_batch_size_per_env=3)
    return wrapper, policies


def test_logit_mask_forbids_what_is_0():
    """A mask of 0 gives probability 0; without one, logits stay."""
    logits = torch.tensor([5.0, 1.0, 1.0])
    assert apply_logit_mask(logits, torch.tensor([0, 1, 1])).softmax(-1).tolist() == [0.0, 0.5, 0.5]
    assert apply_logit_mask(logits) is logits


def test_fully_connected_sees_the_policys_agents(tag):
    """The model sees its policy's rows; probabilities sum to 1."""
    wrapper, policies = tag
    model = FullyConnected(wrapper, CONFIG, "tagger", policies)
    assert FullyConnected(wrapper, [6, 4], "tagger", policies).fc_dims == [6, 4]  # of WarpDrive 1.x
    seen = model.process_one_step_obs()
    everyone = wrapper.cuda_data_manager.tensor("observations")
    assert torch.equal(seen, everyone[:, policies["tagger"]])
    assert torch.equal(model.get_flattened_obs(), everyone)
    assert torch.equal(model.reshape_and_flatten_obs(everyone[..., None]), everyone)
    assert seen.abs().sum() > 0
    probabilities, value = model(seen)
    assert [each.shape[-1] for each in probabilities] == model.output_dims
    assert value.shape == seen.shape[:2]
    for each in probabilities:
        torch.testing.assert_close(each.sum(-1), torch.ones(seen.shape[:2]))
    batch = wrapper.cuda_data_manager.tensor("processed_observations_batch_tagger")
    model.push_processed_obs_to_batch(-1, seen)
    assert not batch.any()
    buffers = RingBufferManager()
    model.push_processed_obs_to_batch(1, seen, ring_buffer=buffers)  # none of the batch's name
    assert torch.equal(batch[1], seen)
    assert not batch[[0, 2]].any()
    for before in ({"batch_index": -1}, {"batch_index": 0, "batch_size": 3}):  # calls of trainers before 2.7
        assert not batch[0].any()
        torch.testing.assert_close(model(**before), (probabilities, value))
    assert torch.equal(batch[0], seen)
    name = "processed_observations_batch_tagger"
    assert name in wrapper.cuda_data_manager.device_data_via_torch
    buffers.add(name, data_manager=wrapper.cuda_data_manager)
    model.push_processed_obs_to_batch(2, seen + 1, ring_buffer=buffers)
    assert torch.equal(buffers.get(name).unroll(), seen[None] + 1)


def test_mask_of_the_last_step_counts(tag):
    """A mask with a single choice gives it probability 1."""
    wrapper, policies = tag
    model = FullyConnected(wrapper, CONFIG, "runner", policies)
    mask = torch.zeros(sum(model.output_dims), dtype=torch.int32)
    mask[[1, model.output_dims[0]]] = 1
    model.action_mask = mask
    first, second = model(model.process_one_step_obs())[0]
    assert (first[..., 1] == 1).all()
    assert (second[..., 0] == 1).all()


def test_state_dict_has_warpdrives_keys_and_comes_back(tag):
    """State dicts have WarpDrive's keys and shapes, and load again.

    A prefix of distributed training is accepted; wrong shapes raise.
    """
    wrapper, policies = tag
    first, second = (FullyConnected(wrapper, CONFIG, "runner", policies) for _ in range(2))
    state = first.state_dict()
    n_features, (n_first, n_second) = first.flattened_obs_size, first.output_dims
    assert {key: tuple(value.shape) for key, value in state.items()} == {
        "fc.0.0.weight": (8, n_features),
        "fc.0.0.bias": (8,),
        "fc.1.0.weight": (6, 8),
        "fc.1.0.bias": (6,),
        "policy_head.0.weight": (n_first, 6),
        "policy_head.0.bias": (n_first,),
        "policy_head.1.weight": (n_second, 6),
        "policy_head.1.bias": (n_second,),
        "vf_head.weight": (1, 6),
        "vf_head.bias": (1,),
    }
    observations = torch.randn(4, n_features)
    assert not torch.equal(first(observations)[1], second(observations)[1])
    second.load_state_dict({f"module.{key}": value for key, value in state.items()})
    torch.testing.assert_close(second(observations)[0], first(observations)[0], rtol=0, atol=0)
    with pytest.raises(DataError, match=r"fc\.0\.0\.weight must be of shape"):
        second.load_state_dict({**state, "fc.0.0.weight": torch.zeros(2, 2)})


def test_actor_and_critic_take_continuous_actions():
    """The DDPG actor and critic work with continuous actions."""
    wrapper = EnvWrapper(CUDAClassicControlPendulumEnv(episode_length=5), num_envs=2, env_backend="cpu")
    policies = {"shared": [0]}
    actor = FullyConnectedActor(wrapper, {**CONFIG, "output_w": 2.0}, "shared", policies)
    critic = FullyConnectedActionValueCritic(wrapper, CONFIG, "shared", policies)
    observations = torch.full((7, actor.flattened_obs_size), 50.0)
    (actions,) = actor(observations)
    assert actions.shape == (7, 1)
    assert 0 < actions.abs().max() <= 2
    assert critic(observations, [actions]).shape == (7,)
    assert torch.equal(critic(observations, [actions]), critic(obs=observations, action=actions))
    assert critic.state_dict()["fc.0.0.weight"].shape == (8, actor.flattened_obs_size + 1)


def test_factory_knows_the_built_in_models():
    """The factory knows built-in models; duplicate and unknown names raise."""
    assert ModelFactory.create("fully_connected") is FullyConnected
    assert ModelFactory.create("fully_connected_actor") is FullyConnectedActor
    with pytest.raises(ConfigError, match="exists already"):
        ModelFactory.add("fully_connected", "tests.compat.written_models", "Gated")
    with pytest.raises(ConfigError, match="unknown model"):
        ModelFactory.create("nothing")


# ------------------------------------------------------------------ users' own models


@pytest.fixture
def gated(monkeypatch):
    """The user's model under its name, for one test."""
    for factory in (ModelFactory, parts.ModelFactory):
        monkeypatch.setattr(factory, "_classes", dict(factory._classes))
    ModelFactory.add("gated", "tests.compat.written_models", "Gated")


def cartpole(num_envs: int = 4) -> EnvWrapper:
    return EnvWrapper(CUDAClassicControlCartPoleEnv(episode_length=10), num_envs=num_envs, env_backend="cpu")


def run_config(folder) -> dict:
    model = {"type": "gated", "fc_dims": [8], "gate": 3, "init_method": "xavier"}
    return settings(folder, {"shared": policy(model=model)}, num_episodes=12)


@pytest.mark.usefixtures("gated")
def test_users_model_trains_and_is_saved_under_its_own_names(tmp_path):
    """A user's model learns, and its saved file loads."""
    config = run_config(tmp_path)
    given = copy.deepcopy(config)
    trainer = TrainerA2C(cartpole(), config, {"shared": [0]}, verbose=False)
    assert config == given
    model = trainer.models["shared"]
    assert isinstance(model, Gated)
    assert isinstance(model, ModelBaseFullyConnected)
    before = copy.deepcopy(model.state_dict())
    assert before["gate"].tolist() == [3.0] * 8
    trainer.train()
    after = model.state_dict()
    assert all(not torch.equal(before[key], after[key]) for key in before)
    file = trainer.folder / "shared_120.state_dict"
    saved = torch.load(file, weights_only=True)
    assert saved.keys() == after.keys()
    assert {"gate", "fc.0.0.weight", "policy_head.0.weight", "vf_head.bias"} <= saved.keys()
    config["policy"]["shared"]["model"]["model_ckpt_filepath"] = str(file)
    again = TrainerA2C(cartpole(), config, {"shared": [0]}, results_dir="again", verbose=False)
    torch.testing.assert_close(again.models["shared"].state_dict(), after, rtol=0, atol=0)
    assert again.current_timestep == {"shared": 120}


@pytest.mark.usefixtures("gated")
def test_users_model_needs_a_trainer_of_warp_drive(tmp_path):
    """Our trainer refuses a user's model for WarpDrive's trainers.

    It lacks the model's arguments.
    """
    config = run_config(tmp_path)
    del config["policy"]["shared"]["model"]["gate"]
    with pytest.raises(ConfigError, match="'gated': is written for WarpDrive"):
        Trainer(cartpole(), config, {"shared": [0]}, verbose=False)


@pytest.mark.usefixtures("gated")
@pytest.mark.parametrize("name", ["Copied", "CopiedFrom1"])
def test_copy_of_warpdrives_network_finds_the_batches(tmp_path, name):
    """A copy of WarpDrive's network reads the rollout's data."""
    ModelFactory.add("copied", "tests.compat.written_models", name)
    config = run_config(tmp_path)
    config["policy"]["shared"]["model"] = {"type": "copied", "fc_dims": [8, 6]}
    wrapper = cartpole()
    trainer = TrainerA2C(wrapper, config, {"shared": [0]}, verbose=False)
    model, data = trainer.models["shared"], wrapper.cuda_data_manager
    assert model.shapes == {
        "processed_observations": (5, 4, 1, 4),
        "sampled_actions": (5, 4, 1, 1),
        "rewards": (5, 4, 1),
    }
    assert model.done_shape == (5, 4)
    assert not any(data.is_data_on_device(f"{each}_batch_shared") for each in model.shapes)
    trainer.train(1)
    assert (data.tensor("rewards_batch_shared") == 1).all()
    observations, buffer = data.tensor("processed_observations_batch_shared"), trainer.groups["shared"].buffer
    assert torch.equal(observations, buffer.observations[:-1])
    assert observations.data_ptr() == buffer.observations.data_ptr()
    again = type(model)(wrapper, {"fc_dims": [8, 6]} if name == "Copied" else [8, 6], "shared", {"shared": [0]})
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(observations), model(observations))
    create_and_push_data_placeholders(wrapper, training_batch_size_per_env=2)  # as a user's own trainer does
    assert data.get_shape("processed_observations_batch_shared") == (2, 4, 1, 4)


@pytest.mark.parametrize("ids", [str, int, np.int64])
def test_policies_name_agents_by_number_or_text(tmp_path, ids):
    """Policies may name agents by number or text."""
    config = settings(tmp_path, {"shared": policy()}, num_episodes=12)
    policies = {"shared": np.array([ids(0)]) if ids is np.int64 else (ids(0),)}
    trainer = TrainerA2C(cartpole(), config, policies, verbose=False)
    assert trainer.policy_tag_to_agent_id_map == {"shared": [0]}
    wrapper = cartpole()
    wrapper.reset_all_envs()
    create_and_push_data_placeholders(wrapper, policy_tag_to_agent_id_map=policies, training_batch_size_per_env=2)
    assert wrapper.cuda_data_manager.get_shape("rewards_batch_shared") == (2, 4, 1)
    with pytest.raises(ConfigError, match=r"policies: must hold each of the agents .0. once .got \['agent'\]"):
        TrainerA2C(cartpole(), config, {"shared": ["agent"]}, verbose=False)


@pytest.mark.usefixtures("gated")
def test_users_model_is_in_the_trainers_that_scaling_measures(tmp_path, monkeypatch):
    """The search for environments uses the user's model in each trainer."""
    gates = []

    def noted(model, *arguments, **named):
        make(model, *arguments, **named)
        gates.append(model.gate[0].item())

    def setup(run_configuration, verbose):
        n_envs = run_configuration["trainer"]["num_envs"]
        TrainerA2C(cartpole(n_envs), run_configuration, {"shared": [0]}, verbose=verbose)

    make = Gated.__init__
    monkeypatch.setattr(Gated, "__init__", noted)
    monkeypatch.setattr(autoscale, "MAX_ENVS", 8)
    config = run_config(tmp_path)
    scaled = perform_auto_vertical_scaling(setup, config, num_iters=1)
    assert scaled["policy"] == config["policy"]
    assert scaled["trainer"]["num_envs"] == 8
    assert gates == [3.0] * 3, "of two probes and of the trial of 8 environments"
    assert not list(tmp_path.iterdir())

"""WarpDrive's trainers: scripts, files, metrics, weights, episodes."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from example_envs.single_agent.classic_control.cartpole.cartpole import CUDAClassicControlCartPoleEnv
from example_envs.single_agent.classic_control.pendulum.pendulum import CUDAClassicControlPendulumEnv
from example_envs.tag_continuous.tag_continuous import TagContinuous
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.algorithms.policygradient.a2c import A2C
from warp_drive.training.deprecate.trainer import Trainer
from warp_drive.training.scripts.example_training_script_numba import setup_trainer_and_train as numba_script
from warp_drive.training.trainers.trainer_a2c import TrainerA2C
from warp_drive.training.trainers.trainer_base import Metrics, PerfStats, SamplerParamsLog, TrainerBase
from warp_drive.training.trainers.trainer_ddpg import TrainerDDPG

from tests.compat.builders import FOUR, N_ENVS, SMALL, THREADED, policy, settings, wrapped
from tests.compat.environments.towns.towns import Towns
from tests.compat.environments.treaties.treaties import CUDATreaties
from tests.compat.walkers import CUDAWalkers
from tests.support import on_backends, quick_compiler, run_python
from warpdrive_min.compat import scripts
from warpdrive_min.compat.project import DEFAULT_CONFIGS
from warpdrive_min.compat.trainers import run_config
from warpdrive_min.errors import ConfigError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/compat/training_script.py"
ON_GPU = [pytest.param(backend, marks=pytest.mark.gpu) for backend in ("numba", "pycuda")]
TAG = {"num_taggers": 2, "num_runners": 3, "grid_length": 10.0, "episode_length": 6, "seed": 3}


def ddpg(**more: Any) -> dict[str, Any]:
    model = {"actor": {"fc_dims": [8], "output_w": 2.0}, "critic": {"fc_dims": [8]}}
    return policy("DDPG", **{"tau": 0.05, "lr": {"actor": 0.01, "critic": 0.02}, "model": model, **more})


def trainer_of(
    env: Any, folder: Path, policies: dict[str, Any] | None = None, agents: dict[str, Any] | None = None, **trainer: Any
) -> TrainerA2C | TrainerDDPG:
    """Return a trainer, on the CPU with one policy by default."""
    wrapper = env if isinstance(env, EnvWrapper) else EnvWrapper(env, num_envs=N_ENVS, env_backend="cpu")
    config = settings(folder, policies or {"shared": policy()}, **{"num_envs": wrapper.n_envs, **trainer})
    kind = TrainerDDPG if config["policy"].get("shared", {}).get("algorithm") == "DDPG" else TrainerA2C
    agents = agents or {"shared": list(wrapper.env.action_space)}
    return kind(wrapper, config, agents, results_dir="run", verbose=False)


def cartpole(folder: Path, length: int = 6, **more: Any) -> TrainerA2C:
    return trainer_of(CUDAClassicControlCartPoleEnv(episode_length=length), folder, **more)


def pendulum(folder: Path) -> TrainerDDPG:
    return trainer_of(CUDAClassicControlPendulumEnv(episode_length=6), folder, {"shared": ddpg()}, n_step=2)


def tag(folder: Path) -> TrainerA2C:
    """Train the taggers of Tag Continuous alone."""
    env = TagContinuous(**TAG)
    agents = {"tagger": np.array(list(env.taggers)), "runner": list(env.runners)}
    return trainer_of(env, folder, {"runner": policy() | {"to_train": False}, "tagger": policy("PPO")}, agents)


@pytest.mark.parametrize("kind", [TrainerA2C, TrainerDDPG, Trainer])
def test_trainer_refuses_methods_that_nobody_calls(kind):
    """A method that we never call is refused.

    A user's update must not silently be replaced by ours.
    """

    class Own(kind):
        def _update_model_params(self, iteration):
            return {}

    wrapper = EnvWrapper(CUDAClassicControlCartPoleEnv(episode_length=6), num_envs=N_ENVS)
    with pytest.raises(ConfigError, match=r"trainer Own: must not fill .* \(got \['_update_model_params'\]\); derive"):
        Own(wrapper, {}, {"shared": [0]})


# ------------------------------------------------------------------ scripts


@pytest.mark.parametrize(
    "backend",
    [
        "host",
        pytest.param("pycuda", marks=pytest.mark.gpu),
        pytest.param("numba", marks=[pytest.mark.gpu, pytest.mark.nightly]),  # compiles for a minute
    ],
)
def test_script_of_warpdrive_trains_unchanged(backend, tmp_path):
    """A script of WarpDrive trains unchanged in a new process."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    words = ("-m", "warpdrive_min.compat", SCRIPT, tmp_path, backend)
    said = run_python(*words, cwd=tmp_path, PYTHONPATH=path, OMP_NUM_THREADS="1", **quick_compiler(tmp_path))
    assert said.splitlines() == [
        "tag_continuous 3 runner_240.state_dict tagger_240.state_dict",
        "tag_gridworld 3 shared_240.state_dict",
        "single_cartpole 3 shared_240.state_dict",
    ]


@on_backends(
    "name",
    ["tag_continuous", "tag_gridworld_with_reset_pool", "single_pendulum"],
    [pytest.param("cpu"), *ON_GPU],
    numba=["single_pendulum", "tag_gridworld_with_reset_pool"],
)
def test_setup_trainer_and_train_trains_warpdrives_run_configs(name, backend, tmp_path):
    """WarpDrive's function trains the config's environment and policies."""
    envs = {"tag_continuous": TAG, "tag_gridworld_with_reset_pool": {"grid_length": 5, "episode_length": 6}}
    policies = {
        "tag_continuous": {"runner": policy(), "tagger": policy()},
        "tag_gridworld_with_reset_pool": {"shared": policy("PPO")},
        "single_pendulum": {"shared": ddpg()},
    }[name]
    config = {"name": name, "env": envs.get(name, {"episode_length": 6}), **settings(tmp_path, policies)}
    scripts.setup_trainer_and_train(config, results_directory="here", verbose=False, env_backend=backend)
    parts = ["shared_actor", "shared_critic"] if name == "single_pendulum" else list(policies)
    files = {path.name for path in (tmp_path / "default/experiment/here").glob("*.state_dict")}
    assert files == {f"{part}_60.state_dict" for part in parts}


def test_setup_trainer_and_train_refuses_unknown_environments():
    """The error lists WarpDrive's names of environments.

    Each backend's function can be pickled.
    """
    with pytest.raises(ConfigError, match=r"unknown environment \(got 'chess'\); known are single_acrobot"):
        numba_script({"name": "chess", "policy": {}})
    assert pickle.loads(pickle.dumps(numba_script)).keywords == {"env_backend": "numba"}


# ------------------------------------------------------------------ a trainer


def test_attributes_are_warpdrives(tmp_path):
    """The attributes that users access exist, with WarpDrive's meaning."""
    trainer = tag(tmp_path)
    assert isinstance(trainer, TrainerBase)
    assert Trainer is TrainerA2C
    assert trainer.cuda_envs is trainer.wrapper
    assert trainer.policies == ["runner", "tagger"]
    assert trainer.policies_to_train == ["tagger"]
    assert list(trainer.trainers) == list(trainer.optimizers) == ["tagger"]
    assert (trainer.num_envs, trainer.training_batch_size, trainer.num_iters) == (N_ENVS, 20, 3)
    assert trainer.current_timestep == {"runner": 0, "tagger": 0}
    assert Path(trainer.save_dir) == tmp_path / "default/experiment/run"
    frozen, learning = (copy.deepcopy(trainer.models[name].state_dict()) for name in trainer.policies)
    trainer.train()
    assert trainer.current_timestep == {"runner": 60, "tagger": 60}
    torch.testing.assert_close(trainer.models["runner"].state_dict(), frozen, rtol=0, atol=0)
    assert not torch.equal(trainer.models["tagger"].state_dict()["vf_head.weight"], learning["vf_head.weight"])


def test_results_have_warpdrives_words(tmp_path):
    """Each log line has WarpDrive's keys, and a second run appends."""
    for run in (1, 2):
        trainer = cartpole(tmp_path)
        trainer.train()
        trainer.graceful_close()
        lines = [json.loads(line) for line in (trainer.folder / "results.json").read_text().splitlines()]
        assert [line["Iterations Completed"] for line in lines] == [1, 2, 3] * run
    assert not (trainer.folder / "metrics.jsonl").exists()
    last = lines[-1]
    words = {"Total loss", "Policy loss", "Value function loss", "Mean entropy", "Gradient norm", "Learning rate"}
    assert words | {"Mean episodic reward", "Mean episodic steps", "Current timestep"} <= last["shared"].keys()
    assert last["shared"]["Current timestep"] == 60
    assert last["shared"]["Learning rate"] == 0.01
    assert lines[1]["shared"]["Mean episodic reward"] == 6.0  # the pole stands for 6 steps, whatever is done
    assert last["Perf. Stats"] == trainer.perf_stats.get_perf_stats()
    assert last["Perf. Stats"]["Mean steps per sec (total)"] == 60 / trainer.perf_stats.total_time


def test_ddpg_results_have_warpdrives_words(tmp_path):
    """DDPG's results have losses, norms, rates and files of both networks."""
    trainer = pendulum(tmp_path)
    trainer.train()
    last = json.loads((trainer.folder / "results.json").read_text().splitlines()[-1])["shared"]
    for word in ("Actor loss", "Critic loss", "Gradient norm (Actor)", "Gradient norm (Critic)"):
        assert np.isfinite(last[word]), word
    assert (last["Learning rate (Actor)"], last["Learning rate (Critic)"]) == (0.01, 0.02)
    assert set(trainer.actor_optimizers) == set(trainer.critic_optimizers) == {"shared"}
    saved = torch.load(trainer.folder / "shared_critic_60.state_dict", weights_only=True)
    torch.testing.assert_close(saved, trainer.critic_models["shared"].state_dict(), rtol=0, atol=0)


def test_loss_by_warpdrives_rule_is_that_of_its_algorithm(tmp_path):
    """With `compat: warpdrive`, the loss is WarpDrive's A2C loss."""
    still = policy(lr=0.0, gamma=0.9, vf_loss_coeff=0.5, entropy_coeff=0.1, normalize_advantage=True)
    trainer = cartpole(tmp_path, policies={"shared": still}, compat="warpdrive")
    row = trainer.train(2)
    batch = trainer.groups["shared"].buffer
    ends = batch.terminated | batch.truncated
    assert 0 < ends.sum() < ends.numel()
    probabilities, values = trainer.models["shared"](batch.observations[:-1])
    by_hand = A2C(0.9, normalize_advantage=True, vf_loss_coeff=0.5, entropy_coeff=0.1)
    loss, _ = by_hand.compute_loss_and_metrics(0, batch.actions, batch.rewards, ends, probabilities, values)
    assert row["shared/loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours = cartpole(tmp_path, policies={"shared": still}).train(2)
    assert ours["shared/loss"] != pytest.approx(loss.item(), rel=1e-3)  # time limits bootstrap


# ------------------------------------------------------------------ weights


def test_weights_are_saved_and_come_back(tmp_path):
    """Saved weights load by call or config, with their timestep."""
    trainer = cartpole(tmp_path)
    trainer.train()
    file = trainer.folder / "shared_60.state_dict"
    saved = torch.load(file, weights_only=True)
    assert list(saved) == list(trainer.models["shared"].state_dict())
    assert saved["policy_head.0.weight"].shape == (2, 8)
    other = cartpole(tmp_path / "other", seed=2)
    assert not torch.equal(other.models["shared"].state_dict()["vf_head.weight"], saved["vf_head.weight"])
    other.load_model_checkpoint()  # the config names none
    assert other.current_timestep == {"shared": 0}
    other.load_model_checkpoint({"shared": file})
    by_config = cartpole(
        tmp_path / "third", policies={"shared": policy(model={"fc_dims": [8], "model_ckpt_filepath": str(file)})}
    )
    for each in (other, by_config):
        torch.testing.assert_close(each.models["shared"].state_dict(), saved, rtol=0, atol=0)
        assert each.current_timestep == {"shared": 60}
    other.train()
    assert (other.folder / "shared_120.state_dict").exists()


def test_save_model_checkpoint_follows_the_frequency(tmp_path):
    """Checkpoints are saved at the ends and multiples of the frequency."""
    trainer = cartpole(tmp_path)
    file = trainer.folder / "shared_0.state_dict"
    for iteration, is_saved in ((1, False), (0, True), (trainer.num_iters - 1, True), (100, True), (50, False)):
        trainer.save_model_checkpoint(iteration)
        assert file.exists() is is_saved, iteration
        file.unlink(missing_ok=True)


def test_targets_of_ddpg_follow_weights_that_are_loaded(tmp_path):
    """Loading weights also sets DDPG's target networks.

    WarpDrive leaves them at random values.
    """
    trainer = pendulum(tmp_path)
    trainer.train()
    files = {part: str(trainer.folder / f"shared_{part}_60.state_dict") for part in ("actor", "critic")}
    other = pendulum(tmp_path / "other")
    other.train(2)
    algorithm = other.trainers["shared"]
    assert not torch.equal(algorithm.target_actor.vector, algorithm.actor_optimiser.vector)
    other.load_model_checkpoint({"shared": files})
    for part in ("actor", "critic"):
        online = getattr(algorithm, f"{part}_optimiser").vector
        assert torch.equal(getattr(algorithm, f"target_{part}").vector, online)
        assert torch.equal(online, getattr(trainer.trainers["shared"], f"{part}_optimiser").vector)


def test_loading_refuses_what_is_not_there(tmp_path):
    """Loading an unknown policy or part lists the known ones."""
    trainer = cartpole(tmp_path)
    with pytest.raises(ConfigError, match="unknown policy 'runner'; known are shared"):
        trainer.load_model_checkpoint({"runner": "file"})
    with pytest.raises(ConfigError, match="'shared' has no 'actor'; it has model"):
        trainer.load_model_checkpoint({"shared": {"actor": "file"}})


# ------------------------------------------------------------------ episodes


def test_episode_states_are_warpdrives(tmp_path):
    """Episode states have WarpDrive's shapes: one row more than steps."""
    trainer = tag(tmp_path)
    before = trainer.cuda_envs.cuda_data_manager.pull_data_from_device("loc_x").copy()
    states, actions, rewards, chances = trainer.fetch_episode_states(
        ["loc_x", "loc_y"], env_id=1, include_rewards_actions=True, include_probabilities=True
    )
    assert states["loc_x"].shape == (7, 5)
    assert (actions.shape, actions.dtype) == ((6, 5, 2), np.int32)
    assert (rewards.shape, rewards.dtype) == ((6, 5), np.float32)
    first, second = chances[0]["tagger"]
    assert first.shape[0] == second.shape[0] == 2
    np.testing.assert_allclose(first.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(second.sum(-1), 1, rtol=1e-6)
    again = trainer.fetch_episode_states(["loc_x"], include_rewards_actions=True)[1]
    assert not np.array_equal(again, actions)  # every call plays another episode
    _, actions, _, chances = trainer.fetch_episode_states(["loc_x"], 0, True, True, use_argmax=True)
    taggers = trainer.policy_tag_to_agent_id_map["tagger"]
    for step, of_step in chances.items():
        likeliest = np.stack([each.argmax(-1) for each in of_step["tagger"]], -1)
        np.testing.assert_array_equal(actions[step][taggers], likeliest)
    np.testing.assert_array_equal(before, trainer.cuda_envs.cuda_data_manager.pull_data_from_device("loc_x"))


def test_episode_states_end_with_the_episode(tmp_path):
    """After an early end, states are NaN, actions and rewards 0."""
    trainer = cartpole(tmp_path, 40)
    states, _, rewards = trainer.fetch_episode_states(["state"], include_rewards_actions=True, use_argmax=True)
    n_steps = int(rewards.sum())
    assert 5 < n_steps < 40
    assert not np.isnan(states["state"][: n_steps + 1]).any()
    assert np.isnan(states["state"][n_steps + 1 :]).all()
    assert not rewards[n_steps:].any()


def test_evaluated_episodes_count_every_step(tmp_path):
    """Evaluated episodes count each step, the last one included.

    CartPole pays 1 a step, so rewards equal steps.
    """
    trainer = cartpole(tmp_path, 12)
    rewards, steps = trainer.evaluate_episodes(use_argmax=True)
    assert rewards["shared"].shape == (N_ENVS, 1)
    assert rewards["shared"][:, 0].tolist() == steps["shared"].tolist()
    assert 5 < steps["shared"].min() < 12 or steps["shared"].tolist() == [12] * N_ENVS
    with pytest.raises(ConfigError, match=r"takes use_argmax, and scale=0 \(got \{'damping': 0.1\}\)"):
        trainer.evaluate_episodes(damping=0.1)
    assert trainer.evaluate_episodes(scale=0)[1]["shared"].shape == (N_ENVS,)


# ------------------------------------------------------------------ settings


def test_batch_is_rounded_down_with_a_warning(tmp_path):
    """The batch is rounded down with a warning, as in WarpDrive."""
    config = settings(tmp_path, {"shared": policy()}, train_batch_size=23)
    given = copy.deepcopy(config)
    with pytest.warns(UserWarning, match=r"must be a multiple of num_envs = 4 \(got 23\); 20 is taken"):
        made = run_config(config)
    assert made.trainer.train_batch_size == 20
    assert config == given


@pytest.mark.parametrize(
    ("place", "key", "says"),
    [
        ((), "paths", "run config paths: this key has no effect; keys are "),
        (("trainer",), "num_sgd_iter", "run config trainer.num_sgd_iter: this key has no effect; keys are "),
        (("saving",), "basedirs", "run config saving.basedirs: this key has no effect; did you mean basedir?"),
        (("policy", "shared"), "gama", "run config policy.shared.gama: this key has no effect; did you mean gamma?"),
        (("policy", "shared", "model"), "fc_dim", "run config policy.shared.model.fc_dim: this key has no effect; did"),
    ],
)
def test_key_that_nothing_reads_is_left_out_with_a_warning(tmp_path, place, key, says):
    """A key without effect is ignored with a warning.

    The user's mapping is unchanged.
    """
    config = settings(tmp_path, {"shared": policy()})
    want = run_config(config)
    section = config
    for name in place:
        section = section[name]
    section[key] = 3
    given = copy.deepcopy(config)
    with pytest.warns(UserWarning, match=re.escape(says)):
        assert run_config(config) == want
    assert config == given


def test_settings_that_warpdrive_has_not_fit_the_batch(tmp_path):
    """PPO's minibatches divide the batch; Weights & Biases is optional."""
    config = settings(tmp_path, {"shared": policy("PPO"), "named": policy("PPO", n_minibatches=2)}, train_batch_size=12)
    made = run_config(config)
    assert (made.policy["shared"].n_minibatches, made.policy["named"].n_minibatches) == (4, 2)
    assert made.saving.sinks == ()
    odd = settings(tmp_path, {"shared": policy("PPO")}, num_envs=5, train_batch_size=15)
    odd["saving"]["use_wandb"] = True
    made = run_config(odd)
    assert made.policy["shared"].n_minibatches == 3
    assert made.saving.sinks == ("wandb",)


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("centralised_critic", {"centralised_critic": {}}),
        ("normalize_rewards", {"normalize_rewards": True}),
        ("model.normalize_observations", {"model": {"normalize_observations": True}}),
    ],
)
def test_what_warpdrive_has_not_is_refused(key, more, tmp_path):
    """Our trainers' settings are refused, and the error names ours.

    WarpDrive's trainers lack the network and the moments.
    """
    config = settings(tmp_path, {"shared": policy(**more)})
    with pytest.raises(ConfigError, match=rf"policy\.shared\.{key}: does not exist .* use warpdrive_min"):
        run_config(config)


def test_recurrent_model_is_refused(tmp_path):
    """A recurrent model is refused, and the error names our trainer."""
    policies = {"shared": policy(model={"type": "gru", "fc_dims": [8]})}
    with pytest.raises(ConfigError, match=r"policy\.shared\.model\.type: .* no recurrent .*gru.* use warpdrive_min"):
        cartpole(tmp_path, policies=policies)
    assert not list(tmp_path.iterdir())


def test_wrapper_and_config_must_be_given():
    """Wrapper and config are required, despite WarpDrive's defaults."""
    with pytest.raises(ConfigError, match="needs env_wrapper and config"):
        TrainerA2C()


def test_statistics_print(capsys):
    """WarpDrive's calls to print statistics work."""
    PerfStats.pretty_print(
        PerfStats(iters=2, steps=10, rollout_time=1.0, training_time=2.0, total_time=4.0).get_perf_stats()
    )
    Metrics().pretty_print({"runner": {"Total loss": 0.25}})
    SamplerParamsLog().pretty_print({"scale": 0.5})
    printed = capsys.readouterr().out
    assert "Mean total time per iter (ms)           : 2000.00000" in printed
    assert "Mean steps per sec (rollout)            :   10.00000" in printed
    assert "Metrics for policy 'runner'" in printed
    assert "scale                                   :    0.50000" in printed


# ------------------------------------------------------------------ users' environments


@pytest.mark.parametrize("backend", THREADED)
def test_users_environment_trains(backend, tmp_path):
    """A user's environment without time limit and restart trains."""
    wrapper = wrapped(CUDAWalkers(), backend)
    trainer = trainer_of(wrapper, tmp_path, train_batch_size=10)
    before = trainer.models["shared"].state_dict()
    row = trainer.train(1)
    assert row["shared/mean_episodic_steps"] == 4
    after = trainer.models["shared"].state_dict()
    assert all(not torch.equal(before[key], after[key]) for key in before)
    batch = trainer.groups["shared"].buffer
    assert batch.terminated.sum(0).tolist() == [1, 1]
    cells, actions, rewards = trainer.fetch_episode_states(["cell"], include_rewards_actions=True)
    moves = np.array([0, 1, -1])[actions[:, :, 0]]
    np.testing.assert_array_equal(cells["cell"][1:], (cells["cell"][:-1] + moves) % 6)
    for cell, reward in zip(cells["cell"][1:], rewards, strict=True):
        np.testing.assert_allclose(reward, 0.5 * ((cell[:, None] == cell).sum(1) - 1))


class RowedWalkers(CUDAWalkers):
    """Walkers with their own two rows, whose cells survive resets."""

    def get_data_dictionary(self):
        feed = super().get_data_dictionary()
        rows = np.tile(self.cell, (2, 1))
        feed["cell"] = {"data": rows, "attributes": {"log_data_across_episode": True}}
        return feed


@pytest.mark.parametrize("backend", THREADED)
def test_rows_that_an_environment_made_itself_are_fetched(backend, tmp_path):
    """Arrays that an environment made per copy are fetched as states."""
    trainer = trainer_of(wrapped(RowedWalkers(), backend), tmp_path)
    cells, actions, _ = trainer.fetch_episode_states(["cell"], env_id=1, include_rewards_actions=True)
    moves = np.array([0, 1, -1])[actions[:, :, 0]]
    np.testing.assert_array_equal(cells["cell"][0], [0, 2, 4])
    np.testing.assert_array_equal(cells["cell"][1:], (cells["cell"][:-1] + moves) % 6)


@pytest.mark.parametrize("backend", THREADED)
def test_environment_with_arrays_of_each_policy_trains(backend, tmp_path):
    """Two policies with their own arrays both learn."""
    wrapper = wrapped(Towns(**SMALL), backend)
    policies = wrapper.env.policy_tag_to_agent_id_map
    config = settings(tmp_path, {name: policy() for name in policies}, num_envs=2, train_batch_size=6)
    trainer = TrainerA2C(wrapper, config, policies, create_separate_placeholders_for_each_policy=True, verbose=False)
    before = {name: model.state_dict() for name, model in trainer.models.items()}
    trainer.train(1)
    for name, model in trainer.models.items():
        assert not torch.equal(before[name]["fc.0.0.weight"], model.state_dict()["fc.0.0.weight"]), name
    assert trainer.groups["town"].buffer.observations.abs().sum() > 0
    states, actions, rewards = trainer.fetch_episode_states(
        ["_timestep_"], 1, include_rewards_actions=True, policy="town"
    )
    assert states["_timestep_"].tolist() == [0, 1, 2, 3, 4]
    assert (actions.shape, rewards.shape) == ((4, 3, 1), (4, 3))


def test_arrays_of_each_policy_need_an_environment_that_reads_them(tmp_path):
    """Arrays per policy raise for an environment that ignores them."""
    wrapper = EnvWrapper(TagContinuous(**TAG), num_envs=N_ENVS, env_backend="cpu")
    config = settings(tmp_path, {"runner": policy(), "tagger": policy()})
    agents = {"tagger": list(wrapper.env.taggers), "runner": list(wrapper.env.runners)}
    with pytest.raises(ConfigError, match="'TagContinuous' reads the actions of all agents from one array"):
        TrainerA2C(wrapper, config, agents, create_separate_placeholders_for_each_policy=True, verbose=False)


@pytest.mark.parametrize("backend", THREADED)
def test_environment_with_masks_trains(backend, tmp_path):
    """An environment with masks trains without forbidden actions."""
    wrapper = wrapped(CUDATreaties(**FOUR), backend)
    trainer = trainer_of(wrapper, tmp_path, train_batch_size=4)
    trainer.train(1)
    batch = trainer.groups["shared"].buffer
    assert 0 < (batch.masks[:-1] == 0).sum() < batch.masks[:-1].numel()
    sizes = trainer.groups["shared"].arrays.space.categories
    for index, mask in enumerate(torch.split(batch.masks[:-1], sizes, -1)):
        drawn = mask.gather(-1, batch.actions[..., index : index + 1].long())[..., 0]
        assert drawn[mask.any(-1)].all()


def test_defaults_are_warpdrives():
    """Missing settings come from WarpDrive's default config."""
    read = run_config({"policy": {"a": {"algorithm": "PPO"}, "b": {"algorithm": "PPO", "clip_param": 0.3}}})
    policy, trainer, saving = read.policy["a"], read.trainer, read.saving
    want = yaml.safe_load(DEFAULT_CONFIGS.read_text())
    want["policy"]["algorithm"] = "PPO"  # PPO has the clip_param
    assert want["policy"].pop("model").items() <= policy.model.model_dump(mode="json").items()
    for section, found in (("policy", policy), ("trainer", trainer), ("saving", saving)):
        assert want[section].items() <= found.model_dump(mode="json").items()
    assert (policy.to_train, policy.max_grad_norm, policy.clip_param, policy.gamma) == (False, 0.5, 0.01, 0.98)
    assert read.policy["b"].clip_param == 0.3
    assert run_config({"policy": {"a": {}}}).policy["a"].algorithm == "A2C"
    assert policy.model.fc_dims == (64, 64)
    assert (trainer.num_envs, trainer.num_episodes, trainer.train_batch_size, trainer.n_step) == (10, 10000, 10000, 1)
    assert (saving.metrics_log_freq, saving.model_params_save_freq) == (100, 1000)
    assert (saving.basedir, saving.name, saving.tag) == ("/tmp", "default", "experiment")

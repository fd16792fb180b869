"""Environments that cannot be copied, and users' wrappers of them."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from warp_drive.env_cpu_gpu_consistency_checker import EnvironmentCPUvsGPU
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.models.factory import ModelFactory
from warp_drive.training.trainers.trainer_a2c import TrainerA2C
from warp_drive.training.utils.data_loader import create_and_push_data_placeholders
from warp_drive.training.utils.vertical_scaler import perform_auto_vertical_scaling

from tests.compat.builders import THREADED, name_of, needs_host, policy, settings
from tests.compat.coins import (
    Coins,
    CUDACoins,
    NamingWrapper,
    NumberedCoins,
    WrapperByHand,
    WrapperWithOtherArguments,
    registrar,
)
from tests.compat.written_models import Gated
from tests.support import by_day
from warpdrive_min.compat import scaling
from warpdrive_min.compat.environments import CartPole
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.models import parts

WRAPPERS = {
    "warpdrive's": lambda env, n_envs, backend: EnvWrapper(
        env, num_envs=n_envs, env_backend=backend, env_registrar=registrar()
    ),
    "with other arguments": lambda env, n_envs, backend: WrapperWithOtherArguments(env, n_envs, backend),
    "by hand": lambda env, n_envs, backend: WrapperByHand(env, n_envs, backend),
}


@pytest.fixture(autouse=True)
def _lent_registrar(registrar):
    """Remove the sources of the coins after each test."""


@pytest.fixture(params=THREADED)
def backend(request, monkeypatch):
    """Return a threaded backend's name; `host` acts as `pycuda`."""
    return name_of(request.param, monkeypatch)


def wrapped(kind, backend, n_envs=2):
    """Return a wrapper of coins that cannot be copied."""
    env = (Coins if kind == "by hand" else CUDACoins)(env_backend=backend)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(env)
    return WRAPPERS[kind](env, n_envs, backend)


def trainer_of(wrapper, folder):
    """Return a trainer of one policy."""
    config = settings(folder, {"shared": policy()}, num_envs=wrapper.n_envs, train_batch_size=2 * wrapper.n_envs)
    return TrainerA2C(wrapper, config, {"shared": [0, 1]}, results_dir="run", verbose=False)


def arrays(wrapper):
    """Return copies of all arrays."""
    data = wrapper.cuda_data_manager
    return {name: data.tensor(name).clone() for name in data.array_names()}


@pytest.mark.parametrize("kind", by_day(WRAPPERS, ("warpdrive's", "by hand")))
def test_environment_that_cannot_be_copied_trains_and_is_looked_at(kind, backend, tmp_path):
    """An environment that cannot be copied trains, and episodes are fetched.

    They are played between two iterations, and the state is restored.
    """
    wrapper = wrapped(kind, backend)
    trainer = trainer_of(wrapper, tmp_path)
    assert trainer.cuda_envs is wrapper
    before = trainer.models["shared"].state_dict()
    trainer.train(1)
    assert any(not torch.equal(before[key], value) for key, value in trainer.models["shared"].state_dict().items())
    held, attributes = arrays(wrapper), dict(vars(wrapper.env))
    assert held["_timestep_"].tolist() == [2, 2], "two steps of three: within an episode"
    assert held["sampled_actions"].shape == (2, 2), "no axis of types"

    states, actions, rewards = trainer.fetch_episode_states(["total"], 1, include_rewards_actions=True)
    np.testing.assert_array_equal(np.diff(states["total"], axis=0), actions.reshape(3, 2))
    np.testing.assert_array_equal(rewards, actions.reshape(3, 2))
    returns, steps = trainer.evaluate_episodes(use_argmax=True)
    assert returns["shared"].shape == (2, 2)
    assert steps["shared"].tolist() == [3, 3]
    score = trainer.evaluate(5, greedy=False)["shared"]
    assert (score.n_episodes, score.mean_steps) == (5, 3)

    assert vars(wrapper.env) == attributes
    for name, array in arrays(wrapper).items():
        assert torch.equal(array, held[name]), name
    trainer.train()
    assert trainer.iteration == trainer.num_iters


def test_looking_on_leaves_training_as_it_is(backend, tmp_path):
    """Fetching episodes leaves the training's weights unchanged."""
    weights = []
    for n_looks in (0, 1):
        trainer = trainer_of(wrapped("warpdrive's", backend), tmp_path / str(n_looks))
        trainer.train(1)
        for _ in range(n_looks):
            trainer.fetch_episode_states(["total"])
        trainer.train(1)
        weights.append(trainer.models["shared"].state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("wrapper", [EnvWrapper, WrapperWithOtherArguments, WrapperByHand])
def test_checker_takes_a_users_wrapper(wrapper, backend):
    """The checker accepts a user's wrapper, and finds a wrong reward."""

    class Generous(Coins):
        def step(self, actions=None):
            observations, rewards, done, info = super().step(actions)
            return observations, {agent: 2 * reward for agent, reward in rewards.items()}, done, info

    def checker(cpu_env_class):
        return EnvironmentCPUvsGPU(
            cpu_env_class=cpu_env_class,
            cuda_env_class=Coins if wrapper is WrapperByHand else CUDACoins,
            env_configs={"two": {"env_backend": backend}},
            gpu_env_backend=backend,
            env_wrapper=wrapper,
            env_registrar=registrar(),
            num_envs=2,
        )

    assert checker(Coins).test_env_reset_and_step(seed=1) == 0
    with pytest.raises(AssertionError, match="rewards of"):
        checker(Generous).test_env_reset_and_step(seed=1)


@needs_host
@pytest.mark.parametrize("ids", [str, int, np.int64])
def test_checker_asks_users_wrappers_for_agents_by_their_ids(ids, monkeypatch):
    """The checker translates agent ids for a user's wrapper.

    The wrapper uses "0" and "1", the environment 0 and 1, policies either.
    """
    name_of("host", monkeypatch)

    class Generous(NumberedCoins):
        def step(self, actions=None):
            observations, rewards, done, info = super().step(actions)
            return observations, {agent: agent + reward for agent, reward in rewards.items()}, done, info

    def checker(cpu_env_class):
        return EnvironmentCPUvsGPU(
            cpu_env_class=cpu_env_class,
            cuda_env_class=NumberedCoins,
            env_configs={"two": {"env_backend": "pycuda"}},
            gpu_env_backend="pycuda",
            env_wrapper=NamingWrapper,
            policy_tag_to_agent_id_map={"all": [ids(0), ids(1)]},
            num_envs=2,
        )

    assert checker(NumberedCoins).test_env_reset_and_step(seed=1) == 0
    with pytest.raises(AssertionError, match=r"rewards of environment 0, agent '1'"):
        checker(Generous).test_env_reset_and_step(seed=1)


def test_checker_says_whose_value_is_missing(backend):
    """The error names the missing agent and its Python class.

    The class's agents differ from ``action_space``.
    """

    class Forgetful(Coins):
        def step(self, actions=None):
            observations, rewards, done, info = super().step(actions)
            return observations, {0: rewards[0], "second": rewards[1]}, done, info

    checker = EnvironmentCPUvsGPU(
        cpu_env_class=Forgetful,
        cuda_env_class=CUDACoins,
        env_configs={"two": {"env_backend": backend}},
        gpu_env_backend=backend,
        env_registrar=registrar(),
    )
    with pytest.raises(ConfigError, match=r"gave nothing for agents .1. .got .0, 'second'.*every agent one id"):
        checker.test_env_reset_and_step(seed=1)


def test_users_wrapper_is_scaled_by_its_script(backend, tmp_path, monkeypatch):
    """Each trial of the search makes its environments by the script."""
    sizes = []

    def auto_scale(config, make_wrapper, policies, n_iterations):
        sizes.extend(make_wrapper(n_envs).n_envs for n_envs in (1, 3))
        return SimpleNamespace(saturation=SimpleNamespace(num_envs=3, train_batch_size=6))

    monkeypatch.setattr(scaling, "auto_scale", auto_scale)

    def script(run_configuration, verbose):
        n_envs = run_configuration["trainer"]["num_envs"]
        TrainerA2C(WrapperByHand(Coins(), n_envs, backend), run_configuration, {"shared": [0, 1]}, verbose=verbose)

    config = settings(tmp_path, {"shared": policy()}, num_envs=2, train_batch_size=4)
    scaled = perform_auto_vertical_scaling(script, config)
    assert sizes == [1, 3]
    assert (scaled["trainer"]["num_envs"], scaled["trainer"]["train_batch_size"]) == (3, 6)

    def deaf(run_configuration, verbose):
        script(config, verbose)

    with pytest.raises(ConfigError, match=r"trainer\.num_envs = 1 environments \(got 2\)"):
        perform_auto_vertical_scaling(deaf, config)


def test_wrapper_must_have_what_warpdrives_has():
    """The error names attributes that a user's wrapper lacks."""
    with pytest.raises(ConfigError, match="wrapper object: needs the attribute 'env'; WarpDrive's wrapper has it"):
        create_and_push_data_placeholders(object())


def test_copy_of_a_model_is_in_the_same_environment(monkeypatch, tmp_path):
    """A copy of a model, such as DDPG's target, shares its environment."""

    class Holding(Gated):
        def __init__(self, env, *arguments, **named):
            super().__init__(env, *arguments, **named)
            self.held = env.env

    monkeypatch.setattr("tests.compat.written_models.Gated", Holding)
    monkeypatch.setattr(ModelFactory, "_classes", dict(ModelFactory._classes))
    monkeypatch.setattr(parts.ModelFactory, "_classes", dict(parts.ModelFactory._classes))
    ModelFactory.add("holding", "tests.compat.written_models", "Gated")
    env = CartPole(5)
    env.lock = threading.Lock()
    model = {"type": "holding", "fc_dims": [8], "gate": 3}
    trainer = TrainerA2C(
        EnvWrapper(env, num_envs=4), settings(tmp_path, {"shared": policy(model=model)}), {"shared": [0]}, verbose=False
    )
    core = trainer.groups["shared"].models["model"]
    made = next(each for each in core.modules() if type(each).__name__ == "Trained_holding")
    again = copy.deepcopy(made)
    assert again.model.held is env
    assert again.model.gate is not made.model.gate
    assert torch.equal(again.model.gate, made.model.gate)

"""Run configs: what is read, what is refused, and what the page says of them."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import re
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import ENVS
from warpdrive_min.commands.new_env import write_starter
from warpdrive_min.errors import ConfigError
from warpdrive_min.sampler import Noise
from warpdrive_min.training.config import (
    ActorCriticConfig,
    ActorCriticFiles,
    ActorModelConfig,
    LearningRates,
    ModelConfig,
    PolicyConfig,
    RunConfig,
    SamplerParams,
    SavingConfig,
    TrainerConfig,
)

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "envs").rglob("run_config*.yaml"))
PAGE = ROOT / "docs" / "run_config.md"
TABLES = {
    "Top level": RunConfig,
    "`trainer`": TrainerConfig,
    "`policy.<name>`": PolicyConfig,
    "`policy.<name>.model`": ModelConfig,
    "`sampler.params`": SamplerParams,
    "`saving`": SavingConfig,
}
"""What the tables of the page are about, by heading."""


def run(policy=None, **sections):
    """Return a mapping with one policy, ``p``."""
    return {"policy": {"p": policy or {}}, **sections}


DDPG = {"algorithm": "DDPG", "tau": 0.05}


# ------------------------------------------------------------------ read


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_config_is_read_whole(path):
    """What the file says stands in the config, which its own dict, also by way of JSON, gives back."""
    given_keys = yaml.safe_load(path.read_text())
    config = RunConfig.load(path)
    got = config.to_dict()
    assert_holds(got, given_keys)
    assert RunConfig.from_dict(got) == config
    assert RunConfig.from_dict(json.loads(json.dumps(got))) == config
    assert config.n_iterations(config.env["episode_length"]) >= 1


def assert_holds(got, given_keys):
    """What was given is there, section by section."""
    for key, value in given_keys.items():
        if isinstance(value, dict):
            assert_holds(got[key], value)
        else:
            assert got[key] == value, key


def test_every_environment_ships_a_config():
    """Each has one with WarpDrive's settings; others may lie beside it."""
    assert {path.parent.name for path in SHIPPED if path.name == "run_config.yaml"} == set(ENVS)


def test_config_of_a_new_environment_is_one(tmp_path):
    """The starter comes with a file that loads."""
    package = write_starter("ring_walk_starter", tmp_path)
    assert RunConfig.load(package / "run_config.yaml").policy["shared"].to_train


def test_pendulum_has_two_networks_and_two_rates():
    """DDPG's sections become objects of their own; one file of weights is none."""
    policy = RunConfig.load(ROOT / "envs/classic_control/pendulum/run_config.yaml").policy["shared"]
    assert policy.lr == LearningRates(
        actor=[[2500000000, 0.001], [3750000000, 0.0005]], critic=[[2500000000, 0.0001], [3750000000, 0.00005]]
    )
    assert policy.schedule("lr/critic") == [[2500000000, 0.0001], [3750000000, 0.00005]]
    assert policy.model == ActorCriticConfig(actor=ActorModelConfig(output_w=2.0))
    assert policy.models == {"actor": policy.model.actor, "critic": policy.model.critic}
    assert (policy.model.actor.type, policy.model.critic.type) == (
        "fully_connected_actor",
        "fully_connected_action_value_critic",
    )
    assert policy.weight_files == {}


def test_sections_left_out_have_their_defaults():
    """A policy's name is all that must be said; an empty section in YAML is null."""
    want = RunConfig(policy={"p": PolicyConfig()})
    assert RunConfig.from_dict(run()) == want
    empty = {"policy": {"p": None}, "trainer": None, "sampler": {"params": None}, "env": None}
    assert RunConfig.from_dict(empty) == want


def test_ddpg_has_two_networks_by_default():
    """Which networks are left out follows from the algorithm; one rate is both networks'."""
    policy = RunConfig.from_dict(run({**DDPG, "lr": 0.01})).policy["p"]
    assert policy == PolicyConfig(algorithm="DDPG", tau=0.05, lr=0.01, model=ActorCriticConfig())
    assert policy.schedule("lr/actor") == policy.schedule("lr/critic") == 0.01


def test_reading_leaves_the_mapping_alone():
    """Nothing is added to it, and nothing of it is shared with the config."""
    mapping = run({"entropy_coeff": [[0, 0.5], [100, 0.05]]}, env={"starts": [1, 2]})
    before = copy.deepcopy(mapping)
    config = RunConfig.from_dict(mapping)
    assert mapping == before
    mapping["env"]["starts"].append(3)
    mapping["policy"]["p"]["entropy_coeff"][0][1] = 0.1
    assert config == RunConfig.from_dict(before)
    config.to_dict()["env"]["starts"].clear()
    assert config.env == {"starts": [1, 2]}


def test_config_is_read_of_itself_a_mapping_or_a_path(tmp_path):
    """`of` takes what a trainer may be given."""
    config = RunConfig.from_dict(run(name="x"))
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    assert RunConfig.of(config) is config
    assert RunConfig.of(config.to_dict()) == RunConfig.of(path) == RunConfig.of(str(path)) == config


def test_yaml_numbers_with_exponents_are_numbers(tmp_path):
    """1e-3 and 2.5e9, which PyYAML alone takes for strings; in quotes they are strings, and refused."""
    text = (
        'policy: {p: {lr: [[0, 1e-3], [2.5e9, .5E-4]], max_grad_norm: +3e0}}\ntrainer: {num_episodes: 1e6}\nname: "1e3"'
    )
    assert yaml.safe_load(text)["policy"]["p"]["max_grad_norm"] == "+3e0"
    path = tmp_path / "run.yaml"
    path.write_text(text)
    config = RunConfig.load(path)
    assert config.policy["p"].lr == [[0, 0.001], [2.5e9, 0.00005]]
    assert config.policy["p"].max_grad_norm == 3
    assert config.name == "1e3"
    assert config.trainer.num_episodes == 10**6
    assert isinstance(config.trainer.num_episodes, int)
    path.write_text('policy: {p: {gamma: "1e-3"}}')
    with pytest.raises(
        ConfigError, match=r"policy\.p\.gamma: must be a finite number \(got '1e-3'\); write it without"
    ):
        RunConfig.load(path)


def test_numpy_numbers_become_plain():
    """Of a config that Python wrote; the dict is JSON's."""
    config = RunConfig.from_dict(run({"gamma": np.float32(0.5)}, env={"starts": np.arange(3), "n": np.int64(4)}))
    got = config.to_dict()
    assert json.loads(json.dumps(got)) == got
    assert got["env"] == {"starts": [0, 1, 2], "n": 4}
    assert got["policy"]["p"]["gamma"] == 0.5


@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.sampled_from(["A2C", "PPO", "DDPG"]),
    st.one_of(st.floats(0, 1), st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=3)),
    st.lists(st.integers(1, 512), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=50)
def test_config_comes_back_from_its_dict(n_envs, n_steps, algorithm, rate, widths):
    """Whatever keeps the rules."""
    lr = rate if isinstance(rate, float) else [list(point) for point in sorted(rate)]
    model = {"fc_dims": widths} if algorithm != "DDPG" else {"critic": {"fc_dims": widths}}
    policy = {"algorithm": algorithm, "tau": 1.0, "lr": lr, "n_minibatches": n_steps, "model": model}
    config = RunConfig.from_dict(run(policy, trainer={"num_envs": n_envs, "train_batch_size": n_envs * n_steps}))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert list(config.policy["p"].models.values())[-1].fc_dims == tuple(widths)


# ------------------------------------------------------------------ refused

REFUSED = {
    # unknown keys
    "section": (run(trainr={}), r"trainr: is not a key .*; did you mean trainer\?"),
    "key": (run(trainer={"num_env": 5}), r"trainer\.num_env: is not a key .*num_envs.*; did you mean num_envs\?"),
    "far key": (run(saving={"zzz": 5}), r"saving\.zzz: is not a key \(known are basedir, .*\); leave it out"),
    "policy key": (run({"gama": 0.9}), r"policy\.p\.gama: is not a key .*; did you mean gamma\?"),
    "model key": (run({"model": {"fc_dim": [1]}}), r"policy\.p\.model\.fc_dim: .*; did you mean fc_dims\?"),
    "actor key": (run({**DDPG, "model": {"actor": {"w": 1}}}), r"policy\.p\.model\.actor\.w: is not a key"),
    "sampler key": (run(sampler={"params": {"std": 1}}), r"sampler\.params\.std: .*; did you mean stddev\?"),
    "number as key": (run(trainer={1: 2}), r"trainer\.1: is not a key"),
    # types
    "string": (
        run(trainer={"num_envs": "10"}),
        r"trainer\.num_envs: must be an integer \(got '10'\); write it without",
    ),
    "word": (run({"lr": "fast"}), r"policy\.p\.lr: must be a finite number or a list of .* \(got 'fast'\)$"),
    "fraction": (run(trainer={"num_envs": 2.5}), r"trainer\.num_envs: must be an integer \(got 2\.5\)"),
    "bool for number": (run(trainer={"seed": True}), r"trainer\.seed: must be null or an integer \(got True\)"),
    "number for bool": (run({"to_train": 1}), r"policy\.p\.to_train: must be true or false \(got 1\)"),
    "null": (run({"gamma": None}), r"policy\.p\.gamma: must be a finite number \(got None\)"),
    "not finite": (run({"gamma": float("nan")}), r"policy\.p\.gamma: must be a finite number \(got nan\)"),
    "no mapping": (run(trainer=5), r"trainer: must be a mapping, as TrainerConfig \(got 5\)"),
    "widths": (run({"model": {"fc_dims": 64}}), r"policy\.p\.model\.fc_dims: must be a list, each entry an integer"),
    "choice": (run({"algorithm": "ppo"}), r"policy\.p\.algorithm: must be one of A2C, PPO, DDPG \(got 'ppo'\)"),
    "sink": (run(saving={"sinks": ["xml"]}), r"saving\.sinks: must be a list, each entry one of jsonl, csv"),
    "points": (run({"lr": [[5, 1], [2, 1]]}), r"policy\.p\.lr: .* in the order of time .*\(got \[\[5, 1\]"),
    "env": (run(env={"a": {1}}), r"env: must hold numbers, strings, lists and mappings only.*set is not JSON"),
    "env keys": (run(env={1: 2}), r"env: must be a mapping of names"),
    # rules
    "no policy": ({}, r"policy: must name at least one"),
    "policy folder": ({"policy": {"..": {}}}, r"policy: must be named by letters"),
    "policy name": ({"policy": {"a/b": {}}}, r"policy: must be named by letters.*\(got 'a/b'\)"),
    "num_gpus": (run(trainer={"num_gpus": 0}), r"trainer\.num_gpus: must be at least 1 \(got 0\)"),
    "num_envs": (run(trainer={"num_envs": 0}), r"trainer\.num_envs: must be at least 1 \(got 0\)"),
    "num_episodes": (run(trainer={"num_episodes": -1}), r"trainer\.num_episodes: must be at least 1 \(got -1\)"),
    "n_step": (run(trainer={"n_step": 0}), r"trainer\.n_step: must be at least 1"),
    "max_rows": (run(trainer={"max_rows": 0}), r"trainer\.max_rows: must be at least 1"),
    "seed": (run(trainer={"seed": 2**63}), r"trainer\.seed: must be from 0 to 2\^63 - 1"),
    "backend": (run(trainer={"env_backend": "tpu"}), r"trainer\.env_backend: must be one of cpu, host, numba, pycuda"),
    "ratio": (run(trainer={"neg_pos_env_ratio": 0}), r"trainer\.neg_pos_env_ratio: must be positive, or -1 for all"),
    "precision": (run(trainer={"precision": "fp8"}), r"trainer\.precision: must be one of fp32, tf32, bf16"),
    "mode": (run(trainer={"mode": "fast"}), r"trainer\.mode: must be one of auto, graph, eager"),
    "compat": (run(trainer={"compat": "rllib"}), r"trainer\.compat: must be null or one of warpdrive"),
    "stop_return": (run(trainer={"stop_return": {"q": 1}}), r"trainer\.stop_return: .*\(got q\); known are p"),
    "batch": (
        run(trainer={"num_envs": 100, "train_batch_size": 250}),
        r"trainer\.train_batch_size: must be a multiple of num_envs = 100 \(got 250\); take 200 or 300",
    ),
    "small batch": (
        run(trainer={"num_envs": 100, "train_batch_size": 50}),
        r"trainer\.train_batch_size: must be a multiple of num_envs = 100 \(got 50\); take 100$",
    ),
    "minibatches": (
        run({"algorithm": "PPO", "n_minibatches": 7}),
        r"policy\.p\.n_minibatches: must divide train_batch_size = 10000 \(got 7\); take 5 or 8",
    ),
    "tau": (run({"algorithm": "DDPG"}), r"policy\.p\.tau: must be given for DDPG \(got None\)"),
    "tau 0": (run({**DDPG, "tau": 0}), r"policy\.p\.tau: must be above 0 and at most 1 \(got 0\)"),
    "clip_param": (run({"clip_param": 1.5}), r"policy\.p\.clip_param: must be above 0 and at most 1"),
    "gamma": (run({"gamma": 1.1}), r"policy\.p\.gamma: must be from 0 to 1 \(got 1\.1\)"),
    "gae_lambda": (run({"gae_lambda": -0.1}), r"policy\.p\.gae_lambda: must be from 0 to 1"),
    "lr": (run({"lr": [[0, 0.1], [9, -0.1]]}), r"policy\.p\.lr: must not be negative"),
    "actor lr": (run({**DDPG, "lr": {"actor": -1}}), r"policy\.p\.lr\.actor: must not be negative"),
    "two lr": (run({"lr": {"actor": 1}}), r"policy\.p\.lr: must be one schedule for algorithm A2C"),
    "entropy": (run({"entropy_coeff": -0.1}), r"policy\.p\.entropy_coeff: must not be negative"),
    "norm": (run({"max_grad_norm": 0}), r"policy\.p\.max_grad_norm: must be positive"),
    "target_kl": (run({"target_kl": 0}), r"policy\.p\.target_kl: must be positive"),
    "adam_eps": (run({"adam_eps": 0}), r"policy\.p\.adam_eps: must be positive"),
    "n_epochs": (run({"n_epochs": 0}), r"policy\.p\.n_epochs: must be at least 1"),
    "learning_starts": (run({"learning_starts": -1}), r"policy\.p\.learning_starts: must not be negative"),
    "width": (run({"model": {"fc_dims": [64, 0]}}), r"policy\.p\.model\.fc_dims: must be positive \(got \(64, 0\)\)"),
    "no layer": (run({"model": {"fc_dims": []}}), r"policy\.p\.model\.fc_dims: must have a hidden layer"),
    "actor file": (
        run({**DDPG, "model": {"actor": {"model_ckpt_filepath": "a"}}}),
        r"policy\.p\.model\.actor\.model_ckpt_filepath: must be .*; name it in model\.model_ckpt_filepath\.actor",
    ),
    "damping": (run(sampler={"params": {"damping": [[0, 2]]}}), r"sampler\.params\.damping: must be at most 1"),
    "scale": (run(sampler={"params": {"scale": -1}}), r"sampler\.params\.scale: must not be negative"),
    "keep_last": (run(saving={"keep_last": 0}), r"saving\.keep_last: must be at least 1"),
    "basedir": (run(saving={"basedir": ""}), r"saving\.basedir: must not be empty"),
    "sinks": (run(saving={"sinks": ["csv", "csv"]}), r"saving\.sinks: must name each only once"),
}
"""Mappings and what is said of them."""


@pytest.mark.parametrize(("mapping", "message"), REFUSED.values(), ids=REFUSED)
def test_broken_rule_is_an_error_that_names_the_key(mapping, message):
    """The place in the file, the rule, what was there, and what to do."""
    with pytest.raises(ConfigError, match=f"^run config {message}"):
        RunConfig.from_dict(mapping)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)))
@settings(deadline=None, max_examples=40)
def test_whatever_stands_at_a_key_is_read_or_refused(value):
    """No other error comes from a value of any type, at any key."""
    for section, cls in (("trainer", TrainerConfig), ("saving", SavingConfig)):
        for field in fields(cls):
            with contextlib.suppress(ConfigError):
                RunConfig.from_dict(run(**{section: {field.name: value}}))


def test_error_survives_the_way_between_processes():
    """Pickled, as workers hand it back, it says the same."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(run({"gamma": 2}))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_rules_hold_for_objects_too():
    """Configs that Python makes or replaces, where the name of the policy is not known; they cannot be changed."""
    with pytest.raises(ConfigError, match=r"^run config trainer\.num_envs: must be at least 1 \(got 0\)"):
        TrainerConfig(num_envs=0)
    with pytest.raises(ConfigError, match=r"^run config policy\.gamma: must be from 0 to 1 \(got 2\)"):
        replace(PolicyConfig(), gamma=2)
    with pytest.raises(ConfigError, match=r"policy\.model: must be an ActorCriticConfig for algorithm DDPG"):
        PolicyConfig(algorithm="DDPG", tau=0.1)
    with pytest.raises(ConfigError, match=r"policy\.model: must be a ModelConfig for algorithm PPO"):
        PolicyConfig(algorithm="PPO", model=ActorCriticConfig())
    with pytest.raises(ConfigError, match=r"policy: must be a mapping of names, each value a mapping, as PolicyConfig"):
        RunConfig(policy={"p": {}})
    with pytest.raises(FrozenInstanceError):
        PolicyConfig().gamma = 0.5


def test_warpdrives_rule_has_no_minibatches():
    """One update for each batch: a number of parts that does not divide it is of no effect."""
    config = RunConfig.from_dict(run({"algorithm": "PPO", "n_minibatches": 7}, trainer={"compat": "warpdrive"}))
    assert config.policy["p"].n_minibatches == 7


@pytest.mark.parametrize("given_config", [3, None, [1]], ids=str)
def test_what_is_no_mapping_is_refused(given_config):
    """A run config is a mapping of sections; an empty file is none."""
    with pytest.raises(ConfigError, match=r"run config: must be a mapping with keys env, name, policy"):
        RunConfig.from_dict(given_config)


def test_file_that_cannot_be_read_is_an_error(tmp_path):
    """Missing, or no YAML; and without PyYAML none can be."""
    with pytest.raises(ConfigError, match=r"run config: must be a file that can be read .*nowhere\.yaml"):
        RunConfig.load(tmp_path / "nowhere.yaml")
    path = tmp_path / "run.yaml"
    path.write_text("trainer: {num_envs: 3")
    with pytest.raises(ConfigError, match=r"run\.yaml must be YAML \(got (.|\n)*line 1"):
        RunConfig.load(path)


def test_missing_pyyaml_is_an_error_that_says_how_to_install_it(monkeypatch):
    """Only files need it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=re.escape('pip install "warpdrive-min[train]"')):
        RunConfig.load(SHIPPED[0])
    RunConfig.from_dict(run())


# ------------------------------------------------------------------ asked


def test_episodes_make_iterations():
    """3 episodes of 50 steps fill 100-step batches once, with a rest; 20 steps fill none, which takes 5 episodes."""
    config = RunConfig.from_dict(run(trainer={"num_episodes": 3, "train_batch_size": 100}))
    assert [config.n_iterations(length) for length in (34, 50, 100, 1_000)] == [1, 1, 3, 30]
    with pytest.raises(
        ConfigError, match=r"trainer\.num_episodes: must fill a batch.* 100 \(got 60\); take at least 5"
    ):
        config.n_iterations(20)


def test_weight_files_are_those_that_are_named():
    """By the part of the networks."""
    assert PolicyConfig(model=ModelConfig(model_ckpt_filepath="a.pt")).weight_files == {"model": "a.pt"}
    model = ActorCriticConfig(model_ckpt_filepath=ActorCriticFiles(critic="c.pt"))
    assert PolicyConfig(algorithm="DDPG", tau=1.0, model=model).weight_files == {"critic": "c.pt"}


def test_schedules_are_found_by_their_key():
    """Those of the loss, and of the noise."""
    policy = PolicyConfig(lr=0.1, vf_loss_coeff=0.2, entropy_coeff=[[0, 0.3]])
    assert [policy.schedule(key) for key in ("lr", "vf_loss_coeff", "entropy_coeff")] == [0.1, 0.2, [[0, 0.3]]]
    assert SamplerParams(scale=[[0, 1], [9, 0]]).schedules == {
        "damping": 0.15,
        "stddev": 0.2,
        "scale": [[0, 1], [9, 0]],
    }


def test_noise_is_the_samplers_by_default():
    """A config that says nothing of it leaves what `CUDASampler.sample` does by itself."""
    assert SamplerParams().schedules == Noise()._asdict()


# ------------------------------------------------------------------ the page


def rows_of_page():
    """Return ``(heading, key, default)`` of each row of the page's tables."""
    rows, heading = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if match := re.match(r"\| `(\w+)`(?: \+)? \|(?: `(.*?)`)? \|", line):
            rows.append((heading, *match.groups()))
    return rows


def test_page_has_every_key_with_its_default():
    """In the order of the code, and no other."""
    rows = rows_of_page()
    got = {heading: [key for where, key, _ in rows if where == heading] for heading in TABLES}
    assert got == {heading: [field.name for field in fields(cls)] for heading, cls in TABLES.items()}
    for heading, key, default in rows:
        if default is not None:
            want = TABLES[heading]().to_dict()[key] if heading != "Top level" else {"name": "", "env": {}}[key]
            assert json.loads(default) == want, f"{heading} {key}"
    assert sum(default is None for *_, default in rows) == 5, "only sections have no default"

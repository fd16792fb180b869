"""Run configs: accepted values, refused values, and their documentation page."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from envs import ENVS
from tests.support import by_night
from warpdrive_min.commands.new_env import write_starter
from warpdrive_min.errors import ConfigError
from warpdrive_min.sampler import Noise
from warpdrive_min.training.config import (
    ActorCriticConfig,
    ActorCriticFiles,
    LearningRates,
    ModelConfig,
    PolicyConfig,
    PopulationConfig,
    RunConfig,
    SamplerParams,
    SavingConfig,
    TrainerConfig,
    divisors_around,
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
    "`population`": PopulationConfig,
}
"""Sections that the page's tables describe, by heading."""


def run(policy=None, **sections):
    """Return a mapping with one policy, ``p``."""
    return {"policy": {"p": policy or {}}, **sections}


DDPG = {"algorithm": "DDPG", "tau": 0.05}
MANY_UPDATES = {"algorithm": "PPO", "n_epochs": 1_000, "n_minibatches": 10_000}
LARGE_BATCH = {"num_envs": 10, "train_batch_size": 10_000}
WARPDRIVE, EXACT = {"compat": "warpdrive"}, {"exact": True}
ELU, NORMALISED, CRITIC = {"activation": "elu"}, {"normalize_observations": True}, "policy.p.model.critic"


def members(policy=None, trainer=None, **population):
    """Return a mapping with a population of two."""
    return run({"to_train": True, **(policy or {})}, trainer=trainer or {}, population={"size": 2, **population})


# ------------------------------------------------------------------ read


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_config_is_read_whole(path):
    """A shipped config is read completely, and survives JSON."""
    given_keys = yaml.safe_load(path.read_text())
    config = RunConfig.load(path)
    got = config.to_dict()
    assert_holds(got, given_keys)
    assert RunConfig.from_dict(got) == config
    assert RunConfig.from_dict(json.loads(json.dumps(got))) == config
    assert config.n_iterations(config.env["episode_length"]) >= 1


def assert_holds(got, given_keys):
    """Check that the given values are present, section by section."""
    for key, value in given_keys.items():
        if isinstance(value, dict):
            assert_holds(got[key], value)
        else:
            assert got[key] == value, key


def test_every_environment_ships_a_config():
    """Each environment has a config with WarpDrive's settings.

    More may exist.
    """
    assert {path.parent.name for path in SHIPPED if path.name == "run_config.yaml"} == set(ENVS)


def test_config_of_a_new_environment_is_one(tmp_path):
    """The starter's run config of a new environment loads."""
    package = write_starter("ring_walk_starter", tmp_path)
    assert RunConfig.load(package / "run_config.yaml").policy["shared"].to_train


def test_sections_left_out_have_their_defaults():
    """Omitted sections get defaults; a policy needs only its name.

    An empty section in YAML is null.
    """
    want = RunConfig(policy={"p": PolicyConfig()})
    assert RunConfig.from_dict(run()) == want
    empty = {"policy": {"p": None}, "trainer": None, "sampler": {"params": None}, "env": None}
    assert RunConfig.from_dict(empty) == want


def test_integer_stays_one_where_a_float_belongs():
    """An integer for a float stays an integer, so files are unchanged."""
    assert RunConfig.from_dict(run({"max_grad_norm": 3})).to_dict()["policy"]["p"]["max_grad_norm"].__class__ is int


EARLY, LATE = [[0, 1e-3], [500, 0.0]], [[0, 1e-3], [960, 0.0]]


@pytest.mark.parametrize(
    ("policy", "population", "keys"),
    [
        ({"to_train": True, "lr": EARLY}, {}, ["policy.p.lr"]),
        ({"to_train": True, "lr": LATE}, {}, []),
        ({"to_train": True, "lr": 0.0}, {}, []),
        ({"to_train": False, "lr": EARLY}, {}, []),
        (
            {"to_train": True, "algorithm": "DDPG", "tau": 0.1, "lr": {"actor": EARLY, "critic": LATE}},
            {},
            ["policy.p.lr.actor"],
        ),
        ({"to_train": True, "lr": EARLY}, {"size": 2}, ["policy.p.lr"]),
        ({"to_train": True, "lr": EARLY}, {"size": 3, "lr": [LATE, EARLY, 0.1]}, ["population.lr[1]"]),
    ],
)
def test_rates_that_become_zero_too_early_are_found(policy, population, keys):
    """Only learning rates in use count; a run has 1,000 steps."""
    config = RunConfig.from_dict({"policy": {"p": policy}, "population": population})
    assert config.early_zeros(1_000) == dict.fromkeys(keys, 500)


def test_ddpg_has_two_networks_by_default():
    """DDPG has two networks by default, with one rate for both.

    The algorithm determines the omitted networks.
    """
    policy = RunConfig.from_dict(run({**DDPG, "lr": 0.01})).policy["p"]
    assert policy == PolicyConfig(algorithm="DDPG", tau=0.05, lr=0.01, model=ActorCriticConfig())
    assert policy.schedule("lr/actor") == policy.schedule("lr/critic") == 0.01


def test_reading_leaves_the_mapping_alone():
    """Reading a mapping neither changes nor shares it."""
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
    """`of` accepts a config, a mapping or a path."""
    config = RunConfig.from_dict(run(name="x"))
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    assert RunConfig.of(config) is config
    assert RunConfig.of(config.to_dict()) == RunConfig.of(path) == RunConfig.of(str(path)) == config


def test_yaml_numbers_with_exponents_are_numbers(tmp_path):
    """Numbers with exponents are numbers, unless quoted.

    1e-3 and 2.5e9, which PyYAML alone reads as strings.
    """
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
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(path)
    assert (caught.value.what, caught.value.got) == ("policy.p.gamma", "1e-3")


def test_numpy_numbers_become_plain():
    """NumPy's numbers become plain ones, which JSON can write."""
    config = RunConfig.from_dict(run({"gamma": np.float32(0.5)}, env={"starts": np.arange(3), "n": np.int64(4)}))
    got = config.to_dict()
    assert json.loads(json.dumps(got)) == got
    assert got["env"] == {"starts": [0, 1, 2], "n": 4}
    assert got["policy"]["p"]["gamma"] == 0.5


# ------------------------------------------------------------------ refused

REFUSED = {
    # unknown keys
    "section": (run(trainr={}), "trainr", ...),
    "key": (run(trainer={"num_env": 5}), "trainer.num_env", ...),
    "actor key": (run({**DDPG, "model": {"actor": {"w": 1}}}), "policy.p.model.actor.w", ...),
    "number as key": (run(trainer={1: 2}), "trainer.1", ...),
    # types
    "string": (run(trainer={"num_envs": "10"}), "trainer.num_envs", "10"),
    "word": (run({"lr": "fast"}), "policy.p.lr", "fast"),
    "fraction": (run(trainer={"num_envs": 2.5}), "trainer.num_envs", 2.5),
    "bool for number": (run(trainer={"seed": True}), "trainer.seed", True),
    "number for bool": (run({"to_train": 1}), "policy.p.to_train", 1),
    "null": (run({"gamma": None}), "policy.p.gamma", None),
    "not finite": (run({"gamma": float("nan")}), "policy.p.gamma", math.nan),
    "no mapping": (run(trainer=5), "trainer", 5),
    "widths": (run({"model": {"fc_dims": 64}}), "policy.p.model.fc_dims", 64),
    "choice": (run({"algorithm": "ppo"}), "policy.p.algorithm", "ppo"),
    "sink": (run(saving={"sinks": ["xml"]}), "saving.sinks", ["xml"]),
    "points": (run({"lr": [[5, 1], [2, 1]]}), "policy.p.lr", [[5, 1], [2, 1]]),
    "env": (run(env={"a": {1}}), "env", {"a": {1}}),
    "env keys": (run(env={1: 2}), "env", 1),
    # rules
    "no policy": ({}, "policy", {}),
    "policy folder": ({"policy": {"..": {}}}, "policy", ".."),
    "policy name": ({"policy": {"a/b": {}}}, "policy", "a/b"),
    "num_gpus": (run(trainer={"num_gpus": 0}), "trainer.num_gpus", 0),
    "num_envs": (run(trainer={"num_envs": 0}), "trainer.num_envs", 0),
    "num_episodes": (run(trainer={"num_episodes": -1}), "trainer.num_episodes", -1),
    "n_step": (run(trainer={"n_step": 0}), "trainer.n_step", 0),
    "max_rows": (run(trainer={"max_rows": 0}), "trainer.max_rows", 0),
    "seed": (run(trainer={"seed": 2**63}), "trainer.seed", 9223372036854775808),
    "backend": (run(trainer={"env_backend": "tpu"}), "trainer.env_backend", "tpu"),
    "ratio": (run(trainer={"neg_pos_env_ratio": 0}), "trainer.neg_pos_env_ratio", 0),
    "precision": (run(trainer={"precision": "fp8"}), "trainer.precision", "fp8"),
    "mode": (run(trainer={"mode": "fast"}), "trainer.mode", "fast"),
    "compat": (run(trainer={"compat": "rllib"}), "trainer.compat", "rllib"),
    "stop_return": (run(trainer={"stop_return": {"q": 1}}), "trainer.stop_return", "q"),
    "batch": (run(trainer={"num_envs": 100, "train_batch_size": 250}), "trainer.train_batch_size", 250),
    "small batch": (run(trainer={"num_envs": 100, "train_batch_size": 50}), "trainer.train_batch_size", 50),
    "minibatches": (run({"algorithm": "PPO", "n_minibatches": 7}), "policy.p.n_minibatches", 7),
    "tau": (run({"algorithm": "DDPG"}), "policy.p.tau", None),
    "tau 0": (run({**DDPG, "tau": 0}), "policy.p.tau", 0),
    "clip_param": (run({"clip_param": 1.5}), "policy.p.clip_param", 1.5),
    "gamma": (run({"gamma": 1.1}), "policy.p.gamma", 1.1),
    "gae_lambda": (run({"gae_lambda": -0.1}), "policy.p.gae_lambda", -0.1),
    "lr": (run({"lr": [[0, 0.1], [9, -0.1]]}), "policy.p.lr", [[0, 0.1], [9, -0.1]]),
    "actor lr": (run({**DDPG, "lr": {"actor": -1}}), "policy.p.lr.actor", -1),
    "two lr": (run({"lr": {"actor": 1}}), "policy.p.lr", LearningRates(actor=1, critic=0.0001)),
    "entropy": (run({"entropy_coeff": -0.1}), "policy.p.entropy_coeff", -0.1),
    "norm": (run({"max_grad_norm": 0}), "policy.p.max_grad_norm", 0),
    "target_kl": (run({"target_kl": 0}), "policy.p.target_kl", 0),
    "adam_eps": (run({"adam_eps": 0}), "policy.p.adam_eps", 0),
    "n_epochs": (run({"n_epochs": 0}), "policy.p.n_epochs", 0),
    "learning_starts": (run({"learning_starts": -1}), "policy.p.learning_starts", -1),
    "width": (run({"model": {"fc_dims": [64, 0]}}), "policy.p.model.fc_dims", [64, 0]),
    "no layer": (run({"model": {"fc_dims": []}}), "policy.p.model.fc_dims", []),
    "actor file": (
        run({**DDPG, "model": {"actor": {"model_ckpt_filepath": "a"}}}),
        "policy.p.model.actor.model_ckpt_filepath",
        "a",
    ),
    "damping": (run(sampler={"params": {"damping": [[0, 2]]}}), "sampler.params.damping", [[0, 2]]),
    "scale": (run(sampler={"params": {"scale": -1}}), "sampler.params.scale", -1),
    "keep_last": (run(saving={"keep_last": 0}), "saving.keep_last", 0),
    "basedir": (run(saving={"basedir": ""}), "saving.basedir", ""),
    "sinks": (run(saving={"sinks": ["csv", "csv"]}), "saving.sinks", ("csv", "csv")),
    # bounds: these would loop, allocate or overflow
    "most minibatches": (run({"algorithm": "PPO", "n_minibatches": 2**31 - 1}), "policy.p.n_minibatches", 2147483647),
    "epochs": (run({"n_epochs": 1e308}), "policy.p.n_epochs", 1e308),
    "updates": (run(MANY_UPDATES, trainer=LARGE_BATCH), "policy.p.n_epochs", 1000),
    "wide": (run({"model": {"fc_dims": [10**9]}}), "policy.p.model.fc_dims", [10**9]),
    "deep": (run({"model": {"fc_dims": [1] * 101}}), "policy.p.model.fc_dims", [1] * 101),
    "population": (run(population={"size": 2**31 - 1}), "population.size", 2147483647),
    "large lr": (run({"lr": 1e39}), "policy.p.lr", 1e39),
    "small norm": (run({"max_grad_norm": 1e-320}), "policy.p.max_grad_norm", 1e-320),
    "large return": (run(trainer={"stop_return": {"p": 1e300}}), "trainer.stop_return", {"p": 1e300}),
    "null byte": (run(saving={"basedir": "a\0b"}), "saving.basedir", "a\0b"),
    "root": (run(saving={"name": "/tmp/x"}), "saving.name", "/tmp/x"),
    "parent": (run(saving={"tag": ".."}), "saving.tag", ".."),
    "outside": (run(saving={"tag": "a/../../b"}), "saving.tag", "a/../../b"),
    # combinations
    "critic of DDPG": (run({**DDPG, "centralised_critic": {}}), "policy.p.algorithm", "DDPG"),
    "critic of WarpDrive": (run({"centralised_critic": {}}, trainer=WARPDRIVE), "trainer.compat", "warpdrive"),
    "rewards of DDPG": (run({**DDPG, "normalize_rewards": True}), "policy.p.normalize_rewards", True),
    "rewards of WarpDrive": (run({"normalize_rewards": True}, trainer=WARPDRIVE), "trainer.compat", "warpdrive"),
    "moments of WarpDrive": (run({"model": NORMALISED}, trainer=WARPDRIVE), "trainer.compat", "warpdrive"),
    "exact elu of DDPG": (run({**DDPG, "model": {"critic": ELU}}, trainer=EXACT), f"{CRITIC}.activation", "elu"),
    "exact model": (run({"model": {"type": "mine"}}, trainer=EXACT), "policy.p.model.type", "mine"),
    "exact elu": (run({"model": ELU}, trainer=EXACT), "policy.p.model.activation", "elu"),
    "exact tf32": (run(trainer={**EXACT, "precision": "tf32"}), "trainer.precision", "tf32"),
    "three of two": (members(lr=[0.1, 0.2, 0.3]), "population.size", 2),
    "short column": (members(lr=[0.1, 0.2], entropy_coeff=[0.1]), "population.entropy_coeff", (0.1,)),
    "equal seeds": (members(seeds=[1, 1]), "population.seeds", (1, 1)),
    "no members": (members(size=None, lr=[0.1]), "population.lr", (0.1,)),
    "members on GPUs": (members(trainer={"num_gpus": 2}), "trainer.num_gpus", 2),
    "members of WarpDrive": (members(trainer=WARPDRIVE), "trainer.compat", "warpdrive"),
    "members' ratio": (members(trainer={"neg_pos_env_ratio": 2}), "trainer.neg_pos_env_ratio", 2),
    "members of DDPG": (members(DDPG), "policy.p.algorithm", "DDPG"),
    "members' clip": (members(clip_param=[0.1, 0.2]), "policy.p.algorithm", "A2C"),
    "members' critic": (members({"centralised_critic": {}}), "policy.p.centralised_critic", "a critic"),
    "fused members": (members({"model": {"fused": True}}), "policy.p.model.fused", True),
    "members' norm": (members({"clip_grad_norm": False}, max_grad_norm=[1, 2]), "policy.p.clip_grad_norm", False),
}
"""Refused mappings, with key and value in the error.

``...`` means no value.
"""


REMEDIES = {
    "section": "did you mean trainer?",
    "actor key": "leave it out",
    "string": "write it without quotes",
    "batch": "take 200 or 300",
    "small batch": "take 100",
    "minibatches": "take 5 or 8",
    "actor file": "name it in model.model_ckpt_filepath.actor",
}


@pytest.mark.parametrize("name", REFUSED)
def test_broken_rule_is_an_error_that_names_the_key(name):
    """A broken rule's error has key, rule and value.

    Some suggest the nearest key or numbers, or another place.
    """
    mapping, key, got = REFUSED[name]
    with pytest.raises(ConfigError, match=f"^run config {re.escape(key)}: (must|is|needs) ") as caught:
        RunConfig.from_dict(mapping)
    assert (caught.value.what, str(caught.value.got)) == (key, str(got))
    assert (caught.value.do or "").startswith(REMEDIES.get(name, ""))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: TrainerConfig(num_envs=0), "trainer.num_envs"),
        (lambda: PolicyConfig().replace(gamma=2), "policy.gamma"),
        (lambda: PolicyConfig(algorithm="DDPG", tau=0.1, model=ModelConfig()), "policy.model"),
        (lambda: PolicyConfig(algorithm="PPO", model=ActorCriticConfig()), "policy.model"),
        (lambda: RunConfig(policy={"p": 3}), "policy.p"),
    ],
)
def test_rules_hold_for_objects_too(make, key):
    """Rules also hold for configs built in Python."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.what == key


def test_config_is_not_changed():
    """Configs are immutable; changed copies share the other sections."""
    policy = PolicyConfig()
    with pytest.raises(ValueError, match="frozen"):
        policy.gamma = 0.5
    config = RunConfig(policy={"p": policy})
    assert config.policy["p"] is policy
    changed = config.replace(name="x")
    assert (changed.name, config.name) == ("x", "")
    assert changed.trainer is config.trainer
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


def test_warpdrives_rule_has_no_minibatches():
    """WarpDrive's rule refuses minibatches: it has one update per batch."""
    config = RunConfig.from_dict(run({"algorithm": "PPO", "n_minibatches": 7}, trainer={"compat": "warpdrive"}))
    assert config.policy["p"].n_minibatches == 7


@pytest.mark.parametrize("given_config", [3, None, [1]], ids=str)
def test_what_is_no_mapping_is_refused(given_config):
    """A run config must be a mapping of sections."""
    with pytest.raises(ConfigError, match=r"run config: must be a mapping with keys env, name, policy"):
        RunConfig.from_dict(given_config)


def test_file_that_cannot_be_read_is_an_error(tmp_path):
    """An unreadable file, or one without PyYAML, is an error."""
    with pytest.raises(ConfigError, match=r"run config: must be a file that can be read .*nowhere\.yaml"):
        RunConfig.load(tmp_path / "nowhere.yaml")
    path = tmp_path / "run.yaml"
    path.write_text("trainer: {num_envs: 3")
    with pytest.raises(ConfigError, match=r"run\.yaml must be YAML \(got (.|\n)*line 1"):
        RunConfig.load(path)


def test_missing_pyyaml_is_an_error_that_says_how_to_install_it(monkeypatch):
    """Missing PyYAML raises for files, with the install line."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r'pip install -e ".*\[train\]"'):
        RunConfig.load(SHIPPED[0])
    RunConfig.from_dict(run())


# ------------------------------------------------------------------ asked


def test_episodes_make_iterations():
    """Episodes are converted to iterations, at least one.

    3 episodes of 50 steps, or 5 of 20, fill a batch of 100 once.
    """
    config = RunConfig.from_dict(run(trainer={"num_episodes": 3, "train_batch_size": 100}))
    assert [config.n_iterations(length) for length in (34, 50, 100, 1_000)] == [1, 1, 3, 30]
    with pytest.raises(ConfigError) as caught:
        config.n_iterations(20)
    assert (caught.value.what, caught.value.got, caught.value.do) == ("trainer.num_episodes", 60, "take at least 5")


def test_weight_files_are_those_that_are_named():
    """Weight files are listed by the part of the networks."""
    assert PolicyConfig(model=ModelConfig(model_ckpt_filepath="a.pt")).weight_files == {"model": "a.pt"}
    model = ActorCriticConfig(model_ckpt_filepath=ActorCriticFiles(critic="c.pt"))
    assert PolicyConfig(algorithm="DDPG", tau=1.0, model=model).weight_files == {"critic": "c.pt"}


def test_noise_is_the_samplers_by_default():
    """Without settings the defaults of `CUDASampler.sample` apply."""
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
    """The page lists each key with its default, in order."""
    rows = rows_of_page()
    got = {heading: [key for where, key, _ in rows if where == heading] for heading in TABLES}
    assert got == {heading: list(cls.model_fields) for heading, cls in TABLES.items()}
    for heading, key, default in rows:
        if default is not None:
            want = TABLES[heading]().to_dict()[key] if heading != "Top level" else {"name": "", "env": {}}[key]
            assert json.loads(default) == want, f"{heading} {key}"
    assert sum(default is None for *_, default in rows) == 6, "only sections have no default"


# ------------------------------------------------------------------ bounds

NEVER = (10**400, 1e308, 5e-324, math.inf, math.nan)
LARGE = (2**31, 2**63, -(2**63))
COUNTS = ("n_epochs", "n_minibatches", "fc_dims", "size", "num_envs")
OTHERS = (None, True, 0, 1, -1, 2.5, 1e3, "", "1", "A2C", "csv")
SECTIONS = {
    "trainer": TrainerConfig,
    "saving": SavingConfig,
    "policy.p": PolicyConfig,
    "policy.p.model": ModelConfig,
    "sampler.params": SamplerParams,
    "population": PopulationConfig,
}


@pytest.mark.parametrize("value", [*NEVER, *LARGE, *OTHERS], ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("section", SECTIONS)
def test_any_value_is_read_or_refused_by_its_key(section, value):
    """A value at a key survives JSON, or a short error names the key."""
    forms = [value, [value], [[0, value]], {"p": value}, {"actor": value}]
    for key, given in itertools.product(SECTIONS[section].model_fields, [*forms, [], [[]], {}]):
        mapping = {key: given}
        for name in reversed(section.split(".")):
            mapping = {name: mapping}
        said, what = "", ""
        try:
            config = RunConfig.from_dict({"policy": {"p": {"to_train": True, "algorithm": "PPO"}}} | mapping)
        except ConfigError as error:
            said, what = str(error), error.what
        else:
            assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config
            is_given = any(given is form for form in forms)
            assert not is_given or value not in NEVER, key
            assert not is_given or value not in LARGE or key not in COUNTS, key
        # If environments do not divide the batch, or DDPG has other keys, the error is about those.
        assert not said or what.startswith((f"{section}.{key}", "trainer.train_batch_size", "policy.p.")), key
        assert "\n" not in said
        assert len(said) < 1_000


@pytest.mark.parametrize(("number", "near"), [(10_000, 7), (10_000, 10_001), (1, 5), (2**31 - 1, 3), (12, 12)])
def test_divisors_around_a_number(number, near):
    """The nearest divisors below and above are found.

    Above the number only the number itself.
    """
    divisors = [n for n in range(1, min(number, 20_000) + 1) if number % n == 0] + [number]
    below, above = divisors_around(number, near)
    assert below == max(n for n in divisors if n <= near)
    assert above == min((n for n in divisors if n >= near), default=number)


def recursive_list() -> list:
    inside: list = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize("key", ["env", "trainer", "policy"])
def test_mapping_that_contains_itself_is_refused(key):
    """A mapping that contains itself is refused.

    Python can create it, files cannot.
    """
    with pytest.raises(ConfigError, match="nested"):
        RunConfig.from_dict(run() | {key: {"x": recursive_list()}})


UNREADABLE = {
    "deep list": "env: {x: " + "[" * 5_000 + "]" * 5_000 + "}",
    "deep flow": "env: " + "{a: " * 5_000 + "1" + "}" * 5_000,
    "deep block": "\n".join("  " * depth + "a:" for depth in range(300)),
    "recursive alias": "env: &a {x: *a}",
    "recursive list": "env: {x: &a [*a]}",
    "many laughs": "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]" for n in range(12)),
    "merged laughs": "\n".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" if n else "a0: &a0 {x: 1}" for n in range(12)
    ),
    "long integer": "trainer: {seed: " + "1" * 5_000 + "}",
    "long float": "trainer: {stop_return: " + "1" * 5_000 + ".5}",
    "long base 60": "trainer: {stop_return: " + "1:" * 500 + "1.5}",
    "no date": "name: 2024-13-45",
    "bad tags": "trainer: {num_envs: !!int ''}",
    "bad bool": "trainer: {exact: !!bool maybe}",
    "python tag": "name: !!python/object/apply:os.system ['true']",
    "no UTF-8": b"name: \xff\xfe\xfa",
    "null bytes": b"name: \0",
    "two documents": "a: 1\n---\nb: 2",
    "unhashable key": "? [1]\n: 2",
    "a list": "[1, 2]",
    "nothing": "",
    "a word": "words",
    "too long": b"#" * (2**22 + 1),
    **dict.fromkeys(("name: [", "name: &a [*a]", "&a [&b [*b, *a], *a]", "x: &x {y: *x}", "trainer: {<<: 5}")),
    **dict.fromkeys(("trainer:\n\tnum_envs: 1", "%YAML 9.9\n---\n1", "name: 0o9", "name: 1e400", "a: " * 5000)),
    **dict.fromkeys(("\x1b[2J", "trainer: {num_envs: .nan}", "name: !!binary xx")),
}
"""Contents of a file by name; None: the name itself."""


@pytest.mark.parametrize("name", [by_night(name) if name == "merged laughs" else name for name in UNREADABLE])
def test_unreadable_file_is_told_in_a_line(name, tmp_path):
    """Any file gives a config or a one-line error."""
    path, content = tmp_path / "run.yaml", name if UNREADABLE[name] is None else UNREADABLE[name]
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 3_000


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("policy: {p: {}}\ntrainer:\n  seed: 1\n  seed: 2\n", 4, "seed"),
        ("policy: {p: {lr: 1, 'lr': 2}}\n", 1, "lr"),
        ("env:\n  x: [{y: 1,\n    y: 1}]\npolicy: {p: {}}\n", 3, "y"),
        ("trainer: {seed: 1}\npolicy: {p: {}}\ntrainer: {}\n", 3, "trainer"),
    ],
)
def test_repeated_key_is_refused(text, line, key, tmp_path):
    """Repeated keys are refused at any depth, except merged ones."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(path)
    assert f"{path}, line {line}: a mapping must have each key once (got {key!r})" in str(caught.value)
    path.write_text("policy: {p: &p {lr: 1}, q: {<<: *p, lr: 2}, r: *p}\n")
    assert {policy.lr for policy in RunConfig.load(path).policy.values()} == {1, 2}


@pytest.mark.parametrize("path", ["", "a\0b", ".", "/dev/zero", "x" * 5_000])
def test_path_that_is_no_file_is_told_in_a_line(path):
    """A path that is no regular file gives a one-line error."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(path)
    assert "\n" not in str(caught.value)

"""Each statement of docs/compat.md has tests, as `claims.toml` lists."""

from __future__ import annotations

import functools
import logging
import re
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest
from warp_drive.env_cpu_gpu_consistency_checker import EnvironmentCPUvsGPU, generate_random_actions
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.trainers.trainer_a2c import TrainerA2C

from tests.compat.builders import policy, settings
from warpdrive_min import agreement
from warpdrive_min.compat.environments import CartPole, CUDATagGridWorldWithResetPool
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete

TESTS = Path(__file__).parents[1]
CLAIMS = tomllib.loads(Path(__file__).with_name("claims.toml").read_text())


@functools.cache
def statements() -> list[str]:
    """Return the document's bullets and first cells of its tables."""
    found: list[str] = []
    lines = (TESTS.parent / "docs" / "compat.md").read_text().splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("| ") and not following.startswith("|---"):
            found.append(line[2:].partition(" | ")[0])
        elif line.startswith("- "):
            found.append(line[2:])
    return found


@functools.cache
def names_of_tests() -> set[str]:
    """Return the names of all tests."""
    texts = (path.read_text() for path in TESTS.rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


@pytest.mark.parametrize("statement", statements())
def test_statement_is_held_by_tests(statement):
    """Each statement has one entry, and its tests exist."""
    entries = [tests.split() for begin, tests in CLAIMS.items() if statement.startswith(begin)]
    assert len(entries) == 1, "name the tests that hold it in claims.toml, once"
    assert entries[0]
    assert set(entries[0]) <= names_of_tests()


def test_no_entry_is_of_a_statement_that_is_gone():
    """Each entry belongs to an existing statement."""
    assert [begin for begin in CLAIMS if not any(each.startswith(begin) for each in statements())] == []


def test_number_of_environments_is_the_wrappers(tmp_path):
    """A run config with another number of environments is an error."""
    config = settings(tmp_path, {"shared": policy()})
    with pytest.raises(ConfigError, match="must be the wrapper's number of environments 3"):
        TrainerA2C(EnvWrapper(CartPole(5), num_envs=3), config, {"shared": [0]}, verbose=False)


def test_seed_none_is_seed_0():
    """Without a seed, starts and pools are those of seed 0."""
    assert (CartPole(5).reset()[0] == CartPole(5, seed=0).reset()[0]).all()
    for cls, arguments in ((CUDATagGridWorldWithResetPool, (3, 6)), (CartPole, (5, "cpu", 4))):
        pools = [cls(*arguments, **seed).get_reset_pool_dictionary() for seed in ({}, {"seed": 0}, {"seed": 1})]
        for name, entry in pools[0].items():
            assert (entry["data"] == pools[1][name]["data"]).all()
        assert any((entry["data"] != pools[2][name]["data"]).any() for name, entry in pools[0].items())


def test_actions_of_a_seed_are_numpys_and_the_same_again():
    """Seeded actions equal NumPy's draws and repeat.

    Each copy draws agent by agent after the seed; unseeded, NumPy continues.
    """
    spaces = {"a": Discrete(9), "b": MultiDiscrete([9, 4]), "c": Box(-2.0, 3.0, (2,))}
    env = types.SimpleNamespace(action_space=spaces)
    actions = generate_random_actions(env, 2, seed=7)
    draws = np.random.RandomState(7)
    for each in actions:
        assert each["a"] == draws.randint(0, 9, dtype=np.int32)
        np.testing.assert_array_equal(each["b"], draws.randint(0, [9, 4], dtype=np.int32))
        np.testing.assert_array_equal(each["c"], draws.uniform([-2.0, -2.0], [3.0, 3.0]))
    assert generate_random_actions(env, 2, seed=7)[1]["a"] == actions[1]["a"]
    assert [each["a"] for each in generate_random_actions(env, 20)] != [actions[0]["a"]] * 20


@pytest.mark.parametrize(
    ("checker", "seed", "repeats"),
    [(EnvironmentCPUvsGPU, 3, True), (EnvironmentCPUvsGPU, None, False), (agreement.EnvironmentCPUvsGPU, 3, False)],
)
def test_checker_of_warpdrive_repeats_the_actions_of_a_seed(checker, seed, repeats):
    """A seeded check of WarpDrive's checker repeats actions at each step.

    Without a seed, and with the core's checker, they vary.
    """
    played = []

    class Checker(checker):
        def draw_actions(self, *arguments):
            played.append(super().draw_actions(*arguments))
            return played[-1]

    configs = {"short": {"episode_length": 4}}
    checked = Checker(
        dual_mode_env_class=CUDATagGridWorldWithResetPool, env_configs=configs, num_envs=2, gpu_env_backend="cpu"
    )
    checked.test_env_reset_and_step(seed=seed)
    assert len(played) >= 4
    assert all(each == played[0] for each in played) == repeats


def test_importing_the_checker_leaves_the_root_logger_alone():
    """Importing the checker keeps the root logger's level."""
    assert logging.getLogger().level in (logging.WARNING, logging.NOTSET)

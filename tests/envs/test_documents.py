"""Files of the environments: run configs and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

import envs
from envs import ENVS
from warpdrive_min import EnvWrapper
from warpdrive_min.training.config import RunConfig

FOLDER = Path(envs.__file__).parent
RUN_CONFIGS = {str(file.relative_to(FOLDER)): file for file in sorted(FOLDER.glob("**/run_config*.yaml"))}


@pytest.mark.parametrize("path", RUN_CONFIGS)
def test_run_config_builds_its_environment(path):
    """A run config builds its folder's environment.

    All agents have policies, and batches are full.
    """
    pytest.importorskip("yaml")
    run, folder = RunConfig.load(RUN_CONFIGS[path]), RUN_CONFIGS[path].parent.name
    assert run.name.removeprefix("single_") == folder
    assert ENVS[folder](**run.env).num_agents >= 1
    assert set(run.policy) in ({"shared"}, {"tagger", "runner"}, {"governor", "government"})
    assert run.trainer.train_batch_size % run.trainer.num_envs == 0


@pytest.mark.parametrize("path", RUN_CONFIGS)
def test_learning_rates_end_with_the_run(path):
    """No learning rate becomes 0 long before the last step of one rank."""
    pytest.importorskip("yaml")
    run, folder = RunConfig.load(RUN_CONFIGS[path]), RUN_CONFIGS[path].parent.name
    length = EnvWrapper(ENVS[folder](**run.env), num_envs=1, env_backend="cpu").episode_length
    assert not run.early_zeros(run.n_iterations(length) * run.trainer.train_batch_size)


@pytest.mark.parametrize("name", ENVS)
def test_page_lists_every_key_of_the_config(name):
    """The page lists each key of the config, and no other."""
    page = FOLDER.parent / "docs" / "environments" / f"{name}.md"
    text = page.read_text().split("## Config")[1].split("\n## ")[0]
    listed = [
        key.strip(" `") for row in text.splitlines() if row.startswith("| `") for key in row.split("|")[1].split(",")
    ]
    assert sorted(listed) == sorted(type(ENVS[name]().config).model_fields)

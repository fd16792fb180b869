"""The starter of a new environment works unchanged; nothing is overwritten."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import warpdrive_min
from tests.support import quick_compiler, run_python
from warpdrive_min import cli
from warpdrive_min.commands import new_env as command
from warpdrive_min.commands.new_env import class_name, new_env, write_starter
from warpdrive_min.errors import ConfigError, WriteError

ROOT = Path(warpdrive_min.__file__).parents[1]


def files(folder: Path) -> set[str]:
    """Return the names in a folder, hidden ones included."""
    return {path.name for path in folder.iterdir()}


def test_starter_passes_its_own_test(tmp_path):
    """The starter's own test passes, with warnings as errors."""
    app = typer.Typer()
    app.command()(new_env)
    result = CliRunner().invoke(app, ["lake_walk", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"python -m warpdrive_min validate {'lake_walk'}" in result.output
    assert files(tmp_path) == {"lake_walk"}
    assert files(tmp_path / "lake_walk") == {
        "__init__.py",
        "env.py",
        "reference.py",
        "kernel.cu",
        "kernel_numba.py",
        "run_config.yaml",
        "test_lake_walk.py",
        "README.md",
    }
    words = ["-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "lake_walk"]
    own = {"PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "0"}  # the simulator takes too long
    assert "passed" in run_python(*words, cwd=tmp_path, **own, **quick_compiler(tmp_path))


@pytest.mark.nightly
def test_starter_trains_as_its_page_says(tmp_path, monkeypatch):
    """The starter's page has commands that train and evaluate it; its config learns.

    The greedy mean return is 0.7 after one iteration, and 0.9 after all.
    """
    package = write_starter("lake_walk", tmp_path)
    page = (package / "README.md").read_text()
    commands = re.findall(r"^python -m (warpdrive_min (?:train|evaluate).*?)(?: +#.*)?$", page, re.MULTILINE)
    assert [each.split()[1] for each in commands] == ["train", "evaluate"]
    small = ["trainer.num_envs=200", "trainer.num_episodes=2000", "trainer.train_batch_size=4000"]
    train = ["--results-dir", "r", *(word for value in small for word in ("--set", value))]
    more = {"train": train, "evaluate": ["--json"]}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    for each in commands:
        _, name, *rest = each.replace("RUN", "runs/lake_walk/first/r").split()
        run = CliRunner().invoke(cli.app, [name, *rest, "--backend", "cpu", *more[name]])
        for module in [each for each in sys.modules if each.partition(".")[0] == "lake_walk"]:
            del sys.modules[module]
        assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["env_steps"] == 100_000
    assert result["policies"]["shared"]["mean_return"] > 0.8


def test_starter_leaves_no_placeholder(tmp_path):
    """The starter's file names and texts contain no placeholder."""
    package = write_starter("two_words", tmp_path)
    texts = {path.name: path.read_text() for path in package.iterdir()}
    assert "class TwoWords(Environment)" in texts["env.py"]
    assert not [name for name, text in texts.items() if "$" in name + text]


@pytest.mark.parametrize(("name", "title"), [("ring", "Ring"), ("ring_race2", "RingRace2"), ("ringRace", "RingRace")])
def test_class_name_is_in_capitals(name, title):
    """The class name joins the words of the package's name."""
    assert class_name(name) == title


@pytest.mark.parametrize("name", ["2d", "my-env", "my env", "class", "_", "", "a.b", "../up", "json", "numpy"])
def test_name_must_be_free_and_an_identifier(name, tmp_path):
    """A name that is taken or no identifier is refused."""
    with pytest.raises(ConfigError, match="new-env: the name must"):
        write_starter(name, tmp_path)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(("name", "folder"), [("n" * 300, "."), ("n" * 251, "."), ("ring", "f" * 300)])
def test_too_long_name_is_told_in_a_line(name, folder, tmp_path):
    """A name that is too long gives a one-line error."""
    with pytest.raises(WriteError, match=r"/n*(ring)?: cannot be written \(File name too long\); choose another place"):
        write_starter(name, tmp_path / folder)
    assert files(tmp_path) == set()


def test_what_exists_stays(tmp_path):
    """Existing files stay, and a missing parent is refused."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_starter("taken", tmp_path)
    assert (tmp_path / "taken" / "notes").read_text() == "mine"
    assert files(tmp_path) == {"taken"}
    with pytest.raises(ConfigError, match="the folder must exist"):
        write_starter("walk", tmp_path / "missing")


def test_failure_leaves_nothing(tmp_path, monkeypatch):
    """After a failed write no file of the starter is left."""
    templates, target = tmp_path / "templates", tmp_path / "target"
    for folder in (templates, target):
        folder.mkdir()
    (templates / "a.py.template").write_text("${name}")
    (templates / "b.py.template").write_text("${unknown}")
    monkeypatch.setattr(command, "TEMPLATE", templates)
    with pytest.raises(KeyError, match="unknown"):
        write_starter("walk", target)
    assert files(target) == set()

"""WarpDrive's module paths: every name is there, and nobody's own modules are hidden."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from warpdrive_min.compat import NAMES, install
from warpdrive_min.compat.modules import CHOICE
from warpdrive_min.errors import ConfigError

ROOT = Path(__file__).parents[2]

OFFERED = [(module, name) for module, names in NAMES.items() for name in names]


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with this project importable."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("module", "name"), OFFERED)
def test_name_resolves(module, name):
    """The name is something that can be called or used, and the same each time."""
    value = getattr(importlib.import_module(module), name)
    assert value is not None
    assert getattr(importlib.import_module(module), name) is value


def test_classes_are_this_projects():
    """Both spellings are one class, so that isinstance and the registrar's table agree."""
    from warp_drive.managers.function_manager import CUDASampler
    from warp_drive.managers.numba_managers.numba_function_manager import NumbaSampler
    from warp_drive.utils.env_registrar import env_registrar

    import warpdrive_min

    assert NumbaSampler is CUDASampler is warpdrive_min.CUDASampler
    assert env_registrar is warpdrive_min.env_registrar


def test_example_environments_are_this_projects():
    """WarpDrive's two classes of an environment are our one, and the pool has WarpDrive's five rows."""
    from example_envs.single_agent.classic_control.cartpole.cartpole import (
        ClassicControlCartPoleEnv,
        CUDAClassicControlCartPoleEnv,
    )
    from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorldWithResetPool, TagGridWorld

    assert ClassicControlCartPoleEnv is CUDAClassicControlCartPoleEnv
    assert ClassicControlCartPoleEnv(episode_length=7, reset_pool_size=3, seed=1).episode_length == 7
    env = CUDATagGridWorldWithResetPool(num_taggers=4, grid_length=5)
    assert isinstance(env, TagGridWorld)
    assert env.config.reset_pool_size == 5


def test_module_knows_its_names_only():
    """An unknown name is an AttributeError with those that are known; a star import takes all."""
    constants = importlib.import_module("warp_drive.utils.constants")
    with pytest.raises(AttributeError, match="no 'Constant'; known are Constants"):
        _ = constants.Constant
    scope: dict[str, object] = {}
    exec("from warp_drive.utils.common import *", scope)
    assert Path(str(scope["get_project_root"]())).is_dir()  # type: ignore[operator]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("warp_drive.utils.nothing")


def test_install_twice_adds_nothing():
    """The finders are there once."""
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_installed_warp_drive_is_not_hidden(tmp_path):
    """A real warp_drive is an error that names it, unless the user chooses ours."""
    package = tmp_path / "warp_drive"
    package.mkdir()
    (package / "__init__.py").write_text("")
    program = "import warpdrive_min.compat; from warp_drive.utils.constants import Constants; print(Constants.ACTIONS)"
    refused = run(tmp_path, "-c", program)
    assert "ConfigError: warpdrive_min.compat: would hide the warp_drive that is installed here" in refused.stderr
    assert str(package) in refused.stderr
    assert run(tmp_path, "-c", program, **{CHOICE: "replace"}).stdout == "sampled_actions\n"


def test_warp_drive_that_was_imported_before_is_an_error(monkeypatch):
    """Half of a program on one warp_drive and half on another would be wrong."""
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if type(finder).__name__ != "_Finder"])
    with pytest.raises(Exception, match="must be imported before warp_drive"):
        install()


def test_script_runs_unchanged(tmp_path):
    """The script gets its arguments, its own folder first on the path, __main__, and its own example_envs."""
    scripts = tmp_path / "scripts"
    (scripts / "example_envs").mkdir(parents=True)
    (scripts / "example_envs" / "__init__.py").write_text("OWN = True\n")
    (scripts / "beside.py").write_text("value = 3\n")
    (scripts / "main.py").write_text(
        "import sys, beside, example_envs\n"
        "from warp_drive.env_wrapper import EnvWrapper\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv, beside.value, example_envs.OWN, EnvWrapper.__module__)\n"
    )
    ran = run(tmp_path, "-m", "warpdrive_min.compat", "scripts/main.py", "--env", "x")
    assert ran.stdout == "['scripts/main.py', '--env', 'x'] 3 True warpdrive_min.compat.env_wrapper\n", ran.stderr


def test_missing_script_is_an_error(tmp_path, monkeypatch):
    """The message says how the command is used."""
    monkeypatch.setattr(sys, "argv", ["compat", str(tmp_path / "nothing.py")])
    with pytest.raises(ConfigError, match=r"needs the path of a Python script \(got .*nothing\.py\)"):
        runpy.run_module("warpdrive_min.compat", run_name="__main__")

"""Every name of WarpDrive's modules exists; no user module is hidden."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.compat import warp_drive_names
from warpdrive_min.compat import NAMES, install
from warpdrive_min.compat.__main__ import main as run_script
from warpdrive_min.compat.modules import COMPAT_VARIABLE, EARLIER_NAMES, why_unsupported
from warpdrive_min.compat.trainers import TrainerA2C
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import BackendUnavailable
from warpdrive_min.function_manager import CUDAFunctionManager

ROOT = Path(__file__).parents[2]

OFFERED = [
    (module, name)
    for table in (NAMES, EARLIER_NAMES)
    for module, names in table.items()
    for name in names
    if name != "*"
]
NEEDS_A_GPU = "warp_drive.utils.autoinit_pycuda"
"""Module that makes a context when it is imported."""


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
    """Each name exists, and is the same object each time."""
    value = getattr(importlib.import_module(module), name)
    assert value is not None
    assert getattr(importlib.import_module(module), name) is value


def test_module_that_was_moved_is_the_one_of_now():
    """A moved module has the same objects under its former path."""
    moved = {module: names["*"] for module, names in EARLIER_NAMES.items() if "*" in names}
    assert "warp_drive.cuda_managers.pycuda_data_manager" in moved
    for before, now in moved.items():
        there = importlib.import_module(now)
        assert there.__all__
        assert all(getattr(importlib.import_module(before), name) is getattr(there, name) for name in there.__all__)


@pytest.mark.parametrize("module", warp_drive_names.kept())
def test_module_of_warp_drive_has_its_public_names(module):
    """Each public name exists, or its error has the reason."""
    names = warp_drive_names.kept()[module]
    missing = {name: why_unsupported(f"{module}.{name}") for name in names}
    if module == NEEDS_A_GPU and not torch.cuda.is_available():
        with pytest.raises(BackendUnavailable):
            importlib.import_module(module)
    elif names and all(missing.values()):
        return
    elif not why_unsupported(f"{module}."):
        there = importlib.import_module(module)
        assert [name for name, why in missing.items() if not (why or has(there, name))] == []


def has(module, name):
    """True if a module, its class or objects have an attribute."""
    first, _, inner = name.partition(".")
    known = hasattr(module, first)
    return known and (not inner or hasattr(getattr(module, first), inner) or inner in OF_OBJECTS.get(first, ()))


OF_OBJECTS = {
    "CUDADataManager": ("log_data_list", "reset_data_list", "reset_target_to_pool"),
    "CUDAFunctionManager": ("blocks_per_env",),
    "WarpDriveModule": ("fetch_episode_states", "graceful_close", "load_model_checkpoint", "save_model_checkpoint"),
}
"""Attributes set in constructors; a module's belong to its run."""


def test_attributes_of_objects_are_there():
    """Every listed attribute exists in an object."""
    pytest.importorskip("pytorch_lightning")
    from warpdrive_min.compat.lightning import OF_RUN

    made = {
        "CUDADataManager": CUDADataManager(2, 3, episode_length=4),
        "CUDAFunctionManager": CUDAFunctionManager(2, 3),
    }
    for name, attributes in OF_OBJECTS.items():
        assert all(hasattr(made.get(name, TrainerA2C), each) for each in attributes)
    assert set(OF_OBJECTS["WarpDriveModule"]) <= set(OF_RUN)


def test_names_are_those_of_a_checkout():
    """The stored list has all names of a WarpDrive checkout."""
    checkout = os.environ.get(warp_drive_names.CHECKOUT)
    if checkout is None:
        pytest.skip(f"there is no checkout of WarpDrive 2.7.1; name one by {warp_drive_names.CHECKOUT}")
    assert warp_drive_names.found(Path(checkout)) == warp_drive_names.kept()


def test_left_out_name_says_why():
    """An omitted name raises an error with the reason."""
    random = importlib.import_module("warp_drive.numba_includes.core.random")
    with pytest.raises(AttributeError, match="has no 'sample_actions'; sampler, resetter and logger bring kernels"):
        _ = random.sample_actions


def test_classes_are_this_projects():
    """Both spellings are one class, or a class and its child."""
    from warp_drive.managers.function_manager import CUDASampler
    from warp_drive.managers.numba_managers.numba_function_manager import NumbaSampler
    from warp_drive.utils.env_registrar import EnvironmentRegistrar, env_registrar

    import warpdrive_min

    assert NumbaSampler is CUDASampler is warpdrive_min.CUDASampler
    assert isinstance(env_registrar, EnvironmentRegistrar)
    assert isinstance(env_registrar, type(warpdrive_min.env_registrar))


def test_module_knows_its_names_only():
    """An unknown name raises AttributeError with the known names."""
    constants = importlib.import_module("warp_drive.utils.constants")
    with pytest.raises(AttributeError, match="no 'Constant'; known are Constants"):
        _ = constants.Constant
    scope: dict[str, object] = {}
    exec("from warp_drive.utils.common import *", scope)
    assert Path(str(scope["get_project_root"]())).is_dir()  # type: ignore[operator]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("warp_drive.utils.nothing")


def test_install_twice_adds_nothing():
    """Installing twice keeps one set of import finders."""
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_installed_warp_drive_is_not_hidden(tmp_path):
    """An installed warp_drive raises, unless the user chooses to replace it."""
    package = tmp_path / "warp_drive"
    package.mkdir()
    (package / "__init__.py").write_text("")
    program = "import warpdrive_min.compat; from warp_drive.utils.constants import Constants; print(Constants.ACTIONS)"
    refused = run(tmp_path, "-c", program)
    assert "ConfigError: warpdrive_min.compat: would hide the warp_drive that is installed here" in refused.stderr
    assert str(package) in refused.stderr
    assert run(tmp_path, "-c", program, **{COMPAT_VARIABLE: "replace"}).stdout == "sampled_actions\n"


def test_warp_drive_that_was_imported_before_is_an_error(monkeypatch):
    """A warp_drive that was imported before is an error."""
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if type(finder).__name__ != "_Finder"])
    with pytest.raises(Exception, match="must be imported before warp_drive"):
        install()


def test_script_runs_unchanged(tmp_path):
    """A script runs as main, with its arguments and own modules."""
    scripts = tmp_path / "scripts"
    for package in ("envs", "example_envs"):
        (scripts / package).mkdir(parents=True)
        (scripts / package / "__init__.py").write_text("OWN = True\n")
    (scripts / "beside.py").write_text("value = 3\n")
    (scripts / "main.py").write_text(
        "import sys, beside, envs, example_envs\n"
        "from warp_drive.env_wrapper import EnvWrapper\n"
        "from warpdrive_min.envs import CartPole\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv, beside.value, envs.OWN, example_envs.OWN, EnvWrapper.__module__, CartPole.__module__)\n"
    )
    ran = run(tmp_path, "-m", "warpdrive_min.compat", "scripts/main.py", "--env", "x")
    ours = "warpdrive_min.compat.env_wrapper warpdrive_min.envs.classic_control.cartpole.env"
    assert ran.stdout == f"['scripts/main.py', '--env', 'x'] 3 True True {ours}\n", ran.stderr


def test_missing_script_is_an_error(tmp_path, monkeypatch, capsys):
    """A missing script prints the usage in one line."""
    monkeypatch.setattr(sys, "argv", ["compat", str(tmp_path / "nothing.py")])
    with pytest.raises(SystemExit) as caught:
        run_script()
    assert caught.value.code == 2
    assert re.fullmatch(r".*needs the path of a Python script \(got .*nothing\.py\).*\n", capsys.readouterr().err)

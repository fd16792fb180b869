"""Folders and files of scripts: a checkout's, or replacements for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from warp_drive.managers.pycuda_managers.pycuda_function_manager import PyCUDAFunctionManager
from warp_drive.utils.common import get_project_root

from tests.compat.builders import IN_CUDA_C, name_of, needs_host, needs_numba
from tests.support import needs_cuda_compiler
from warpdrive_min import BACKENDS, backends
from warpdrive_min.backends import cache
from warpdrive_min.backends.base import Availability
from warpdrive_min.compat import modules, project, torch_on_host
from warpdrive_min.compat.__main__ import main as run_script
from warpdrive_min.compat.words import ENVIRONMENTS
from warpdrive_min.errors import ConfigError

ROOT = Path(__file__).parents[2]
REAL_DEVICES = torch.cuda.device_count()

ENVIRONMENT = """
import numpy as np
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

class DummyEnv(CUDAEnvironmentContext):
    name, num_agents, episode_length, action_space = "DummyEnv", 2, 3, {0: None, 1: None}

    def reset(self):
        return {0: np.zeros(1), 1: np.zeros(1)}

    def step(self, actions=None):
        self.cuda_step[self.cuda_function_manager.grid, self.cuda_function_manager.block](
            *self.cuda_step_function_feed(["_timestep_"]))
"""
KERNEL = """
import numba.cuda as numba_driver
from warp_drive.numba_includes.env_config import wkNumberAgents

@numba_driver.jit
def NumbaDummyEnvStep(timestep):
    if numba_driver.threadIdx.x == 0:
        timestep[numba_driver.blockIdx.x] += wkNumberAgents
"""
SCRIPT = """
import sys, yaml
from example_envs.dummy_env.tutorial_basics import DummyEnv
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.utils.common import get_project_root

name = sys.argv[sys.argv.index("-e") + 1]
with open(get_project_root() / "warp_drive" / "training" / "run_configs" / f"{name}.yaml") as file:
    config = yaml.safe_load(file)
wrapper = EnvWrapper(DummyEnv(), num_envs=config["num_envs"], env_backend="numba")
wrapper.reset()
wrapper.step()
print(wrapper.cuda_data_manager.pull_data_from_device("_timestep_").tolist())
"""


def write(folder: Path, **files: str) -> None:
    """Write files; ``a__b_py`` names the file `a/b.py`."""
    for name, text in files.items():
        path = folder / ".".join(name.replace("__", "/").rsplit("_", 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@needs_numba
def test_script_of_a_checkout_runs(tmp_path):
    """A checkout's script finds its config, its environment and our package."""
    write(
        tmp_path,
        warp_drive__wrong_py="raise ImportError('the other one')",
        warp_drive__training__scripts__train_py=SCRIPT,
        warp_drive__training__run_configs__tiny_yaml="num_envs: 3",
        example_envs__dummy_env__tutorial_basics_py=ENVIRONMENT,
        example_envs__dummy_env__test_step_numba_py=KERNEL,
    )
    (tmp_path / "warp_drive" / "__init__.py").write_text("raise ImportError('the other one')")
    environment = {name: value for name, value in os.environ.items() if name != "WARPDRIVE_MIN_COMPAT"}
    command = [sys.executable, "-m", "warpdrive_min.compat", "warp_drive/training/scripts/train.py", "-e", "tiny"]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "[2, 2, 2]\n", ran.stderr


HOST_SCRIPT = """
import os, sys, torch
from warp_drive.managers.pycuda_managers.pycuda_function_manager import PyCUDAFunctionManager

print(sys.argv[1:], PyCUDAFunctionManager(2, 2).backend.name, os.environ["WARPDRIVE_MIN_PYCUDA"])
print(torch.zeros(2).cuda().device)
"""


@pytest.fixture
def cast(monkeypatch):
    """Let a test act as `pycuda`; restore it afterwards."""
    monkeypatch.setitem(backends.REPLACED_BY, "pycuda", "pycuda")
    for name in (modules.COMPAT_VARIABLE, modules.PYCUDA_VARIABLE):
        monkeypatch.setenv(name, "")
    yield
    torch_on_host.switch(False)


@needs_host
def test_script_for_pycuda_runs_on_host(tmp_path, monkeypatch, capsys, cast):
    """``--host`` runs a PyCUDA script on `host`, in child processes too."""
    write(tmp_path, script_py=HOST_SCRIPT)
    monkeypatch.setattr(sys, "argv", ["warpdrive_min.compat", "--host", str(tmp_path / "script.py"), "-x"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    run_script()
    assert capsys.readouterr().out == "['-x'] host host\ncpu\n"
    monkeypatch.setenv(modules.PYCUDA_VARIABLE, "cpu")
    with pytest.raises(ConfigError, match=r"WARPDRIVE_MIN_PYCUDA: must be 'host' or 'pycuda' \(got 'cpu'\)"):
        modules.cast_pycuda()


def test_cuda_is_the_cpu_where_host_plays(monkeypatch, cast):
    """On `host`, CUDA calls act on the CPU."""
    monkeypatch.setenv(modules.PYCUDA_VARIABLE, "host")
    modules.cast_pycuda()
    tensor, device = torch.zeros(2), torch.device("cuda", 0)
    moved = [tensor.cuda(), tensor.cuda(0), tensor.to("cuda"), tensor.to(device=device)]
    assert all(each is tensor for each in moved)
    before = [tensor.cpu(), tensor.to("cpu"), tensor.to(torch.float64).to(device="cpu")]
    tensor += 1
    assert [copy.tolist() for copy in before] == [[0, 0]] * 3
    model = torch.nn.Linear(2, 1, device="cuda").cuda().to(device)
    assert model(torch.ones(3, 2, device=device)).device == torch.randint(3, (2,), device="cuda:0").device
    assert (device.type, model.weight.device.type, torch.cuda.device_count()) == ("cuda", "cpu", REAL_DEVICES)
    assert torch.cuda.FloatTensor(8).shape == (8,)  # scripts start CUDA so
    assert torch.cuda.LongTensor is torch.LongTensor
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    time.sleep(0.01)
    torch.cuda.synchronize()
    end.record(stream=None)
    end.synchronize()
    assert end.query()
    assert 10 <= start.elapsed_time(end) < 10_000
    monkeypatch.setenv(modules.PYCUDA_VARIABLE, "pycuda")
    modules.cast_pycuda()
    assert tensor.to("cpu") is tensor
    assert torch.cuda.LongTensor is not torch.LongTensor


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Enter a folder without a checkout, with a new cache."""
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_run_configs_have_warp_drives_names(nowhere):
    """Run configs have WarpDrive's names, also without a checkout."""
    folder = get_project_root() / "warp_drive" / "training" / "run_configs"
    assert sorted(path.stem for path in folder.iterdir()) == sorted([*ENVIRONMENTS, "default_configs"])
    for name in ENVIRONMENTS:
        assert yaml.safe_load((folder / f"{name}.yaml").read_text())["name"] == name
    (folder / "tag_gridworld.yaml").write_text("changed")
    assert get_project_root() == cache.folder() / "project"
    assert yaml.safe_load((folder / "tag_gridworld.yaml").read_text())["env"]["num_taggers"] == 4


@needs_cuda_compiler
def test_compiled_file_of_the_tutorials_has_a_source(nowhere):
    """The tutorials' source compiles, and has the kernel that they launch."""
    root = get_project_root() / "warp_drive"
    source, binary = root / "cuda_includes" / "test_build.cu", root / "cuda_bin" / "test_build.fatbin"
    PyCUDAFunctionManager.compile(main_file=source, cubin_file=binary, arch="sm_90")
    assert b"testkernel" in binary.read_bytes()
    assert project.source_of_binary(binary) == source


@pytest.mark.parametrize("backend", IN_CUDA_C)
def test_kernel_of_the_tutorials_steps(backend, monkeypatch, nowhere):
    """The tutorials' kernel divides x, multiplies y, and ends episodes."""
    name_of(backend, monkeypatch)
    root = get_project_root() / "warp_drive"
    binary = root / "cuda_bin" / "test_build.fatbin"
    PyCUDAFunctionManager.compile(root / "cuda_includes" / "test_build.cu", binary)
    assert binary.exists() == (backend != "host")
    functions = PyCUDAFunctionManager(num_agents=2, num_envs=2)
    functions.load_cuda_from_binary_file(binary)
    functions.initialize_functions(["testkernel"])
    device = functions.backend.device
    x, y = torch.ones(2, 2, device=device), torch.tensor([[1, 2], [3, 4]], dtype=torch.int32, device=device)
    done, actions = (torch.zeros(size, dtype=torch.int32, device=device) for size in (2, 12))
    numbers = np.float32(2), np.int32(8), np.int32(1), np.int32(2)
    functions.get_function("testkernel")(x, y, done, actions, *numbers, block=functions.block, grid=functions.grid)
    assert x.tolist() == [[0.5, 0.5]] * 2
    assert y.tolist() == [[2, 4], [6, 8]]
    assert done.tolist() == [0, 1]
    assert actions.tolist() == [0, 1, 2] * 4


def test_project_is_that_around_the_working_folder(tmp_path, monkeypatch):
    """The project is the checkout around the working folder."""
    write(tmp_path, warp_drive__training__x_yaml="", tutorials__x_ipynb="")
    monkeypatch.chdir(tmp_path / "tutorials")
    assert get_project_root() == tmp_path.resolve()


def test_project_is_that_of_the_hidden_package(tmp_path, monkeypatch):
    """The project is that of a `warp_drive` later on the path."""
    write(tmp_path, warp_drive__training__x_yaml="")
    monkeypatch.syspath_prepend(tmp_path)
    assert get_project_root() == tmp_path.resolve()
    assert project.checkout_around(tmp_path / "warp_drive" / "training") == tmp_path
    assert project.binary_path("test_build.fatbin") == tmp_path.resolve() / "warp_drive/cuda_bin/test_build.fatbin"


def test_compiled_file_is_built_from_its_source(tmp_path, monkeypatch):
    """A source compiles in place of its compiled file."""
    built = []
    kind = type(BACKENDS["pycuda"])
    monkeypatch.setattr(kind, "availability", lambda self: Availability(True))
    monkeypatch.setattr(kind, "compile", lambda self, source, constants: built.append((source, constants)) or {})
    write(tmp_path, cuda_includes__test_build_cu='#include "step.cu"', cuda_includes__step_cu="getEnvID wkNumberEnvs")
    functions = PyCUDAFunctionManager(num_agents=5, num_envs=2)
    functions.load_cuda_from_binary_file(f"{tmp_path}/cuda_bin/test_build.fatbin")
    (source, constants) = built[0]
    assert source == tmp_path / "cuda_includes" / "test_build.cu"
    assert (constants["wkNumberEnvs"], constants["wkNumberAgents"]) == (2, 5)


def test_source_lies_beside_the_class_or_its_base(tmp_path, monkeypatch):
    """The default source lies next to the class or its base."""
    write(
        tmp_path,
        meadow_py="class Meadow:\n    pass\n",
        meadow_step_cu="",
        garden_py="from meadow import Meadow\nclass Garden(Meadow):\n    pass\n",
        garden_step_numba_py="",
    )
    monkeypatch.syspath_prepend(tmp_path)
    garden = __import__("garden").Garden
    assert project.default_source("Garden", "cuda_c", garden) == tmp_path / "meadow_step.cu"
    write(tmp_path, garden_step_pycuda_cu="")
    assert project.default_source("Garden", "cuda_c", garden) == tmp_path / "garden_step_pycuda.cu"
    assert project.default_source("Garden", "numba", garden) == "garden_step_numba"
    assert project.default_source("Garden", "numpy", garden) is None
    assert project.default_source("Nowhere", "cuda_c") is None

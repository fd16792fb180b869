"""Disk cache of Numba's machine code."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.support import run_python

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed")

ROOT = Path(__file__).parents[2]
KERNEL = """
from typing import NamedTuple
from numba import cuda
import numpy as np
import helpers

class Functions(NamedTuple):
    first: object

TABLE = np.array([1.0, 2.0], np.float32)

def build(c):
    N, functions = c.N, Functions(helpers.scaled)

    @cuda.jit
    def kernel(x):
        x[0] = functions.first(x[0]) + N + TABLE[1] + helpers.shifted(x[1])

    return {"kernel": kernel}
"""
HELPERS = """
from numba import cuda
FACTOR = 2
unused = object()

@cuda.jit(device=True)
def scaled(x):
    return x * FACTOR

@cuda.jit(device=True)
def shifted(x):
    return inner(x)

@cuda.jit(device=True)
def inner(x):
    return x + 1
"""


CHANGES = [
    ("helpers.py", "x + 1", "x - 1"),
    ("helpers.py", "x * FACTOR", "FACTOR * x"),
    ("helpers.py", "FACTOR = 2", "FACTOR = 2.0"),
    ("kernels.py", "[1.0, 2.0]", "[1.0, 3.0]"),
    ("kernels.py", "[1.0, 2.0], np.float32", "[1.0, 2.0], np.float64"),
    ("kernels.py", "Functions(helpers.scaled)", "Functions(helpers.inner)"),
    ("helpers.py", "(device=True)\ndef inner", "(device=True, inline='always')\ndef inner"),
]
"""File, text and its replacement."""
SETTINGS = ["constant=4", "capability=8.0", "exact=1", "type=int32", "fastmath=1", "package=99"]


@pytest.fixture
def compilations(tmp_path):
    """Return a function that counts the compilations of jobs in a new process."""
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")},
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WARPDRIVE_MIN_CACHE": str(tmp_path / "cache"),
    }

    def run(*jobs: str, **more: str) -> list[int]:
        said = run_python("-m", "tests.core.numba_cache_process", *jobs, env=variables, cwd=ROOT, **more)
        return [int(number) for number in said.split()]

    return run


def write(folder: Path, file: str = "", old: str = "", new: str = "") -> str:
    """Write both modules, with a text of one replaced; return the folder."""
    folder.mkdir()
    for name, text in (("kernels.py", KERNEL), ("helpers.py", HELPERS)):
        assert name != file or old in text
        (folder / name).write_text(text.replace(old, new) if name == file else text)
    return str(folder)


def test_second_process_compiles_nothing(compilations, tmp_path):
    """Comments, line numbers, folders and other functions do not matter."""
    first = write(tmp_path / "first")
    assert compilations(first, PYTHONHASHSEED="1") == [1]
    again = write(tmp_path / "again", "helpers.py", "FACTOR = 2", "# A comment.\n\nother = 3\nFACTOR = 2")
    assert compilations(first, again, PYTHONHASHSEED="2") == [0, 0]
    assert compilations(first, NUMBA_OPT="2") == [1], "a setting of Numba may change the code"


def test_damaged_entry_is_compiled_again(compilations, tmp_path):
    """A file that cannot be read is replaced."""
    folder = write(tmp_path / "first")
    assert compilations(folder) == [1]
    (entry,) = (tmp_path / "cache").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    assert compilations(folder, folder) == [1, 0]
    assert entry.read_bytes() == whole


def test_changed_inputs_are_compiled(compilations, tmp_path):
    """Device functions, constants, options, types, the GPU and versions are inputs."""
    first = write(tmp_path / "first")
    changed = [write(tmp_path / f"change_{index}", *change) for index, change in enumerate(CHANGES)]
    jobs = [first, *changed, *(f"{first},{setting}" for setting in SETTINGS)]
    assert compilations(*jobs, *jobs) == [1] * len(jobs) + [0] * len(jobs)


def test_unknown_object_is_never_cached(compilations, tmp_path):
    """A kernel with an object without description is compiled each time."""
    folder = write(tmp_path / "first", "helpers.py", "x + 1", "x + 1 if unused else x")
    assert compilations(folder, folder) == [1, 1]
    assert not (tmp_path / "cache").exists()


@pytest.mark.gpu
def test_second_process_launches_what_the_first_compiled(tmp_path):
    """On a GPU a second process compiles no kernel; arrays have the same bits."""
    text = """
from numba.cuda import dispatcher
from tests.support import run_python
from warpdrive_min import EnvWrapper
from warpdrive_min.envs import CartPole
made, build = [], dispatcher._Kernel.__init__
def count(self, *given, **more):
    made.append(given[0].__name__)
    build(self, *given, **more)
dispatcher._Kernel.__init__ = count
for exact in (False, True):
    wrapper = EnvWrapper(CartPole(), num_envs=8, env_backend="numba", auto_reset=True, seed=1, exact=exact)
    wrapper.reset()
    wrapper.rollout(5)
    print(wrapper.cuda_data_manager.tensor("observations").cpu().numpy().tobytes().hex())
print(len(made))
"""
    variables = {
        **os.environ,
        "WARPDRIVE_MIN_CACHE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    said = [run_python("-c", text, env=variables, cwd=ROOT).split() for _ in range(2)]
    *first, n_first = said[0]
    *second, n_second = said[1]
    assert int(n_first) >= 4
    assert int(n_second) == 0
    assert first == second
